"""The worker's admin port: health for an orchestrator, metrics for Prometheus.

It runs in a thread of its own: an engine may block the worker's loop for the minutes in which it
loads its model, and a busy loop has better things to do than to write metrics. What it is asked it
reads from plain objects of the worker's.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BACKLOG: Final = 64

CLOSE_SECONDS: Final = 5.0

STALL_SECONDS: Final = 30.0
"""Silence of the worker's loop after which it is not alive any more. Nothing that a worker does
after its start takes a second of the loop; the rest is for machines that are out of breath."""


class Health:
    """Where the worker is in its life. Read from the admin's thread.

    Args:
        clock: monotonic seconds, the same in every thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = False
        """The engine is loaded and the sockets are open."""
        self.unready = "starting"
        """Why no new work should be sent; empty when it should."""
        self.metrics: Callable[[], bytes] = bytes
        self._clock = clock
        self._last_beat = 0.0

    def __repr__(self) -> str:
        return f"<Health {self.unready or 'ready'}>"

    def ready(self) -> None:
        """Take note that the worker serves. From now on its loop has to `beat`."""
        self.beat()
        self.started = True
        self.unready = ""

    def beat(self) -> None:
        """Take note that the worker's loop turns."""
        self._last_beat = self._clock()

    @property
    def stalled(self) -> str:
        """Say that the loop stands still; an engine that loads may do that to it."""
        silent = self.started and self._clock() - self._last_beat > STALL_SECONDS
        return "the event loop stands still" if silent else ""


def admin_app(health: Health) -> Starlette:
    """Make the application of the admin port."""

    async def livez(request: Request) -> Response:
        return _answer(health.stalled)

    async def startupz(request: Request) -> Response:
        return _answer("" if health.started else health.unready)

    async def readyz(request: Request) -> Response:
        return _answer(health.unready)

    async def metrics(request: Request) -> Response:
        return Response(health.metrics(), media_type=METRICS_TYPE)

    endpoints = {"/livez": livez, "/startupz": startupz, "/readyz": readyz, "/metrics": metrics}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])


def _answer(problem: str) -> Response:
    return PlainTextResponse(f"{problem or 'ok'}\n", status_code=503 if problem else 200)


class AdminServer:
    """Serve the admin application over HTTP, from `start` to `close`."""

    def __init__(self, health: Health) -> None:
        config = uvicorn.Config(
            admin_app(health),
            lifespan="off",
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> str:
        """Listen, and return the URL that was bound; port 0 means any free one.

        Raises:
            OSError: the address cannot be bound.
        """
        sock = _listen(host, port)
        # A daemon: a request that hangs must not keep the process.
        self._thread = threading.Thread(target=self._serve, args=(sock,), name="admin", daemon=True)
        self._thread.start()
        return f"http://{_host(host)}:{sock.getsockname()[1]}"

    async def close(self) -> None:
        """Stop; answers under way are finished, unless they take too long."""
        if self._thread is not None:
            self._server.should_exit = True
            await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            self._server.run(sockets=[sock])


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
