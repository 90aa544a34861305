"""The worker's admin port: health for an orchestrator, metrics for Prometheus.

It runs on the worker's own loop, so that an answer of `/livez` says that the loop turns.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nnrp_backend.transport.tasks import TaskSet

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """Where the worker is in its life."""

    def __init__(self) -> None:
        self.started = False
        """The engine is loaded and the sockets are open."""
        self.unready = "starting"
        """Why no new work should be sent; empty when it should."""
        self.metrics: Callable[[], bytes] = bytes

    def __repr__(self) -> str:
        return f"<Health {self.unready or 'ready'}>"

    def ready(self) -> None:
        """Take note that the worker serves."""
        self.started = True
        self.unready = ""


def admin_app(health: Health) -> Starlette:
    """Make the application of the admin port."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

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
    """Serve the admin application over HTTP until closed."""

    def __init__(self, health: Health) -> None:
        config = uvicorn.Config(
            admin_app(health),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
        )
        self._server = _Server(config)
        self._tasks = TaskSet("admin")

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the URL that was bound; port 0 means any free one.

        Raises:
            OSError: the address cannot be bound.
        """
        sock = _bind(host, port)
        self._tasks.start(self._server.serve(sockets=[sock]), name="http")
        return f"http://{_host(host)}:{sock.getsockname()[1]}"

    async def close(self) -> None:
        """Stop; answers under way are finished."""
        self._server.should_exit = True
        await self._tasks.join()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The signals are the worker's: it has to drain first.
        yield


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
