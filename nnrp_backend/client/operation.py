"""One submitted operation as the client sees it: events, then exactly one terminal."""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nnrp_backend.protocol.constants import CancelReason
from nnrp_backend.protocol.session import Operation

if TYPE_CHECKING:
    from nnrp_backend.client.link import ClientLink

__all__ = ["ClientOperation", "OperationHandler", "Terminal", "TerminalKind"]

logger = logging.getLogger(__name__)


class TerminalKind(StrEnum):
    """How an operation ended."""

    RESULT = "result"
    """RESULT_PUSH: the worker answered. The body says whether with success or an error."""
    DROPPED = "dropped"
    """RESULT_DROP or RESULT_DROP_REASON: cancelled, expired, superseded, ..."""
    FAILED = "failed"
    """ERROR for this operation, or a terminal that could not be read."""
    LOST = "lost"
    """No answer will come: the connection ended, or a CANCEL was not answered in time."""


class Terminal(NamedTuple):
    """The end of an operation, of whatever kind."""

    kind: TerminalKind
    body: bytes = b""
    """RESULT: the JSON of its typed frame, empty when the worker sent none."""
    drop_reason: int = 0
    """DROPPED: the wire's drop reason code."""
    diagnostic: str = ""
    """A sentence for a log, never for an end user."""
    retry_after_ms: int = 0
    """The worker's advice (RETRY_AFTER), 0 when it gave none."""
    status_code: int = 0
    """RESULT: the wire's status code; an application detail, not the outcome."""


class OperationHandler(Protocol):
    """Hear one operation. Called from the event loop: must neither block nor raise.

    What it raises is logged and cancels its own operation; others never notice.
    """

    def on_events(self, bodies: list[bytes]) -> None:
        """Take the raw JSON events that arrived in one read, in order."""

    def on_progress(self, stage: int, percent_x100: int) -> None:
        """Take a PROGRESS stage code; `percent_x100` is 0xFFFF when unknown."""

    def on_terminal(self, terminal: Terminal) -> None:
        """Take the end: called exactly once, and last."""


class ClientOperation:
    """A handle on one operation in flight. Every verb is a no-op once it is `done`."""

    __slots__ = (
        "_batch",
        "_core",
        "_grace",
        "_handler",
        "_link",
        "done",
        "frame_id",
        "id",
        "submitted_at",
    )

    def __init__(
        self, link: ClientLink, core: Operation, handler: OperationHandler, submitted_at: float
    ) -> None:
        self.id = core.operation_id
        self.frame_id = core.frame_id
        self.submitted_at = submitted_at
        """When it was submitted, on the monotonic clock, in seconds."""
        self.done = False
        self._link = link
        self._core = core
        self._handler: OperationHandler | None = handler
        self._batch: list[bytes] = []
        self._grace: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "done" if self.done else "cancelling" if self._grace else "active"
        return f"<ClientOperation {self.id} {state}>"

    def cancel(self, reason: int = CancelReason.USER_CANCELLED, *, hard: bool = False) -> None:
        """Send CANCEL (ABORT when `hard`), once. The terminal follows, as always."""
        if not self.done and self._link.cancel(self._core, reason, hard) and self._grace is None:
            self._grace = self._link.call_after_grace(self._give_up)

    def grant(self, window: int) -> None:
        """Replace the worker's event window with `window` (CREDIT_UPDATE, operation scope).

        A no-op for a peer that may not hear it.
        """
        if not self.done:
            self._link.grant(self._core, window)

    def set_deadline(self, unix_ms: int) -> None:
        """Replace the absolute deadline, in milliseconds of Unix time (DEADLINE)."""
        if not self.done:
            self._link.set_deadline(self._core, unix_ms)

    def set_priority(self, priority_class: int, delta: int = 0) -> None:
        """Change the priority of work already submitted (PRIORITY_UPDATE)."""
        if not self.done:
            self._link.set_priority(self._core, priority_class, delta)

    # --- called by the link -----------------------------------------------------------------------

    def add_event(self, body: bytes) -> bool:
        """Keep an event for `deliver`; return whether it is the first since the last delivery."""
        self._batch.append(body)
        return len(self._batch) == 1

    def deliver(self) -> None:
        """Hand over the events of one read."""
        batch = self._batch
        if batch:
            self._batch = []
            if self._handler is not None:
                try:
                    self._handler.on_events(batch)
                except Exception:
                    self._disown("on_events")

    def progress(self, stage: int, percent_x100: int) -> None:
        """Hand over a stage, after the events that came before it."""
        self.deliver()
        if self._handler is not None:
            try:
                self._handler.on_progress(stage, percent_x100)
            except Exception:
                self._disown("on_progress")

    def end(self, terminal: Terminal) -> None:
        """Hand over the terminal, after the events that came before it. Only the first counts."""
        if self.done:
            return
        self.deliver()
        self.done = True
        handler, self._handler = self._handler, None
        self._core.context = None  # no cycle is left for the garbage collector
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if handler is not None:
            try:
                handler.on_terminal(terminal)
            except Exception:
                logger.exception("the handler of %r failed in on_terminal", self)

    def _give_up(self) -> None:
        """The CANCEL was never answered: the peer is not to be trusted with the slot's release."""
        if not self.done:
            self._link.abandon(self._core)
            self.end(Terminal(TerminalKind.LOST, diagnostic="no answer to cancel"))

    def _disown(self, method: str) -> None:
        """A handler that raised hears only the terminal from here on."""
        logger.exception("the handler of %r failed in %s", self, method)
        if self._handler is not None:
            self._handler = _OnlyTheEnd(self._handler)
        self.cancel(CancelReason.UNSPECIFIED)


class _OnlyTheEnd:
    """Stands in for a handler that raised."""

    __slots__ = ("_handler",)

    def __init__(self, handler: OperationHandler) -> None:
        self._handler = handler

    def on_events(self, bodies: list[bytes]) -> None:
        pass

    def on_progress(self, stage: int, percent_x100: int) -> None:
        pass

    def on_terminal(self, terminal: Terminal) -> None:
        self._handler.on_terminal(terminal)
