"""Our own client and server in one loop, with recorders at both ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from nnrp_backend.client import NnrpClient, Terminal
from nnrp_backend.server import NnrpServer, ServerOperation
from nnrp_backend.transport.endpoint import Endpoint


class Recorder:
    """A client's handler that keeps everything, and can be made to fail."""

    def __init__(self, fail_in: str = "") -> None:
        self.reads: list[list[bytes]] = []
        self.stages: list[tuple[int, int]] = []
        self.terminals: list[Terminal] = []
        self._fail_in = fail_in

    @property
    def events(self) -> list[bytes]:
        return [body for bodies in self.reads for body in bodies]

    @property
    def terminal(self) -> Terminal | None:
        return self.terminals[0] if self.terminals else None

    def on_events(self, bodies: list[bytes]) -> None:
        assert not self.terminals, "an event after the terminal"
        self.reads.append(bodies)
        self._maybe_fail("on_events")

    def on_progress(self, stage: int, percent_x100: int) -> None:
        assert not self.terminals, "progress after the terminal"
        self.stages.append((stage, percent_x100))
        self._maybe_fail("on_progress")

    def on_terminal(self, terminal: Terminal) -> None:
        self.terminals.append(terminal)
        self._maybe_fail("on_terminal")

    def _maybe_fail(self, method: str) -> None:
        if method == self._fail_in:
            raise RuntimeError(f"failing in {method}")


class Listener:
    """A client's listener that keeps everything."""

    def __init__(self) -> None:
        self.lost: list[Exception | None] = []
        self.pressure: list[tuple[int | None, int, int]] = []
        self.drains = 0
        self.probes: list[float | None] = []

    def on_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def on_pressure(self, window: int | None, level: int, retry_after_ms: int) -> None:
        self.pressure.append((window, level, retry_after_ms))

    def on_drain(self) -> None:
        self.drains += 1

    def on_probe(self, rtt: float | None) -> None:
        self.probes.append(rtt)


class Events:
    """A server operation's handler that keeps what it hears and obeys only if told to."""

    def __init__(self, operation: ServerOperation, *, obey: bool = True) -> None:
        self.operation = operation
        self.obey = obey
        self.cancels: list[tuple[int, bool]] = []
        self.deadlines: list[tuple[int, bool]] = []
        self.priorities: list[tuple[int, int]] = []
        self.done_when_cancelled: bool | None = None

    def on_cancel(self, reason: int, hard: bool) -> None:
        self.cancels.append((reason, hard))
        self.done_when_cancelled = self.operation.done
        if self.obey:
            self.operation.drop(3, "stopped")

    def on_deadline(self, unix_ms: int, discard: bool) -> None:
        self.deadlines.append((unix_ms, discard))

    def on_priority(self, priority_class: int, delta: int) -> None:
        self.priorities.append((priority_class, delta))


class Service:
    """Takes every operation and leaves it to the test."""

    def __init__(self, *, obey: bool = True) -> None:
        self.operations: list[ServerOperation] = []
        self.events: list[Events] = []
        self._obey = obey

    def __call__(self, operation: ServerOperation) -> None:
        events = Events(operation, obey=self._obey)
        operation.handler = events
        self.operations.append(operation)
        self.events.append(events)


def echo(operation: ServerOperation) -> None:
    """Answer at once: the payload as an event and as the result."""
    operation.send_event(operation.payload)
    operation.complete(operation.payload)


@asynccontextmanager
async def serving(
    service: Callable[[ServerOperation], None],
    url: str = "tcp://127.0.0.1:0",
    *,
    ssl: Any = None,
    **options: Any,
) -> AsyncIterator[tuple[NnrpServer, Endpoint]]:
    """A server on `url`; closed at the end, whatever is in flight."""
    server = NnrpServer(service, **options)
    endpoint = await server.listen(url, ssl=ssl)
    try:
        yield server, endpoint
    finally:
        async with asyncio.timeout(10):
            await server.close()


@asynccontextmanager
async def connected(endpoint: Endpoint | str, **options: Any) -> AsyncIterator[NnrpClient]:
    """A connected client; closed at the end."""
    client = NnrpClient(endpoint, **options)
    await client.connect()
    try:
        yield client
    finally:
        async with asyncio.timeout(10):
            await client.close()
