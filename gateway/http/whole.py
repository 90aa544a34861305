"""An answer in one piece, sent when its request has ended."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.asgi import ClientLeftError, send_json
from gateway.http.chat_request import ChatRequest
from gateway.http.disconnect import DisconnectWatch
from gateway.http.edge import Edge
from gateway.observability.metrics import CancelPhase
from gateway.pool import Outcome, OutcomeKind, Ticket, TicketState
from gateway.translate import WholeAnswer
from nnrp_backend.client import Terminal

__all__ = ["WholeResponse"]

logger = logging.getLogger(__name__)


class WholeResponse:
    """One answer that is not streamed. A client that leaves cancels it."""

    __slots__ = ("_edge", "_ended", "_request", "_result", "_status", "_ticket")

    def __init__(self, edge: Edge, request: ChatRequest) -> None:
        self._edge = edge
        self._request = request
        self._ended = False
        self._status = 200
        self._ticket: Ticket | None = None
        self._result: asyncio.Future[WholeAnswer] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<WholeResponse [{'ended' if self._ended else 'waiting'}]>"

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Submit the request, wait for its end, and answer.

        Raises:
            ApiError: the request failed.
            ClientLeftError: the client did not wait; its request was cancelled.
        """
        edge, request = self._edge, self._request
        watch = DisconnectWatch(scope, receive, self, edge.tasks)
        if not watch.start():
            request.meter.end(edge.clock(), 499)
            raise ClientLeftError
        edge.open.add(self)
        try:
            ticket = self._ticket = edge.pool.submit(request.for_pool(), self)
            overhead = request.meter.submitted(edge.clock())
            answer = await self._result
            headers: list[tuple[bytes, bytes]] = []
            if request.diagnostics is not None:
                request.diagnostics.submitted(overhead)
                headers = request.diagnostics.headers(ticket)
            await send_json(send, answer.body, headers=headers)
        finally:
            watch.stop()
            self.on_lost()
            edge.open.discard(self)
            if self._ticket is None:
                request.meter.end(edge.clock(), 500)  # it was never submitted
            del self._result  # an error's traceback holds this frame, and so would hold itself

    # gateway.pool.Sink

    def on_events(self, bodies: list[bytes]) -> None:
        """Take diagnostics; the answer comes in the terminal."""
        if self._request.diagnostics is not None:
            self._request.diagnostics.take(bodies)

    def on_terminal(self, outcome: Outcome) -> None:
        if outcome.terminal is not None:
            self._request.meter.answered(self._request.model)
        if outcome.terminal is None or outcome.kind is OutcomeKind.FAILED:
            self._fail(outcome.error or ApiError.cancelled())
        else:
            self._read(outcome.terminal)
        queued = 0.0 if self._ticket is None else self._ticket.queued_s
        self._request.meter.end(self._edge.clock(), self._status, queued=queued)

    def _read(self, terminal: Terminal) -> None:
        """Take the answer, of which a client that has left still pays the tokens."""
        worker = None if self._ticket is None else self._ticket.worker
        try:
            answer = self._request.read_whole(terminal, worker)
        except ApiError as error:
            self._fail(error)
        except Exception:
            logger.exception("reading the answer to request %s failed", self._request.id)
            self._fail(ApiError.internal())
        else:
            self._request.count(answer.usage)
            if not self._ended:
                self._ended = True
                self._result.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self._ended:
            self._ended = True
            self._status = error.status if isinstance(error, ApiError) else 499
            if not self._result.done():  # it is when the server has cancelled who waits for it
                self._result.set_exception(error)

    # gateway.http.direct.DirectListener

    def on_pause(self) -> None:
        """Nothing to stop: the answer is one write."""

    def on_resume(self) -> None:
        """Nothing to start."""

    def on_lost(self) -> None:
        if self._ended:
            return
        if self._ticket is not None:
            queued = self._ticket.state is TicketState.QUEUED
            self._request.meter.cancelled(CancelPhase.QUEUED if queued else CancelPhase.WHOLE)
        self._end_early(ClientLeftError())

    def _end_early(self, error: Exception) -> None:
        self._fail(error)
        if self._ticket is not None:
            self._ticket.cancel()

    # gateway.http.open_requests.OpenRequest

    def tick(self, now: float) -> None:
        """Nothing is due: the answer has a deadline where the client set one."""

    def shut_down(self, error: ApiError) -> None:
        self._end_early(error)
