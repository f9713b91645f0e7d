"""`everyhead look --serve`: the page on this machine, until Ctrl-C."""

import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.explorer.scene import Scene
    from everyhead.explorer.sessions import Session

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve_page(
    session: "Session",
    scenes: "Sequence[Scene]",
    state: Mapping[str, Any],
    *,
    address: str,
    port: int,
) -> None:
    """Serve until interrupted; the page's address is printed.

    Raises:
        UserError: the tools are not installed, or the port is taken.
    """
    try:
        import uvicorn

        from everyhead.explorer.server import app
    except ModuleNotFoundError as error:
        raise UserError(
            f"--serve needs {error.name}, which is not installed: pip install 'everyhead[look]'."
        ) from error
    listener = _listening(address, port)
    port = listener.getsockname()[1]
    if address not in LOCAL:
        print(
            f"everyhead: warning: {address} lets everybody who reaches this machine use the model "
            "and read its texts; there is no password and no encryption.",
            file=sys.stderr,
        )
    shown = "127.0.0.1" if address in ("0.0.0.0", "localhost") else address
    shown = f"[{shown}]" if ":" in shown else shown
    print(f"http://{shown}:{port}/", flush=True)
    served = app(session, scenes, state=state, address=address, port=port)
    config = uvicorn.Config(served, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"Nothing can listen at {address}, port {port} ({reason}); choose another --port, or 0 "
            "for any that is free."
        ) from error
    return listener
