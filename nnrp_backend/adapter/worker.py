"""One worker process: engine, adapter, NNRP server and admin port, from start to drain.

Exceptions:

    Exception
    └── ListenError     an address cannot be bound
"""

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from nnrp_backend.adapter.adapter import DEFAULT_MAX_OPERATIONS, HONOURED, Adapter
from nnrp_backend.adapter.admin import AdminServer, Health
from nnrp_backend.adapter.engine import Engine, EngineInterrupted
from nnrp_backend.adapter.metrics import render
from nnrp_backend.server import NnrpServer
from nnrp_backend.transport.endpoint import Endpoint, Scheme
from nnrp_backend.transport.tasks import TaskSet

logger = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""The engine died; also of a second signal, which does not wait for anything."""

BEAT_SECONDS: Final = 1.0


class ListenError(Exception):
    """The worker cannot listen where it was told to."""

    def __init__(self, address: str, error: OSError) -> None:
        # asyncio wraps the system's words into its own; negative numbers are the resolver's.
        number = error.errno or 0
        self.address = address
        self.reason = os.strerror(number) if number > 0 else str(error)
        super().__init__(f"cannot listen on {address}: {self.reason}")


class WorkerConfig(NamedTuple):
    """How one worker serves its engine."""

    listen: tuple[Endpoint, ...]
    tls: ssl.SSLContext | None = None
    """For the `tls://` endpoints among `listen`."""
    admin: tuple[str, int] | None = None
    """Host and port of the admin port; None is none."""
    levels: frozenset[int] | None = None
    max_operations: int = DEFAULT_MAX_OPERATIONS
    stall_timeout: float | None = None
    drain_timeout: float = 30.0
    """Seconds that running operations get after the first signal."""


class Worker:
    """Run one engine behind NNRP until a signal, or until the engine dies.

    Args:
        on_ready: called once, with what is served and where, when clients may connect.
    """

    def __init__(
        self, engine: Engine, config: WorkerConfig, *, on_ready: Callable[[dict[str, Any]], None]
    ) -> None:
        self._engine = engine
        self._config = config
        self._on_ready = on_ready
        self._health = Health()
        self._admin_url: str | None = None
        self._stop = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None
        self._tasks = TaskSet("worker")

    def __repr__(self) -> str:
        return f"<Worker {self._engine.name} {self._health.unready or 'ready'}>"

    async def run(self) -> int:
        """Serve, drain, and return the process's exit code.

        Raises:
            EngineConfigError: the engine cannot start like this.
            ListenError: an address cannot be bound.
        """
        async with AsyncExitStack() as end:
            self._take_signals()
            end.callback(self._release_signals)
            if self._config.admin is not None:
                end.push_async_callback(self._start_admin(*self._config.admin).close)
            end.push_async_callback(self._engine.close)
            if not await self._start_engine():
                return EXIT_OK
            return await self._serve()

    def stop(self) -> None:
        """Ask for an orderly end; asked again, end the process at once."""
        if self._stop.is_set():
            logger.warning("second signal: the process ends without waiting")
            os._exit(EXIT_FAILED)
        self._stop.set()
        if self._starting is not None:
            self._starting.cancel()

    def _start_admin(self, host: str, port: int) -> AdminServer:
        """Start it first: an orchestrator wants to know of a worker that takes minutes to load."""
        admin = AdminServer(self._health)
        try:
            self._admin_url = admin.start(host, port)
        except OSError as error:
            raise ListenError(f"{host}:{port}", error) from error
        logger.info("health and metrics are on %s", self._admin_url)
        return admin

    async def _start_engine(self) -> bool:
        """Load the engine; False when a signal came before it was ready."""
        if self._stop.is_set():
            return False
        task = self._starting = asyncio.current_task()
        assert task is not None
        try:
            await self._engine.start()
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            task.uncancel()
        except EngineInterrupted:
            return False
        finally:
            self._starting = None
        return not self._stop.is_set()

    async def _serve(self) -> int:
        config = self._config
        adapter = Adapter(
            self._engine,
            levels=config.levels,
            max_operations=config.max_operations,
            stall_timeout=config.stall_timeout,
        )
        server = NnrpServer(
            adapter.handle, max_in_flight=config.max_operations, capabilities=HONOURED
        )
        self._health.metrics = lambda: render(adapter, server)
        try:
            bound = [await self._listen(server, endpoint) for endpoint in config.listen]
            server.set_capacity(config.max_operations)
            self._health.ready()
            self._tasks.start(self._beat(), name="heartbeat")
            logger.info("%r serves on %s", adapter, ", ".join(map(str, bound)))
            self._on_ready(self._description(adapter, bound))
            await self._until_the_end(adapter)
        finally:
            # A dead engine has answered everything already: there is nothing to wait for.
            drain = 0.0 if adapter.death is not None else config.drain_timeout
            self._health.unready = "the engine died" if adapter.death else "draining"
            logger.info("%s: %d operations in flight", self._health.unready, server.in_flight)
            await server.close(drain_timeout=drain)
            await adapter.close()
            self._health.metrics = bytes  # there is no engine to ask from here on
            self._tasks.cancel_all()
            await self._tasks.join()
        return EXIT_OK if adapter.death is None else EXIT_FAILED

    async def _listen(self, server: NnrpServer, endpoint: Endpoint) -> Endpoint:
        tls = self._config.tls if endpoint.scheme is Scheme.TLS else None
        try:
            return await server.listen(endpoint, ssl=tls)
        except OSError as error:
            raise ListenError(str(endpoint), error) from error

    async def _until_the_end(self, adapter: Adapter) -> None:
        """Wait for a signal or the engine's death; the adapter goes on to watch for the latter."""
        stopped = self._tasks.start(self._stop.wait(), name="stop")
        died = self._tasks.start(adapter.wait_dead(), name="engine")
        await asyncio.wait((stopped, died), return_when=asyncio.FIRST_COMPLETED)

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def _description(self, adapter: Adapter, bound: list[Endpoint]) -> dict[str, Any]:
        return {
            "listen": [str(endpoint) for endpoint in bound],
            "admin": self._admin_url,
            "pid": os.getpid(),
            "models": [model["id"] for model in adapter.record.models],
        }

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def _release_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
