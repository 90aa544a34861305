"""The gateway's composition: everything is made and wired here, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from gateway.config import GatewayConfig, StreamConfig
from gateway.http.edge import Edge, Workers
from gateway.http.middleware import BodyLimit, Errors, RequestId
from gateway.http.open_requests import OpenRequests
from gateway.http.routes import leave_to_errors, routes
from gateway.observability.metrics import GatewayMetrics
from nnrp_backend.transport.tasks import TaskSet

__all__ = ["create_app"]


def create_app(
    config: GatewayConfig,
    *,
    pool: Workers,
    metrics: GatewayMetrics | None = None,
    open_requests: OpenRequests | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Starlette:
    """Return the ASGI application of the public port.

    Its lifespan runs the timer of the open requests; starting and closing the pool is the caller's.

    Args:
        pool: a started `gateway.pool.Pool`, or whatever does the same.
        metrics: where requests are counted; read by `gateway.observability.collector`.
        open_requests: the requests being answered; the drain ends them.
        clock: monotonic seconds; the event loop's clock.
        wall_clock: seconds since 1970, for `created`.
    """
    if metrics is None:
        metrics = GatewayMetrics()
    if open_requests is None:
        open_requests = OpenRequests(interval=tick_interval(config.stream))
    edge = Edge(
        config=config,
        pool=pool,
        metrics=metrics,
        open=open_requests,
        tasks=TaskSet("http"),
        clock=clock,
        wall_clock=wall_clock,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        open_requests.start()
        yield
        open_requests.stop()
        edge.tasks.cancel_all()
        await edge.tasks.join()

    app = Starlette(
        routes=routes(edge),
        middleware=[
            Middleware(RequestId),
            Middleware(Errors, metrics=metrics),
            Middleware(BodyLimit, limit=config.limits.body_bytes),
        ],
        exception_handlers={HTTPException: leave_to_errors},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def tick_interval(stream: StreamConfig) -> float:
    """Return how often open requests are looked at: often enough for the shortest bound."""
    shortest = min(stream.first_event_grace, stream.keep_alive, stream.send_timeout)
    return min(1.0, max(0.01, shortest / 10))
