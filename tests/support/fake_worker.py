"""A worker without a wire, and a clock without time: for tests of what is above the client."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from gateway.pool.interfaces import Outcome
from nnrp_backend.client import (
    ClientListener,
    ConnectError,
    NotConnected,
    OperationHandler,
    PayloadTooLarge,
    Terminal,
    TerminalKind,
    TooManyOperations,
)
from nnrp_backend.profile import events
from nnrp_backend.profile.capabilities import CapabilityRecord, Extension, OperationCapability
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.operations import CHAT, CHUNKS_FINAL
from nnrp_backend.protocol.constants import DropReason

MAX_PAYLOAD = 1000


def record(
    *models: str, operations: tuple[str, ...] = (CHAT,), final: bool = True
) -> CapabilityRecord:
    """A capability record with these models."""
    return CapabilityRecord(
        adapter="fake",
        levels=(1,),
        operations=tuple(OperationCapability(name=name, streaming=True) for name in operations),
        models=tuple({"id": model, "object": "model", "owned_by": "fake"} for model in models),
        extensions=(Extension(name=CHUNKS_FINAL),) if final else (),
    )


def answer(text: str = "hi") -> Terminal:
    """The terminal of a request that went well."""
    return Terminal(TerminalKind.RESULT, body=events.completed(b'{"text":"%b"}' % text.encode()))


def refusal(code: str, message: str = "no", **fields: Any) -> Terminal:
    """The terminal of a request that the worker refused."""
    return Terminal(TerminalKind.RESULT, body=events.error(ProfileError(code, message)), **fields)


def dropped(reason: DropReason) -> Terminal:
    return Terminal(TerminalKind.DROPPED, drop_reason=reason)


LOST = Terminal(TerminalKind.LOST, diagnostic="connection lost")


class FakeClock:
    """Time that passes when told to, and timers that go off then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> FakeTimer:
        timer = FakeTimer(callback, args)
        heapq.heappush(self._timers, (self.now + delay, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; timers go off in order, each at its time."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            if not timer.cancelled:
                timer.callback(*timer.args)
        self.now = end

    @property
    def pending(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._timers)


class FakeTimer:
    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeOperation:
    """One submitted operation; the test plays the worker's side."""

    def __init__(self, client: FakeClient, payload: bytes, handler: OperationHandler) -> None:
        self.client = client
        self.payload = payload
        self.handler = handler
        self.done = False
        self.cancels: list[int] = []
        self.grants: list[int] = []
        self.deadline_unix_ms: int | None = None
        self.priority: int | None = None

    # What the pool calls.

    def cancel(self, reason: int = 1, *, hard: bool = False) -> None:
        if not self.done and not self.cancels:
            self.cancels.append(reason)

    def grant(self, window: int) -> None:
        if not self.done:
            self.grants.append(window)

    # What the test calls.

    def send(self, *bodies: bytes) -> None:
        assert not self.done
        self.handler.on_events(list(bodies))

    def end(self, terminal: Terminal) -> None:
        assert not self.done
        self.done = True
        self.client.operations.remove(self)
        self.handler.on_terminal(terminal)


class FakeClient:
    """One connection to a worker; the test plays the worker's side."""

    def __init__(
        self,
        listener: ClientListener | None = None,
        *,
        granted: int = 4,
        ours: bool = True,
        capabilities: CapabilityRecord | None = None,
        refuses: bool = False,
    ) -> None:
        self.listener = listener
        self.granted_in_flight = granted
        self.peer_is_ours = ours
        self.record = capabilities
        self.refuses = refuses
        self.connected = False
        self.draining = False
        self.closed = False
        self.asked = 0
        self.operations: list[FakeOperation] = []
        self.submitted: list[FakeOperation] = []

    @property
    def available(self) -> int:
        if not self.connected or self.draining:
            return 0
        return self.granted_in_flight - len(self.operations)

    async def connect(self) -> None:
        if self.refuses:
            raise ConnectError("fake", "refused")
        self.connected = True

    async def close(self) -> None:
        self.closed = True
        self._end()

    async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
        await asyncio.sleep(0)
        self.asked += 1
        if not self.connected:
            raise NotConnected("fake")
        return self.record

    def submit(
        self,
        payload: bytes,
        handler: OperationHandler,
        *,
        deadline_unix_ms: int | None = None,
        priority: int | None = None,
    ) -> FakeOperation:
        if not self.connected:
            raise NotConnected("fake")
        if self.available <= 0:
            raise TooManyOperations("fake", self.granted_in_flight)
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(len(payload), MAX_PAYLOAD)
        operation = FakeOperation(self, payload, handler)
        operation.deadline_unix_ms = deadline_unix_ms
        operation.priority = priority
        self.operations.append(operation)
        self.submitted.append(operation)
        return operation

    def lose(self, error: Exception | None = None) -> None:
        """End the connection as a killed worker does: terminals first, then the listener."""
        self._end()
        if self.listener is not None:
            self.listener.on_lost(error)

    def _end(self) -> None:
        self.connected = False
        for operation in tuple(self.operations):
            operation.end(LOST)


class FakeSink:
    """Remember what a request was told."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.outcomes: list[Outcome] = []

    @property
    def outcome(self) -> Outcome:
        (outcome,) = self.outcomes
        return outcome

    def on_events(self, bodies: list[bytes]) -> None:
        assert not self.outcomes, "an event after the end"
        self.events += bodies

    def on_terminal(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
