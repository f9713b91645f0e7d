"""The live page: the same script with a model behind it, asked over four addresses.

    GET  /             the page                POST /api/scene    run the model on a text
    POST /api/head     one head, or a window   POST /api/next     what would come next

No file is read by a request; a request is JSON of known fields, each checked (explorer/asking.py).
The model answers one request at a time.
"""

import base64
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from everyhead.errors import UserError
from everyhead.explorer.asking import Head, Next, Question
from everyhead.explorer.distribution import shaped
from everyhead.explorer.guard import Guard
from everyhead.explorer.packing import LONG, Blobs, pack_parts
from everyhead.explorer.page import filled, json_text, packed
from everyhead.explorer.scene import Scene
from everyhead.explorer.sessions import Session

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

# A scene with more cells sends its heads when they are shown.
LAZY_CELLS = 1_000_000
KEPT_SCENES = 12
SHOWN_WORDS = 12
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Live:
    """A session and the scenes that the page has seen of it."""

    def __init__(self, session: Session, scenes: Sequence[Scene]) -> None:
        self.session, self.lock = session, threading.Lock()
        self._scenes: OrderedDict[int, Scene] = OrderedDict()
        self._count = 0
        self.first = list(scenes)

    def page(self, state: Mapping[str, Any]) -> str:
        """The page with the first scenes."""
        with self.lock:
            blobs = Blobs()
            scenes = self._packed(self.first, blobs)
            page = {"version": 1, "served": True, "state": dict(state), "scenes": scenes}
            return filled(page, blobs, connect="'self'")

    def scene(self, question: Question) -> dict[str, Any]:
        """Run the model; what changed against the run without changes is said too."""
        asked = question.asked()
        scene, answer = self.session.scene(asked), dict[str, Any]()
        if not question.effect:
            blobs = Blobs()
            answer = {"scene": self._packed([scene], blobs)[0], "blobs": blobs.texts}
        if asked.changes:
            plain = self.session.scene(asked._replace(changes=()))
            answer["before"] = {"output": plain.output, "moved": _moved(plain, scene)}
        return answer

    def head(self, head: Head) -> dict[str, Any]:
        """One head's window, and of each of its rows the strongest keys anywhere."""
        scene = self._scenes.get(head.scene)
        if scene is None:
            raise UserError("This page is older than the last runs: run the text again.")
        self._scenes.move_to_end(head.scene)  # it is on the screen
        group, layer = head.place(scene)
        rows, columns = head.window(len(group.rows), len(group.columns))
        weights, visible = layer.head(head.head, rows), layer.visible(head.head, rows)
        tops = np.argsort(-weights, axis=1, kind="stable")[:, :8]
        part, seen = weights[:, columns], visible[:, columns]
        answer: dict[str, Any] = {
            "weights": base64.b64encode(part.astype("<f4").tobytes()).decode("ascii"),
            "mask": base64.b64encode(seen.astype("u1").tobytes()).decode("ascii"),
            "row": int(rows[0]),
            "column": int(columns[0]),
            "size": [len(rows), len(columns)],
            "tops": [
                [[int(s), float(weights[t, s])] for s in row if visible[t, s]]
                for t, row in enumerate(tops)
            ],
        }
        if layer.drawing is not None and (found := layer.drawing.buckets(head.head)) is not None:
            sides = {"rows": found[:, rows], "columns": found[:, columns]}
            answer["buckets"] = {name: side.tolist() for name, side in sides.items()}
        if len(rows) == len(group.rows) <= LONG:
            blobs = Blobs()
            answer |= {"parts": pack_parts(layer.parts(head.head), blobs), "blobs": blobs.texts}
        return answer

    def next(self, asked: Next) -> dict[str, Any]:
        """The likeliest pieces, with what a sampler leaves of each."""
        shape = asked.shape()
        question = asked.asked()
        found = self.session.next_words(question)
        if found is None:
            return {"words": None}
        plain, before = found.logits.double().softmax(-1), None
        drawn = shaped(found.logits, shape)
        if question.changes:
            unchanged = self.session.next_words(question._replace(changes=()))
            before = None if unchanged is None else unchanged.logits.double().softmax(-1)
        best = plain.topk(min(SHOWN_WORDS, len(plain))).indices.tolist()
        words = found.texts(best)
        rows = [
            {
                "id": i,
                "text": word,
                "plain": float(plain[i]),
                "drawn": float(drawn[i]),
                "before": None if before is None else float(before[i]),
            }
            for word, i in zip(words, best, strict=True)
        ]
        one = int(drawn.multinomial(1))
        return {
            "words": rows,
            "kept": int((drawn > 0).sum()),
            "of": len(plain),
            "draw": {"id": one},
        }

    def _packed(self, scenes: Sequence[Scene], blobs: Blobs) -> list[dict[str, Any]]:
        entries = packed(scenes, blobs, most_cells=LAZY_CELLS)
        for scene, entry in zip(scenes, entries, strict=True):
            self._count += 1
            self._scenes[self._count] = scene
            entry["id"] = self._count
        while len(self._scenes) > KEPT_SCENES:
            self._scenes.popitem(last=False)
        return entries


def _moved(before: Scene, after: Scene) -> dict[str, list[float]]:
    """How far each row's last state moved in each half: 1 − cosine."""
    moved: dict[str, list[float]] = {}
    for half, b in after.states.items():
        a = before.states.get(half)
        if a is not None and a.shape == b.shape:
            norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            moved[half] = np.clip(1 - (a * b).sum(1) / np.maximum(norms, 1e-30), 0, 2).tolist()
    return moved


def app(
    session: Session,
    scenes: Sequence[Scene],
    *,
    state: Mapping[str, Any] | None = None,
    address: str = "127.0.0.1",
    port: int = 8765,
) -> Guard:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    live = Live(session, scenes)

    def page(request: "Request") -> "Response":
        return HTMLResponse(live.page(state or {}), headers=HEADERS)

    routes = [Route("/", page, methods=["GET"])]
    for name, form, answer in (
        ("scene", Question, live.scene),
        ("head", Head, live.head),
        ("next", Next, live.next),
    ):
        routes.append(Route(f"/api/{name}", _endpoint(live, form, answer), methods=["POST"]))
    return Guard(Starlette(routes=routes), address=address, port=port)


def _endpoint(live: Live, form: Any, answer: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    """JSON in, JSON out; what a user can mend is 400 with its sentence."""
    from pydantic import ValidationError
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response

    def worked(content: bytes) -> tuple[int, str]:
        try:
            with live.lock:
                return 200, json_text(answer(form.model_validate_json(content)))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return 400, json_text({"error": f"{where or 'The request'}: {first['msg']}."})
        except (UserError, ValueError, LookupError, RuntimeError) as error:
            return 400, json_text({"error": str(error)})

    async def endpoint(request: "Request") -> "Response":
        status, text = await run_in_threadpool(worked, await request.body())
        return Response(text, status, headers=HEADERS, media_type="application/json")

    return endpoint
