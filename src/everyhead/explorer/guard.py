"""Who may ask the served page: only itself.

A page of another site could send requests to this machine, or have its own name point here. So the
Host must be one that this server has, a request with an Origin must come from it, and what changes
anything must be JSON from the page itself.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MOST_BYTES = 1_000_000
HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:(?P<port>\d+))?")


def is_local(address: str) -> bool:
    """Whether nobody but this machine reaches the address (a number, or `localhost`).

    Raises:
        ValueError: it is neither.
    """
    return address == "localhost" or ipaddress.ip_address(address).is_loopback


class Guard:
    """Stands before the app and lets through what the page itself sends."""

    def __init__(self, app: App, *, address: str, port: int) -> None:
        self.app, self.port = app, port
        self.open = not is_local(address)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI call."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        refused = self.refusal(scope["method"], headers)
        if refused is not None:
            await _refuse(send, *refused)
            return
        await self.app(scope, receive, send)

    def refusal(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and sentence, or None: welcome."""
        host = headers.get("host", "")
        if not self._ours(host):
            return 421, "This server does not have that name."
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "Only the page itself may ask."
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "Only the page itself may ask."
        if method == "POST":
            if not headers.get("content-type", "").startswith("application/json"):
                return 415, "Send JSON."
            told = headers.get("content-length", "")  # chunks would go on past what it says
            if "transfer-encoding" in headers or not told.isdecimal() or not told.isascii():
                return 411, "Say how long the request is."
            if len(told) > 20 or int(told) > MOST_BYTES:
                return 413, "The request is too long: shorten the text."
        return None

    def _ours(self, host: str) -> bool:
        found = HOST.fullmatch(host)
        if found is None or (found["port"] or "80") != str(self.port):
            return False
        name = found["name"].strip("[]")
        try:  # a number cannot be made to point here by a foreign name server
            return is_local(name) or self.open
        except ValueError:
            return False


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode("utf-8")
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
