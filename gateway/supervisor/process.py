"""One gateway process, from its sockets to its last connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from gateway import __version__
from gateway.app import create_app, tick_interval
from gateway.config import GatewayConfig, WorkerConfig
from gateway.errors import ApiError
from gateway.http.direct import direct_protocol
from gateway.http.open_requests import OpenRequests
from gateway.http.refusals import MAX_HEAD
from gateway.http.slow_requests import SlowRequests
from gateway.lifecycle import Lifecycle
from gateway.observability.collector import GatewayCollector, register
from gateway.observability.heartbeat import Heartbeat
from gateway.observability.metrics import GatewayMetrics
from gateway.pool import Pool, PoolLimits, WorkerSpec
from gateway.supervisor.admin import AdminServer, Health, admin_app
from gateway.supervisor.children import Child, WorkerStartError
from nnrp_backend.transport.endpoint import Endpoint, Scheme
from nnrp_backend.transport.tasks import TaskSet
from nnrp_backend.transport.tls import client_context

__all__ = ["Addresses", "GatewayProcess"]

#: How often the first worker's readiness is looked for.
_POLL: Final = 0.05
#: Seconds that a child worker gets to end what it has; the gateway has drained before.
_CHILD_GRACE: Final = 10.0

logger = logging.getLogger(__name__)


class Addresses(NamedTuple):
    """Where the process answers."""

    url: str
    admin_url: str
    models: tuple[str, ...] = ()
    """What the workers that are ready serve."""


class GatewayProcess:
    """Run the gateway until it is told to stop.

    Args:
        children: workers to start first, to keep running, and to stop last; each is called as the
            configuration calls the worker that it is.
        on_serving: called once, when the first worker is ready and the API answers.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        children: Sequence[Child] = (),
        on_serving: Callable[[Addresses], None] = lambda addresses: None,
    ) -> None:
        self._config = config
        self._children = tuple(children)
        self._on_serving = on_serving
        self._tasks = TaskSet("gateway")
        self._lifecycle = Lifecycle(config.drain)
        self._child_ready = asyncio.Event()
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain.

        Until a worker is ready requests are answered 503.

        Raises:
            OSError: an address cannot be bound, or a child cannot be run.
            WorkerStartError: a child ended before it was ready for the first time.
        """
        with self._signals(), _bound(self._config) as (public, admin):
            try:
                await self._serve(public, admin)
            finally:
                self._tasks.cancel_all()
                await self._tasks.join()
                await asyncio.gather(*(child.stop(_CHILD_GRACE) for child in self._children))
        if self._failure is not None:
            raise self._failure

    async def _serve(self, public: socket.socket, admin: socket.socket) -> None:
        config, lifecycle = self._config, self._lifecycle
        metrics = GatewayMetrics()
        pool = Pool([_spec(worker) for worker in config.workers], limits=_limits(config))
        open_requests = OpenRequests(interval=tick_interval(config.stream))
        app = create_app(config, pool=pool, metrics=metrics, open_requests=open_requests)
        server = PublicServer(app, config, public, open_requests)
        heartbeat = Heartbeat(metrics.loop_delay)
        health = Health(
            lifecycle=lifecycle,
            heartbeat=heartbeat,
            can_serve=lambda: pool.ready or config.admin.ready_without_workers,
            stall_after=config.admin.stall_after,
        )
        admin_server = AdminServer(admin_app(health, _registry(metrics, pool)), admin)
        addresses = Addresses(_url(public), _url(admin))

        heartbeat.start()
        admin_server.start()
        try:
            self._tasks.start(server.serve(), name="http")
            for child in self._children:
                self._tasks.start(self._keep(child, pool), name=child.name)
            self._tasks.start(self._bring_up(pool, addresses), name="workers")
            logger.info("listening on %s, admin on %s", addresses.url, addresses.admin_url)
            await lifecycle.wait_for_stop()
            logger.info("draining")
            await lifecycle.drain(server)
            server.drop_connections()
            await server.closed.wait()
            await pool.close()
        finally:
            admin_server.stop()
            heartbeat.stop()

    async def _keep(self, child: Child, pool: Pool) -> None:
        def ready() -> None:
            self._child_ready.set()
            pool.wake(child.name)

        try:
            await child.start()
        except (WorkerStartError, OSError) as error:
            # A first start that fails would fail again: a wrong model, a wrong flag.
            self._failure = self._failure or error
            self._lifecycle.request_stop()
        else:
            ready()
            await child.keep_running(ready)

    async def _bring_up(self, pool: Pool, addresses: Addresses) -> None:
        if self._children:
            await self._child_ready.wait()  # before it nobody listens
        await pool.start()
        while not pool.ready:  # noqa: ASYNC110 - it happens once, and costs the pool nothing
            await asyncio.sleep(_POLL)
        self._lifecycle.serving()
        self._on_serving(addresses._replace(models=tuple(_names(pool))))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._lifecycle.request_stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


class PublicServer:
    """The public port: uvicorn with the direct writer, drained by `gateway.lifecycle`."""

    def __init__(
        self,
        app: ASGIApp,
        config: GatewayConfig,
        sock: socket.socket,
        open_requests: OpenRequests,
    ) -> None:
        self.closed = asyncio.Event()
        self._sock = sock
        self._open_requests = open_requests
        http = config.http
        protocol = direct_protocol(
            http.implementation,
            send_buffer=http.send_buffer,
            high_water=http.high_water,
            send_timeout=config.stream.send_timeout,
        )
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                http=protocol,
                interface="asgi3",
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=http.access_log,
                server_header=False,
                proxy_headers=False,
                backlog=http.backlog,
                timeout_keep_alive=http.keep_alive_timeout,
                h11_max_incomplete_event_size=MAX_HEAD,
            )
        )

    async def serve(self) -> None:
        """Answer until drained."""
        slow_requests = SlowRequests(self._server.server_state.connections)
        slow_requests.start()
        try:
            await self._server.serve(sockets=[self._sock])
        finally:
            slow_requests.stop()
            self.closed.set()

    # gateway.lifecycle.Drainable

    def stop_accepting(self) -> None:
        self._server.should_exit = True

    def cut_requests(self) -> None:
        self._open_requests.shut_down(ApiError.shutting_down())

    def drop_connections(self) -> None:
        """Abort what is still connected: a client that took neither its answer nor a hint."""
        self._server.force_exit = True
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The signals are the process's: uvicorn would close its sockets at the first one.
        yield


@contextlib.contextmanager
def _bound(config: GatewayConfig) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Bind both ports first: a port in use is an error before anything has been started."""
    with contextlib.ExitStack() as stack:
        public = stack.enter_context(_bind(config.http.host, config.http.port))
        admin = stack.enter_context(_bind(config.admin.host, config.admin.port))
        yield public, admin


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _registry(metrics: GatewayMetrics, pool: Pool) -> CollectorRegistry:
    registry = CollectorRegistry()
    collector = GatewayCollector(metrics, pool, models=lambda: _names(pool), version=__version__)
    register(registry, collector)
    return registry


def _names(pool: Pool) -> list[str]:
    return [card["id"] for card in pool.models()]


def _limits(config: GatewayConfig) -> PoolLimits:
    return PoolLimits(**config.pool.model_dump())


def _spec(worker: WorkerConfig) -> WorkerSpec:
    tls = None
    if Endpoint.parse(worker.endpoint).scheme is Scheme.TLS:
        files = worker.tls
        tls = client_context(ca=files.ca_file, cert=files.cert_file, key=files.key_file)
    return WorkerSpec(endpoint=worker.endpoint, name=worker.name, models=worker.models, ssl=tls)
