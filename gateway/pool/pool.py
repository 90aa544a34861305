"""The pool: which worker serves which request, and when.

Scheduling is one synchronous method, `_assign`: it looks at the queue and the workers, changes
counters, and returns who goes where. `_pump` then submits. It runs after whatever may have made
room: a request came, a terminal came, a worker came or changed.

A request ends exactly once, in `finish`. What it holds while in flight, here and at its worker, is
given back exactly once, in `_release`, when its terminal comes: the answer, the confirmed drop, the
end of the connection, or the end of the client's patience with an unanswered CANCEL.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias

from gateway.errors import ApiError, from_terminal
from gateway.pool.admission import AdmissionQueue
from gateway.pool.backend import Backend, WorkerSpec
from gateway.pool.balancer import Balancer, LeastInFlight
from gateway.pool.interfaces import (
    Client,
    Clock,
    LoopClock,
    Outcome,
    OutcomeKind,
    PoolRequest,
    Sink,
)
from gateway.pool.limits import PoolCounters, PoolLimits
from gateway.pool.retry import MAX_ATTEMPTS, is_death, is_refusal
from gateway.pool.ticket import Place, Ticket, TicketState
from nnrp_backend.client import (
    ClientListener,
    ClientOperation,
    NnrpClient,
    NotConnected,
    PayloadTooLarge,
    Terminal,
    TerminalKind,
    TooManyOperations,
)
from nnrp_backend.protocol.constants import CancelReason
from nnrp_backend.transport.tasks import TaskSet

__all__ = ["Pool"]

logger = logging.getLogger(__name__)

#: Longest wait for the answers to the CANCELs of a shutdown; the client gives up on each after 2 s.
FAREWELL: Final = 2.5

#: Makes a client for a worker; tests bring their own.
Connect: TypeAlias = Callable[[WorkerSpec, ClientListener], Client]


class Pool:
    """Give each request to one of the workers that serve its model.

    Args:
        connect: makes the client of a worker; `NnrpClient` by default.
        balancer: picks among workers with room; the one with the fewest in flight by default.
        clock: monotonic time and timers; the running event loop by default.
        unix_time: wall clock in seconds, for deadlines on the wire.

    Raises:
        ValueError: an endpoint cannot be parsed.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        *,
        limits: PoolLimits | None = None,
        connect: Connect | None = None,
        balancer: Balancer | None = None,
        clock: Clock | None = None,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits or PoolLimits()
        self.counters = PoolCounters()
        self.in_flight = 0
        self._balancer = balancer or LeastInFlight()
        self._clock = clock or LoopClock()
        self._unix_time = unix_time
        connect = connect or self._nnrp_client
        self.workers: tuple[Backend, ...] = tuple(
            Backend(
                spec,
                connect=partial(connect, spec),
                clock=self._clock,
                on_change=self._worker_changed,
            )
            for spec in workers
        )
        self._usable = [False] * len(self.workers)
        self._queue: AdmissionQueue[Ticket] = AdmissionQueue()
        self._tickets: set[Ticket] = set()
        self._tasks = TaskSet("pool")
        self._pumping = False
        self._room_made = False
        self._closing = False
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        states = [worker.state for worker in self.workers]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return (
            f"<Pool [Requests: {self.in_flight} active, {self.queued} queued"
            f" | Workers: {counts or 'none'}]>"
        )

    @property
    def queued(self) -> int:
        """Requests that wait for room."""
        return len(self._queue)

    @property
    def ready(self) -> bool:
        """Whether some worker takes work. May be asked from any thread."""
        return any(worker.is_usable() for worker in self.workers)

    def models(self) -> list[dict[str, Any]]:
        """Return the cards of all models that some worker serves, by what it last said.

        A model stays listed while its worker reconnects: a request for it meanwhile is a matter of
        503, not of 404.
        """
        cards: dict[str, dict[str, Any]] = {}
        for worker in self.workers:
            for card in worker.models():
                cards.setdefault(card["id"], card)
        return list(cards.values())

    async def start(self) -> None:
        """Begin connecting to every worker; does not wait for any."""
        for worker in self.workers:
            self._tasks.start(worker.run(), name=worker.name)

    def wake(self, name: str) -> None:
        """Connect at once to the worker called `name`, which has just come up."""
        for worker in self.workers:
            if worker.name == name:
                worker.wake()

    async def close(self, *, drain_timeout: float = 0.0) -> None:
        """Refuse new requests, let the others end for `drain_timeout` seconds, cancel the rest."""
        self._closing = True
        await self._wait_idle(drain_timeout)
        for ticket in tuple(self._tickets):
            ticket.end_early(_failed(ApiError.shutting_down()), CancelReason.SHUTDOWN)
        await self._wait_idle(FAREWELL)
        self._tasks.cancel_all()
        await self._tasks.join()

    def submit(self, request: PoolRequest, sink: Sink) -> Ticket:
        """Start a request or queue it; the sink hears the rest, refusals included."""
        self.counters.submitted += 1
        ticket = Ticket(self, request, sink)
        self._tickets.add(ticket)
        refusal = self._refusal(request)
        if refusal is not None:
            ticket.end_early(_failed(refusal), CancelReason.UNSPECIFIED)
            return ticket
        ticket.queued_at = self._clock.time()
        self._queue.push(ticket, ticket.lane)
        self._pump()
        if ticket.state is TicketState.QUEUED:
            self._must_wait(ticket)
        return ticket

    # --- scheduling -------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start what can be started. Calls from within, by a sink or a failed start, are noted."""
        self._room_made = True
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._room_made:
                self._room_made = False
                for ticket in self._assign():
                    self._start(ticket)
        finally:
            self._pumping = False

    def _assign(self) -> list[Ticket]:
        """Move every request that can run from the queue to a worker; return them."""
        assigned = []
        now = self._clock.time()
        for ticket, worker in self._queue.take(self._pick):
            self.in_flight += 1
            worker.in_flight += 1
            ticket.place = Place(worker, worker.epoch)
            ticket.worker = worker.worker
            ticket.state = TicketState.SUBMITTED
            ticket.attempts += 1
            ticket.queued_s += now - ticket.queued_at
            self._set_timer(ticket, ticket.deadline, ApiError.deadline_expired)
            assigned.append(ticket)
        return assigned

    def _pick(self, ticket: Ticket) -> Backend | None:
        if self.in_flight >= self.limits.max_in_flight:
            return None
        candidates = [
            worker for worker in self.workers if _fits(worker, ticket) and worker.has_room()
        ]
        return self._balancer.pick(candidates) if candidates else None

    def _start(self, ticket: Ticket) -> None:
        """Submit an assigned request; whatever goes wrong ends it or puts it back."""
        if ticket.ending is not None:  # cancelled by a sink that was called meanwhile
            self._abandon(ticket, ticket.ending)
            return
        try:
            ticket.submitted(self._submit(ticket))
        except (NotConnected, TooManyOperations):
            self._release(ticket)
            ticket.attempts -= 1  # it never got there
            self._requeue(ticket)
        except PayloadTooLarge as error:
            self._abandon(ticket, _failed(ApiError.body_too_large(error.limit)))
        except ApiError as error:
            self._abandon(ticket, _failed(error))
        except Exception:
            logger.exception("%r cannot be submitted", ticket)
            self._abandon(ticket, _failed(ApiError.internal()))

    def _submit(self, ticket: Ticket) -> ClientOperation:
        request, worker, place = ticket.request, ticket.worker, ticket.place
        assert request is not None
        assert worker is not None
        assert place is not None
        client = place.backend.client
        if client is None or place.epoch != place.backend.epoch:
            raise NotConnected(place.backend.name)
        deadline_unix_ms = None
        if request.deadline is not None:
            left = request.deadline - self._clock.time()
            deadline_unix_ms = int((self._unix_time() + left) * 1000)
        return client.submit(
            request.build(worker),
            ticket,
            deadline_unix_ms=deadline_unix_ms,
            priority=request.priority,
        )

    def _requeue(self, ticket: Ticket) -> None:
        """Put a request that has had its turn in front of the others."""
        ticket.place = None
        ticket.operation = None
        ticket.state = TicketState.QUEUED
        ticket.queued_at = self._clock.time()
        # A lane of its own: its head must not hold up those that may go where it may not.
        self._queue.push_front(ticket, (*ticket.lane, ticket.avoid))
        self._set_wait(ticket)

    # --- ends -------------------------------------------------------------------------------------

    def on_terminal(self, ticket: Ticket, terminal: Terminal) -> None:
        """Take a worker's terminal for a ticket: the one place where requests in flight end."""
        self._release(ticket)
        if ticket.ending is not None:
            self._note_unanswered(ticket, terminal)
            self.finish(ticket, ticket.ending._replace(terminal=terminal))
        elif self._moves(ticket, terminal):
            self.counters.retried += 1
            ticket.avoid = ticket.place
            self._requeue(ticket)
        else:
            self.finish(ticket, self._outcome(ticket, terminal))
        self._pump()

    def finish(self, ticket: Ticket, outcome: Outcome) -> None:
        """End a request that holds nothing in flight any more."""
        self._queue.discard(ticket)
        self._tickets.discard(ticket)
        self._set_timer(ticket, None)
        match outcome.kind:
            case OutcomeKind.ANSWERED:
                self.counters.answered += 1
            case OutcomeKind.FAILED:
                self.counters.failed += 1
            case OutcomeKind.CANCELLED:
                self.counters.cancelled += 1
        ticket.deliver(outcome)
        if not self._tickets:
            self._idle.set()

    def _abandon(self, ticket: Ticket, outcome: Outcome) -> None:
        """End a request that was assigned but not submitted."""
        self._release(ticket)
        self.finish(ticket, outcome)

    def _release(self, ticket: Ticket) -> None:
        assert ticket.place is not None
        self.in_flight -= 1
        ticket.place.backend.in_flight -= 1
        self._room_made = True

    def _moves(self, ticket: Ticket, terminal: Terminal) -> bool:
        if ticket.state is not TicketState.SUBMITTED or ticket.attempts >= MAX_ATTEMPTS:
            return False
        # After a death it may wait for the only worker to come back; a refusal says "not now", and
        # that is better passed on, unless there is another worker to ask.
        return is_death(terminal) or (is_refusal(terminal) and self._has_another(ticket))

    def _has_another(self, ticket: Ticket) -> bool:
        assert ticket.place is not None
        here = ticket.place.backend
        return any(_fits(worker, ticket) for worker in self.workers if worker is not here)

    def _outcome(self, ticket: Ticket, terminal: Terminal) -> Outcome:
        if terminal.kind is TerminalKind.RESULT:
            return Outcome(OutcomeKind.ANSWERED, terminal=terminal)
        if terminal.kind is TerminalKind.LOST and ticket.state is TicketState.SUBMITTED:
            # Two workers died over it. A client that retries would go on killing them.
            return _failed(ApiError.worker_lost(retryable=False), terminal)
        return _failed(from_terminal(terminal), terminal)

    def _note_unanswered(self, ticket: Ticket, terminal: Terminal) -> None:
        """A worker that is connected but does not answer a CANCEL is not to be trusted."""
        place = ticket.place
        if terminal.kind is not TerminalKind.LOST or place is None:
            return
        client = place.backend.client
        if client is not None and client.connected and place.epoch == place.backend.epoch:
            self.counters.unanswered_cancels += 1
            place.backend.degrade()

    # --- waiting ----------------------------------------------------------------------------------

    def _must_wait(self, ticket: Ticket) -> None:
        if self.queued > self.limits.max_queue:
            ticket.end_early(_failed(ApiError.queue_full()), CancelReason.UNSPECIFIED)
        else:
            self._set_wait(ticket)

    def _set_wait(self, ticket: Ticket) -> None:
        """Bound the wait of a queued request by what it waits for."""
        waits: list[tuple[float, Callable[[], ApiError]]] = [
            (ticket.queued_at + self.limits.queue_timeout, ApiError.overloaded)
        ]
        if any(_fits(worker, ticket) for worker in self.workers):
            ticket.stranded_at = None
        else:
            if ticket.stranded_at is None:
                ticket.stranded_at = self._clock.time()
            waits.append((ticket.stranded_at + self.limits.patience, ApiError.no_worker))
        if ticket.deadline is not None:
            waits.append((ticket.deadline, ApiError.deadline_expired))
        due, error = min(waits, key=itemgetter(0))
        self._set_timer(ticket, due, error)

    def _set_timer(
        self, ticket: Ticket, due: float | None, error: Callable[[], ApiError] = ApiError.internal
    ) -> None:
        if ticket.timer is not None:
            ticket.timer.cancel()
            ticket.timer = None
        if due is not None:
            delay = max(0.0, due - self._clock.time())
            ticket.timer = self._clock.call_later(delay, self._time_is_up, ticket, error)

    def _time_is_up(self, ticket: Ticket, error: Callable[[], ApiError]) -> None:
        ticket.timer = None
        ticket.end_early(_failed(error()), CancelReason.DEADLINE_EXPIRED)

    def _worker_changed(self) -> None:
        """Look at the queue again: there may be room, or nobody left to wait for."""
        self._pump()
        usable = [worker.is_usable() for worker in self.workers]
        if usable != self._usable:
            self._usable = usable
            for ticket in self._queue:
                self._set_wait(ticket)

    def _refusal(self, request: PoolRequest) -> ApiError | None:
        """Refuse what waiting cannot help."""
        if self._closing:
            return ApiError.shutting_down()
        known = [worker for worker in self.workers if worker.known]
        if not known or any(worker.serves(request.model, request.operation) for worker in known):
            return None
        if any(worker.has_model(request.model) for worker in known):
            return ApiError.unsupported_operation(request.model)
        return ApiError.unknown_model(request.model)

    async def _wait_idle(self, timeout: float) -> None:
        if not self._tickets or timeout <= 0:
            return
        self._idle.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.info("%d requests did not end within %g s", len(self._tickets), timeout)

    def _nnrp_client(self, spec: WorkerSpec, listener: ClientListener) -> NnrpClient:
        return NnrpClient(
            spec.endpoint,
            max_in_flight=self.limits.per_worker_in_flight,
            ssl=spec.ssl,
            listener=listener,
        )


def _fits(worker: Backend, ticket: Ticket) -> bool:
    """Whether a worker may be given a request, now or once it has room."""
    return (
        worker.is_usable()
        and worker.serves(*ticket.lane)
        and ticket.avoid != (worker, worker.epoch)
    )


def _failed(error: ApiError, terminal: Terminal | None = None) -> Outcome:
    return Outcome(OutcomeKind.FAILED, error, terminal)
