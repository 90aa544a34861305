"""What the pool asks of its surroundings, and what it tells them.

A caller submits a `PoolRequest` with a `Sink`. The sink hears raw profile events as they arrive and
then exactly one `Outcome`, whatever happens: an answer, a refusal, a lost worker, its own cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from gateway.errors import ApiError
from nnrp_backend.client import ClientListener, ClientOperation, OperationHandler, Terminal
from nnrp_backend.profile.capabilities import CapabilityRecord

__all__ = [
    "Client",
    "ClientFactory",
    "Clock",
    "LoopClock",
    "Outcome",
    "OutcomeKind",
    "PoolRequest",
    "Sink",
    "Timer",
    "Worker",
]


class Worker(NamedTuple):
    """What a request's payload may depend on: the worker that was picked for it."""

    name: str
    """The configured name, else the endpoint: one label value in metrics."""
    ours: bool
    """The peer showed this project's session mark: `nnrp` extensions and credit are understood."""
    final_chunks: bool
    """Its capability document declares `openai_chunk.final`: chunks can be copied as they are."""


class OutcomeKind(StrEnum):
    """How a request ended for the pool."""

    ANSWERED = "answered"
    """The worker sent RESULT_PUSH. Its body may be `response.error`: translation reads it."""
    FAILED = "failed"
    """Refused, dropped or lost: `error` says what to tell the user."""
    CANCELLED = "cancelled"
    """`Ticket.cancel` was called before the end. A RESULT that crossed it is in `terminal`."""


class Outcome(NamedTuple):
    """The end of a request."""

    kind: OutcomeKind
    error: ApiError | None = None
    """FAILED: always set."""
    terminal: Terminal | None = None
    """What the worker said; None when the request never reached one."""


class Sink(Protocol):
    """Hear one request. Called from the event loop: must neither block nor raise.

    A sink that raises all the same has its request cancelled; others never notice.
    """

    def on_events(self, bodies: list[bytes]) -> None:
        """Take raw profile events that arrived in one read, in order."""

    def on_terminal(self, outcome: Outcome) -> None:
        """Take the end: called exactly once and last, possibly before `Pool.submit` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """One request for some worker.

    Attributes:
        model: the model that must be served, as the user wrote it.
        operation: the profile operation that must be served.
        build: makes the envelope for the picked worker; called once per try, and let go of at the
            first event, so that a large body does not live as long as its stream. May raise
            ApiError.
        deadline: time on the event loop's clock after which nobody wants the answer.
        priority: NNRP priority class (0 interactive, 1 balanced, 2 background), None: unsaid.
    """

    model: str
    operation: str
    build: Callable[[Worker], bytes]
    deadline: float | None = None
    priority: int | None = None


class Client(Protocol):
    """The part of `nnrp_backend.client.NnrpClient` that the pool uses."""

    @property
    def connected(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def peer_is_ours(self) -> bool: ...
    @property
    def granted_in_flight(self) -> int: ...
    @property
    def available(self) -> int: ...

    async def connect(self) -> None: ...
    async def close(self) -> None: ...
    async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None: ...
    def submit(
        self,
        payload: bytes,
        handler: OperationHandler,
        *,
        deadline_unix_ms: int | None = None,
        priority: int | None = None,
    ) -> ClientOperation: ...


#: Makes a client that is not connected yet and reports to the listener.
ClientFactory = Callable[[ClientListener], Client]


class Timer(Protocol):
    """A call that will happen unless it is cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic time and timers; an asyncio event loop is one."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer: ...


class LoopClock:
    """The clock of whichever event loop is running."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback, *args)
