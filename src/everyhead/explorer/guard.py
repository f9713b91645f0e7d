"""Who may ask the served page: only itself.

A page of another site could send requests to this machine, or have its own name point here. So the
Host must be one that this server has, a request with an Origin must come from it, and what changes
anything must be JSON from the page itself.
"""

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MOST_BYTES = 1_000_000
LOCAL = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Stands before the app and lets through what the page itself sends."""

    def __init__(self, app: App, *, address: str, port: int) -> None:
        self.app, self.port = app, port
        self.open = address not in ("127.0.0.1", "localhost", "::1")

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
            if not headers.get("content-length", "").isdigit():
                return 411, "Say how long the request is."
            if int(headers["content-length"]) > MOST_BYTES:
                return 413, "The request is too long: shorten the text."
        return None

    def _ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        if name in LOCAL:
            return True
        if not self.open:
            return False
        try:  # a number cannot be made to point here by a foreign name server
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode("utf-8")
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
