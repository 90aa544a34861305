"""The admin port: `/livez`, `/readyz`, `/startupz` and `/metrics`, from a thread of its own.

It never waits behind the token loop, and so can tell that the loop is stuck.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.asgi import header
from gateway.lifecycle import Lifecycle, Phase
from gateway.observability.heartbeat import Heartbeat

__all__ = ["AdminServer", "Health", "admin_app"]

_STOP_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Tell what is wrong, in a word; "" when nothing is. Asked from the admin thread.

    Attributes:
        can_serve: whether some worker takes requests.
        stall_after: seconds without a heartbeat after which the process is not alive any more.
    """

    lifecycle: Lifecycle
    heartbeat: Heartbeat
    can_serve: Callable[[], bool]
    stall_after: float

    def live(self) -> str:
        """Ask for a restart only when the event loop does not turn."""
        return "event loop stalled" if self.heartbeat.silence > self.stall_after else ""

    def ready(self) -> str:
        """Take requests while a worker can serve them, until the drain."""
        phase = self.lifecycle.phase
        if phase is not Phase.SERVING:
            return phase
        return "" if self.can_serve() else "no worker can serve"

    def started(self) -> str:
        """Be started once a worker has been ready; it need not be any more."""
        phase = self.lifecycle.phase
        return phase if phase is Phase.STARTING else ""


def admin_app(health: Health, registry: CollectorRegistry) -> ASGIApp:
    """Return the application of the admin port."""
    probes: Mapping[str, Callable[[], str]] = {
        "/livez": health.live,
        "/readyz": health.ready,
        "/startupz": health.started,
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"method not allowed\n")
        elif path == "/metrics":
            encode, content_type = choose_encoder(header(scope, b"accept") or "")
            await _answer(send, 200, encode(registry), content_type)
        elif path in probes:
            problem = probes[path]()
            await _answer(send, 503 if problem else 200, f"{problem or 'ok'}\n".encode())
        else:
            await _answer(send, 404, b"not found\n")

    return app


async def _answer(
    send: Send, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8"
) -> None:
    headers = [
        (b"content-type", content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class AdminServer:
    """Serve the admin application from a thread.

    Args:
        sock: bound; the server owns it.
    """

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            http="h11",
            loop="asyncio",
            interface="asgi3",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._sock = sock
        # A daemon: an admin request that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more. Blocks for a moment."""
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        self._server.run(sockets=[self._sock])
