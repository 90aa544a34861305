"""A streamed answer: profile events in, server-sent events out.

The stream is the pool's sink for its request. A read from the worker's connection calls it, it
translates and writes to the client's transport, all in one turn of the loop and outside of any
task: while tokens flow, no coroutine of the application exists (``gateway.http.direct``). Where the
server lends no writer, the same bytes go the ordinary way (``gateway.http.ordinary``).

* The first event decides the status: what fails before it is an ordinary error answer. Without any
  event for `first_event_grace` seconds the stream begins with a keep-alive comment.
* Afterwards errors travel in band, and the stream ends with ``data: [DONE]``.
* Credit is granted anew when half of the window has been used and the client's socket drains, so a
  slow reader stops its worker. One that takes nothing for `send_timeout` seconds is cancelled.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.asgi import ClientLeftError
from gateway.http.chat_request import ChatRequest
from gateway.http.direct import EXTENSION, DirectWriter
from gateway.http.disconnect import DisconnectWatch, direct_writer
from gateway.http.edge import Edge
from gateway.http.ordinary import send_ready_bytes
from gateway.observability.metrics import CancelPhase
from gateway.pool import Outcome, OutcomeKind, Ticket, TicketState
from gateway.translate import EventStream
from gateway.translate.streams import DONE, KEEP_ALIVE

__all__ = ["TokenStream"]

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_PHASES: Final = {
    TicketState.QUEUED: CancelPhase.QUEUED,
    TicketState.SUBMITTED: CancelPhase.FIRST_EVENT,
}

logger = logging.getLogger(__name__)


class _State(enum.Enum):
    WAITING = "waiting"
    """Nothing is committed: an error would be an ordinary answer."""
    OPEN = "open"
    """The answer is 200, and more is to come."""
    ENDED = "ended"
    """No byte will be added, whether or not the last ones have left."""


class TokenStream:
    """One streamed answer, from submission to the last byte."""

    __slots__ = (
        "_diagnostics",
        "_edge",
        "_error",
        "_events",
        "_grant_at",
        "_held",
        "_held_bytes",
        "_paused_at",
        "_quiet_since",
        "_received",
        "_request",
        "_state",
        "_status",
        "_ticket",
        "_waiter",
        "_writer",
        "_wrote",
    )

    def __init__(self, edge: Edge, request: ChatRequest) -> None:
        self._edge = edge
        self._request = request
        self._diagnostics = request.diagnostics
        self._state = _State.WAITING
        self._status = 200
        self._error: ApiError | None = None
        self._ticket: Ticket | None = None
        self._events: EventStream | None = None
        self._writer: DirectWriter | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._received = 0
        self._grant_at = edge.config.stream.credit // 2
        self._wrote = False
        self._paused_at: float | None = None
        self._quiet_since = edge.clock()

    def __repr__(self) -> str:
        path = "ordinary" if self._writer is None else "direct"
        return f"<TokenStream [{self._state.value}, {path}, {self._received} events]>"

    # The request's coroutine: it returns when a direct stream has begun, or an ordinary one ended.

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Submit the request, wait for what decides the status, and begin the answer.

        Raises:
            ApiError: the request failed before its first event.
            ClientLeftError: the stream, sent the ordinary way, was not taken to its end.
        """
        edge = self._edge
        watch = DisconnectWatch(scope, receive, self, edge.tasks)
        if not watch.start():
            self._request.meter.end(edge.clock(), 499)
            return
        edge.open.add(self)
        try:
            ticket = self._ticket = edge.pool.submit(self._request.for_pool(), self)
            self._submitted()
            while self._state is _State.WAITING:
                await self._wait()
            watch.stop()
            if self._error is not None:
                raise self._error
            if self._status != 499:
                await self._begin(ticket, scope, receive, send)
        finally:
            watch.stop()
            if self._writer is None:
                self.on_lost()
                edge.open.discard(self)
            if self._ticket is None:
                self._request.meter.end(edge.clock(), 500)  # it was never submitted
            self._error = None  # its traceback holds this frame, and so would hold itself

    def _submitted(self) -> None:
        overhead = self._request.meter.submitted(self._edge.clock())
        if self._diagnostics is not None:
            self._diagnostics.submitted(overhead)

    async def _begin(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        headers = list(HEADERS)
        if self._diagnostics is not None:
            headers += self._diagnostics.headers(ticket)
        message: Message = {"type": "http.response.start", "status": 200, "headers": headers}
        writer = direct_writer(scope)
        if writer is not None:
            message[EXTENSION] = writer
        await send(message)
        if writer is not None:
            if writer.attached:
                self._go_direct(writer)
                return
            writer.abandon()
        config = self._edge.config
        try:
            await send_ready_bytes(
                self._ready_bytes(),
                scope,
                receive,
                send,
                send_timeout=config.stream.send_timeout,
                drain_grace=config.drain.grace,
            )
        except TimeoutError:
            self._give_up()
            raise ClientLeftError from None

    def _go_direct(self, writer: DirectWriter) -> None:
        self._writer = writer
        data = self._take()
        if self._state is _State.ENDED:
            self._finish_direct(writer, data)
        else:
            writer.write(data)
            self._wrote = True
            if writer.paused:
                self.on_pause()
            self._grant_if_due()

    async def _ready_bytes(self) -> AsyncIterator[bytes]:
        """Yield what is held; coming back for more means that the client has taken it."""
        while self._held or self._state is not _State.ENDED:
            if self._held:
                yield self._take()
                self._grant_if_due()
            else:
                await self._wait()
        if self._status == 499:
            # Gone or given up: returning would end the body as if it were complete.
            raise ClientLeftError

    async def _wait(self) -> None:
        """Wait for the next change of what is held, or of the state."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # gateway.pool.Sink

    def on_events(self, bodies: list[bytes]) -> None:
        if self._state is _State.ENDED:
            return
        if self._diagnostics is not None:
            self._diagnostics.take(bodies)
        self._received += len(bodies)
        events = self._events or self._first()
        if events is None:
            self._grant_if_due()  # diagnostics cost credit like any event
            return
        data = b""
        try:
            for body in bodies:
                data += events.feed(body)
        except ApiError as error:
            # What came before it is passed on: no token is lost to an error.
            self._pass_on(data)
            self._fail(error)
        except Exception:
            logger.exception("translating for request %s failed", self._request.id)
            self._pass_on(data)
            self._fail(ApiError.internal())
        else:
            self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        writer = self._writer
        if writer is None:
            self._hold(data)
        elif writer.paused and self._is_too_far_behind(writer.buffered):
            self._give_up()
        else:
            writer.write(data)
            self._wrote = self._wrote or data != b""
            if self._received >= self._grant_at and not writer.paused:
                self._grant()

    def on_terminal(self, outcome: Outcome) -> None:
        if outcome.terminal is not None:
            self._request.meter.answered(self._request.model)
        try:
            if self._state is not _State.ENDED:
                self._end(outcome)
            elif self._events is not None and outcome.terminal is not None:
                self._events.end(outcome.terminal)  # nobody reads the bytes; it may tell the usage
        finally:
            self._count_out()

    def _count_out(self) -> None:
        meter = self._request.meter
        meter.events = self._received
        if self._events is not None:
            self._request.count(self._events.usage)
        queued = 0.0 if self._ticket is None else self._ticket.queued_s
        meter.end(self._edge.clock(), self._status, queued=queued)
        self._events = None  # and the error that it may hold

    def _first(self) -> EventStream | None:
        """Return the translator once an event has come that counts; diagnostics do not."""
        ticket, request = self._ticket, self._request
        if ticket is None or ticket.state is not TicketState.STREAMING:
            return None
        request.meter.first_token(self._edge.clock(), request.model)
        return self._translator()

    def _translator(self) -> EventStream:
        if self._events is None:
            worker = None if self._ticket is None else self._ticket.worker
            self._events = self._request.open_stream(worker)
        return self._events

    # Bytes that cannot be written yet: the answer has not begun, or goes the ordinary way.

    def _hold(self, data: bytes) -> None:
        if not data:
            return
        if self._is_too_far_behind(self._held_bytes):
            self._give_up()
            return
        self._held.append(data)
        self._held_bytes += len(data)
        self._wrote = True
        if self._state is _State.WAITING:
            self._state = _State.OPEN
        self._wake()

    def _take(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return data

    # The end, from the worker, from us, or from the client.

    def _end(self, outcome: Outcome) -> None:
        if outcome.terminal is None or outcome.kind is not OutcomeKind.ANSWERED:
            self._fail(outcome.error or ApiError.internal())
            return
        events = self._translator()
        try:
            tail = events.end(outcome.terminal)
        except Exception:
            logger.exception("ending the answer to request %s failed", self._request.id)
            self._fail(ApiError.internal())
        else:
            self._finish(tail, events.error)

    def _fail(self, error: ApiError) -> None:
        if self._state is not _State.ENDED:
            self._finish(self._translator().fail(error), error)
            self._cancel()

    def _finish(self, tail: bytes, error: ApiError | None) -> None:
        if error is not None:
            self._status = error.status
        refused = error is not None and self._state is _State.WAITING
        self._state = _State.ENDED
        if refused:
            self._error = error
        elif self._writer is not None:
            self._finish_direct(self._writer, self._with_diagnostics(tail))
        else:
            self._held.append(self._with_diagnostics(tail))
        self._wake()

    def _finish_direct(self, writer: DirectWriter, tail: bytes) -> None:
        writer.finish(tail)
        if not writer.paused:
            self._edge.open.discard(self)
        # Otherwise `tick` sees to it that the last bytes do not wait for ever.

    def _with_diagnostics(self, tail: bytes) -> bytes:
        if self._diagnostics is None or self._ticket is None:
            return tail
        comment = self._diagnostics.comment(self._ticket)
        return tail.removesuffix(DONE) + comment + DONE  # after it clients stop reading

    def _cancel(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()

    # gateway.http.direct.DirectListener

    def on_pause(self) -> None:
        self._paused_at = self._edge.clock()

    def on_resume(self) -> None:
        self._paused_at = None
        self._grant_if_due()

    def on_lost(self) -> None:
        if self._state is _State.ENDED:
            return
        if self._ticket is not None:
            phase = _PHASES.get(self._ticket.state, CancelPhase.STREAMING)
            self._request.meter.cancelled(phase)
        self._drop()

    def _drop(self) -> None:
        """End without another byte."""
        self._state = _State.ENDED
        self._status = 499
        self._held.clear()
        self._edge.open.discard(self)
        self._wake()
        self._cancel()

    # Slow readers.

    def _grant_if_due(self) -> None:
        if self._received >= self._grant_at and not (self._writer and self._writer.paused):
            self._grant()

    def _grant(self) -> None:
        window = self._edge.config.stream.credit
        self._grant_at = self._received + window // 2
        if self._ticket is not None:
            self._ticket.grant(window)

    def _is_too_far_behind(self, unsent: int) -> bool:
        """Judge by what earlier reads left unsent: one event may be large, and its reader fast."""
        return unsent > self._edge.config.stream.unsent_bytes

    def _give_up(self) -> None:
        self._edge.metrics.stalled_readers += 1
        if self._writer is not None:
            self._writer.abort()
        self._drop()

    # gateway.http.open_requests.OpenRequest

    def tick(self, now: float) -> None:
        config = self._edge.config.stream
        if self._state is _State.WAITING:
            if now - self._quiet_since >= config.first_event_grace:
                self._keep_alive(now)
        elif self._writer is not None and self._writer.closed:
            self._edge.open.discard(self)
        elif self._paused_at is not None:
            if now - self._paused_at >= config.send_timeout:
                self._give_up()
        elif self._wrote:
            self._wrote = False
            self._quiet_since = now
        elif self._state is _State.OPEN and now - self._quiet_since >= config.keep_alive:
            self._keep_alive(now)

    def _keep_alive(self, now: float) -> None:
        if self._writer is not None:
            self._writer.write(KEEP_ALIVE)
        elif not self._held:
            self._hold(KEEP_ALIVE)
        self._wrote = False
        self._quiet_since = now

    def shut_down(self, error: ApiError) -> None:
        self._fail(error)
