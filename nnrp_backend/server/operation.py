"""One accepted operation as the server sees it: events out, then exactly one terminal."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.protocol.constants import CancelReason, DropReason
from nnrp_backend.protocol.errors import PacketTooLarge
from nnrp_backend.protocol.session import Operation, Session, Trace

if TYPE_CHECKING:
    from nnrp_backend.server.link import ServerLink

__all__ = ["OperationEvents", "ServerOperation"]

logger = logging.getLogger(__name__)


class OperationEvents(Protocol):
    """Hear what the client says about one operation. Called from the loop: must not block or
    raise. What it raises is logged and drops its own operation; others never notice.
    """

    def on_cancel(self, reason: int, hard: bool) -> None:
        """Stop: CANCEL, ABORT, FRAME_CANCEL, SUPERSEDE, a lost connection or a server's end.

        `reason` (a `CancelReason`) says which. Called at most once. When `operation.done`, the
        client is gone; otherwise it is owed a `drop`.
        """

    def on_deadline(self, unix_ms: int, discard: bool) -> None:
        """A new absolute deadline (DEADLINE, EXPIRE_AT), in milliseconds of Unix time."""

    def on_priority(self, priority_class: int, delta: int) -> None:
        """A new priority (PRIORITY_UPDATE)."""


class ServerOperation:
    """A handle on one operation. Every verb is a no-op once it is `done`.

    The service sets `handler`, sends events while `ready`, and ends the operation with `complete`
    or `drop`.
    """

    __slots__ = (
        "_cancelled",
        "_core",
        "_link",
        "_waiters",
        "done",
        "events_sent",
        "frame_id",
        "handler",
        "id",
        "payload",
        "received_at",
    )

    def __init__(
        self, link: ServerLink, core: Operation, payload: bytes, received_at: float
    ) -> None:
        self.id = core.operation_id
        """The client's number for it: unique within its session only."""
        self.frame_id = core.frame_id
        self.payload = payload
        """The JSON envelope. Empty it once it has been read: it may be megabytes."""
        self.received_at = received_at
        """When it arrived, on the monotonic clock, in seconds."""
        self.handler: OperationEvents | None = None
        self.done = False
        self.events_sent = 0
        self._link = link
        self._core = core
        self._cancelled = False
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        state = "done" if self.done else "cancelled" if self._cancelled else "active"
        return f"<ServerOperation {self.id} {state} [{self.events_sent} events sent]>"

    # --- what the client said ---------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session it came on: `peer_is_ours`, `tokens`."""
        return self._core.session

    @property
    def transport(self) -> str:
        """What carried it: "tcp", "tls", "unix" or "memory"."""
        return self._link.kind

    @property
    def priority_class(self) -> int:
        """Its `PriorityClass`; the session's unless the client said otherwise."""
        return self._core.priority_class

    @property
    def deadline_unix_ms(self) -> int | None:
        """Its absolute deadline so far, in milliseconds of Unix time."""
        return self._core.deadline_unix_ms

    @property
    def trace(self) -> Trace | None:
        """The TRACE_CONTEXT that applied when it was submitted."""
        return self._core.trace

    # --- answering --------------------------------------------------------------------------------

    def set_credit(self, window: int | None) -> None:
        """Set the first event window, which the envelope names; None: unlimited.

        A CREDIT_UPDATE that came together with the submit is newer, and stays.
        """
        if not self.done and self._core.credit is None:
            self._link.core.set_credit(self._core, window)

    @property
    def ready(self) -> bool:
        """Whether an event may be sent: there is credit left, and the connection takes writes.

        It is a question to ask before making events, not a lock: events made from what was already
        pulled from the engine may be sent all the same.
        """
        return not self._link.write_paused and self._link.core.may_send(self._core)

    async def wait_ready(self) -> None:
        """Wait until `ready`. Returns at once when it is, and when the operation is done."""
        while not (self.done or self.ready):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._link.waiting.add(self)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
                if not self._waiters:
                    self._link.waiting.discard(self)

    def send_event(self, body: bytes) -> None:
        """Send one raw JSON event (PARTIAL_RESULT); takes one credit."""
        if self.done:
            return
        try:
            if not self._link.core.send_partial(self._core, body):
                return
        except PacketTooLarge as error:
            handler = self.handler
            self._too_large(error)
            self._stop(handler, CancelReason.BUDGET, hard=True)
            return
        self.events_sent += 1
        self._link.flush_soon()

    def send_progress(self, stage: int, percent_x100: int = 0xFFFF) -> None:
        """Send a PROGRESS stage code, where the client may hear it."""
        if not self.done and self._link.core.send_progress(self._core, stage, percent_x100):
            self._link.flush_soon()

    def retry_after(self, ms: int) -> None:
        """Advise when to try again, where the client may hear it; precedes `complete`."""
        if not self.done and self._link.core.retry_after(self._core, ms):
            self._link.flush_soon()

    def complete(self, body: bytes, status_code: int = 200) -> bool:
        """End with RESULT_PUSH. `body` is one terminal event as JSON. Costs no credit.

        A body that fits no packet becomes the error `result_too_large`; one for a client that has
        yet to read hundreds of megabytes, a drop for back-pressure: then it returns False.
        """
        if self.done:
            return False
        if not self._link.has_room(len(body)):
            self.drop(DropReason.BACKPRESSURE, "the client does not read")
            return False
        try:
            sent = self._link.core.complete(self._core, body, status_code)
        except PacketTooLarge as error:
            self._too_large(error)
            return False
        self._finish()
        return sent

    def drop(self, reason: int, diagnostic: str = "") -> None:
        """End with RESULT_DROP_REASON, in the form that answers a CANCEL when there was one.

        Args:
            reason: a `DropReason`; after a CANCEL the client's own reason is the one sent.
        """
        if not self.done:
            self._link.core.drop(self._core, reason, diagnostic)
            self._finish()

    def _too_large(self, error: PacketTooLarge) -> None:
        refusal = ProfileError(ErrorCode.RESULT_TOO_LARGE, f"The result is too large: {error}.")
        self._link.core.complete(self._core, events.error(refusal), 500)
        self._finish()

    def abort_connection(self) -> None:
        """Close the whole connection at once, as if the process had died."""
        self._link.abort()

    # --- called by the link -----------------------------------------------------------------------

    def tell_cancel(self, reason: int, *, hard: bool) -> None:
        """Tell the handler to stop; without one, or when it fails, drop the operation here."""
        handler = self.handler
        if self._core.done:
            self._finish()  # first, so that the handler finds nothing left to answer
        self._stop(handler, reason, hard=hard)

    def _stop(self, handler: OperationEvents | None, reason: int, *, hard: bool) -> None:
        if self._cancelled and handler is not None:
            return
        self._cancelled = True
        try:
            if handler is not None:
                handler.on_cancel(reason, hard)
                return
        except Exception:
            logger.exception("the handler of %r failed in on_cancel", self)
        self.drop(DropReason.PEER_CANCELLED)

    def tell_deadline(self, unix_ms: int, discard: bool) -> None:
        try:
            if self.handler is not None:
                self.handler.on_deadline(unix_ms, discard)
        except Exception:
            self._fail("on_deadline")

    def tell_priority(self, priority_class: int, delta: int) -> None:
        try:
            if self.handler is not None:
                self.handler.on_priority(priority_class, delta)
        except Exception:
            self._fail("on_priority")

    def fail(self, what: str) -> None:
        """Log the exception at hand and end the operation with a generic error."""
        logger.exception("%s failed for %r", what, self)
        refusal = ProfileError(ErrorCode.ADAPTER_RUNTIME_ERROR, "The adapter failed.")
        self.complete(events.error(refusal), 500)

    def wake(self) -> None:
        """Let those in `wait_ready` look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, method: str) -> None:
        handler = self.handler
        self.fail(method)
        self._stop(handler, CancelReason.UNSPECIFIED, hard=True)

    def _finish(self) -> None:
        if not self.done:
            self.done = True
            self.wake()
            # No cycles are left for the garbage collector: payloads may be megabytes.
            self.handler = self._core.context = None
            self._link.ended(self)
