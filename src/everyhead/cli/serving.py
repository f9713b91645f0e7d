"""`everyhead look --serve`: the page on this machine, until Ctrl-C."""

import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everyhead.errors import UserError
from everyhead.explorer.guard import is_local

if TYPE_CHECKING:
    from everyhead.explorer.scene import Scene
    from everyhead.explorer.sessions import Session


def check_address(address: str) -> None:
    """
    Raises:
        UserError: neither an IP address nor localhost.
    """
    try:
        is_local(address)
    except ValueError as error:
        raise UserError(
            f"--address {address} is no IP address such as 127.0.0.1 or ::1, nor localhost."
        ) from error


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
        UserError: the tools are not installed, or nothing can listen there.
    """
    check_address(address)
    try:
        import uvicorn

        from everyhead.explorer.server import app
    except ModuleNotFoundError as error:
        raise UserError(
            f"--serve needs {error.name}, which is not installed: pip install 'everyhead[look]'."
        ) from error
    listener = _listening(address, port)
    port = listener.getsockname()[1]
    if not is_local(address):
        print(
            f"everyhead: warning: {address} lets everybody who reaches this machine use the model "
            "and read its texts; there is no password and no encryption.",
            file=sys.stderr,
        )
    shown = {"0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}.get(address, address)
    shown = f"[{shown}]" if ":" in shown else shown
    print(f"http://{shown}:{port}/", flush=True)
    served = app(session, scenes, state=state, address=address, port=port)
    config = uvicorn.Config(served, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def _listens_alone() -> int:
    """The option: on Windows SO_REUSEADDR would let another program listen at the same port."""
    if sys.platform == "win32":
        return socket.SO_EXCLUSIVEADDRUSE
    return socket.SO_REUSEADDR


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, _listens_alone(), 1)
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
