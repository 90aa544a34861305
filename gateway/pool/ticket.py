"""One request on its way through the pool."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gateway.errors import ApiError
from gateway.pool.backend import Backend
from gateway.pool.interfaces import Outcome, OutcomeKind, PoolRequest, Sink, Timer, Worker
from nnrp_backend.client import ClientOperation, Terminal
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import EventType, peek
from nnrp_backend.protocol.constants import CancelReason

if TYPE_CHECKING:
    from gateway.pool.pool import Pool

__all__ = ["Place", "Ticket", "TicketState"]

logger = logging.getLogger(__name__)


class TicketState(StrEnum):
    """Where a request is. Only in the first two may it move to another worker."""

    QUEUED = "queued"
    SUBMITTED = "submitted"
    """Given to a worker, whose engine has not spoken yet."""
    STREAMING = "streaming"
    DONE = "done"


class Place(NamedTuple):
    """Where a request runs: one connection of one worker."""

    backend: Backend
    epoch: int


class Ticket:
    """A handle on one submitted request, and what its worker's connection reports to.

    Attributes:
        model: the model asked for.
        state: see `TicketState`.
        worker: the one of the current or last try, None before the first.
        attempts: workers it was given to.
        queued_s: seconds spent waiting in the queue, all tries together.
        cancelled: `cancel` was called before the end.
    """

    __slots__ = (
        "_ending",
        "_pool",
        "_sink",
        "attempts",
        "avoid",
        "cancelled",
        "deadline",
        "lane",
        "model",
        "operation",
        "place",
        "queued_at",
        "queued_s",
        "request",
        "state",
        "stranded_at",
        "timer",
        "worker",
    )

    def __init__(self, pool: Pool, request: PoolRequest, sink: Sink) -> None:
        self.model = request.model
        self.state = TicketState.QUEUED
        self.worker: Worker | None = None
        self.attempts = 0
        self.queued_s = 0.0
        self.cancelled = False
        # The rest is between the ticket and its pool.
        self.request: PoolRequest | None = request
        self.lane = (request.model, request.operation)
        self.deadline = request.deadline
        self.queued_at = 0.0
        self.stranded_at: float | None = None
        self.place: Place | None = None
        self.avoid: Place | None = None
        self.operation: ClientOperation | None = None
        self.timer: Timer | None = None
        self._pool = pool
        self._sink: Sink | None = sink
        self._ending: Outcome | None = None

    def __repr__(self) -> str:
        where = f" on {self.worker.name}" if self.place and self.worker else ""
        cancelled = ", cancelled" if self.cancelled and self.state is not TicketState.DONE else ""
        return f"<Ticket {self.model} [{self.state}{where}, try {self.attempts}{cancelled}]>"

    def cancel(self) -> None:
        """End the request wherever it is. Idempotent.

        Queued: the outcome comes at once. In flight: CANCEL is sent at once, no event is passed on
        any more, and the outcome comes with the worker's answer to it, or 2 s later without one.
        """
        if self.state is not TicketState.DONE and not self.cancelled:
            self.cancelled = True
            self.end_early(Outcome(OutcomeKind.CANCELLED), CancelReason.USER_CANCELLED)

    def grant(self, window: int) -> None:
        """Replace the worker's event window (CREDIT_UPDATE); a no-op where it cannot be sent."""
        if self.operation is not None and self._ending is None:
            self.operation.grant(window)

    # --- between the ticket and its pool ----------------------------------------------------------

    @property
    def ending(self) -> Outcome | None:
        """How the request will end, whatever the worker still says; None while that is open."""
        return self._ending

    def submitted(self, operation: ClientOperation) -> None:
        """Take the operation that runs the request now."""
        self.operation = operation
        if self._ending is not None:  # decided while the payload was built
            operation.cancel()

    def end_early(self, outcome: Outcome, reason: CancelReason) -> None:
        """Decide the outcome now, unless it is decided. In flight it waits for the terminal."""
        if self._ending is not None or self.state is TicketState.DONE:
            return
        self._ending = outcome
        if self.state is TicketState.QUEUED:
            self._pool.finish(self, outcome)
        elif self.operation is not None:
            self.operation.cancel(reason)

    def deliver(self, outcome: Outcome) -> None:
        """Tell the sink the end, and let go of it: sinks keep their tickets."""
        self.state = TicketState.DONE
        self.request = None
        sink, self._sink = self._sink, None
        assert sink is not None, "a request ends once"
        try:
            sink.on_terminal(outcome)
        except Exception:
            logger.exception("the sink of %r failed in on_terminal", self)

    # --- nnrp_backend.client.OperationHandler -----------------------------------------------------

    def on_events(self, bodies: list[bytes]) -> None:
        sink = self._sink
        if self._ending is not None or sink is None:
            return
        if self.state is TicketState.SUBMITTED and not all(map(_says_nothing, bodies)):
            self.state = TicketState.STREAMING
            self.request = None
        try:
            sink.on_events(bodies)
        except Exception:
            logger.exception("the sink of %r failed in on_events", self)
            outcome = Outcome(OutcomeKind.FAILED, ApiError.internal())
            self.end_early(outcome, CancelReason.UNSPECIFIED)

    def on_progress(self, stage: int, percent_x100: int) -> None:
        pass

    def on_terminal(self, terminal: Terminal) -> None:
        self._pool.on_terminal(self, terminal)


def _says_nothing(body: bytes) -> bool:
    """Tell whether an event is not the engine's: diagnostics come before it has spoken."""
    try:
        return peek(body).type == EventType.DIAGNOSTICS
    except ProfileError:
        return False
