"""The server's end of one connection: turns events of the core into operations and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nnrp_backend.profile import events as profile_events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.protocol.constants import CancelReason, DropReason
from nnrp_backend.protocol.events import (
    CapabilitiesGranted,
    ConnectionClosed,
    CreditGranted,
    DeadlineChanged,
    Event,
    OperationCancelled,
    OperationSubmitted,
    PriorityChanged,
    ProtocolViolation,
    Refusal,
    SessionOpened,
    SubmitRefused,
)
from nnrp_backend.protocol.server_role import ServerConnection
from nnrp_backend.protocol.session import Operation
from nnrp_backend.server.operation import ServerOperation
from nnrp_backend.transport.stream import ConnectionStream

if TYPE_CHECKING:
    from nnrp_backend.server.server import NnrpServer

__all__ = ["ServerLink"]

#: A refused client may find room as soon as any operation ends.
RETRY_AFTER_MS: Final = 1000

_REFUSALS: Final = {
    Refusal.MALFORMED: ErrorCode.INVALID_SUBMIT_BODY,
    Refusal.DUPLICATE_OPERATION: ErrorCode.DUPLICATE_OPERATION_ID,
    Refusal.TOO_MANY_OPERATIONS: ErrorCode.BACKEND_OVERLOAD,
    Refusal.DRAINING: ErrorCode.SCHEDULER_REJECTED,
}


class ServerLink(ConnectionStream[ServerConnection]):
    """One accepted connection."""

    def __init__(self, server: NnrpServer, core: ServerConnection) -> None:
        super().__init__(core)
        #: Operations in `wait_ready`.
        self.waiting: set[ServerOperation] = set()
        self.operations: set[ServerOperation] = set()
        self._server = server
        self._last_end: float | None = None

    def __repr__(self) -> str:
        return (
            f"<ServerLink {self.peer()} [{len(self.core.sessions)} sessions, "
            f"{len(self.operations)} in flight, {self.unsent} bytes unsent]>"
        )

    # --- events -----------------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        self.core.accept(now)
        self._server.link_opened(self)

    def dispatch(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case OperationSubmitted(operation, payload):
                    self._submit(operation, payload)
                case SubmitRefused(operation, refusal, detail):
                    self._refuse(operation, refusal, detail)
                case CreditGranted(_, None):
                    self.writable()
                case SessionOpened() | CapabilitiesGranted():
                    self._server.report_capacity_to(self)
                case ProtocolViolation(error):
                    self.log_violation(error)
                case ConnectionClosed(error):
                    self.error = self.error or error
                case CreditGranted() | OperationCancelled() | DeadlineChanged() | PriorityChanged():
                    self._tell(event)
                case _:
                    pass  # The core acted on it; there is nobody above to tell.

    def _tell(
        self, event: CreditGranted | OperationCancelled | DeadlineChanged | PriorityChanged
    ) -> None:
        """Pass on what is about one operation, unless it ended within this very read."""
        if event.operation is None or event.operation.context is None:
            return
        operation: ServerOperation = event.operation.context
        match event:
            case CreditGranted():
                operation.wake()
            case OperationCancelled(_, reason, hard):
                operation.tell_cancel(reason, hard=hard)
            case DeadlineChanged(_, unix_ms, discard):
                operation.tell_deadline(unix_ms, discard)
            case PriorityChanged(_, priority_class, delta):
                operation.tell_priority(priority_class, delta)

    def _submit(self, core: Operation, payload: bytes) -> None:
        operation = core.context = ServerOperation(self, core, payload, time.monotonic())
        self.operations.add(operation)
        self._server.operation_started()
        try:
            self._server.service(operation)
        except Exception:
            operation.fail("the service")

    def _refuse(self, operation: Operation, refusal: Refusal, detail: str) -> None:
        error = ProfileError(_REFUSALS[refusal], detail)
        if error.retryable:
            self.core.retry_after(operation, RETRY_AFTER_MS)
        self.core.complete(operation, profile_events.error(error), 503 if error.retryable else 400)

    def writable(self) -> None:
        """Wake everybody who waits for credit or for room to write; each looks for itself."""
        for operation in tuple(self.waiting):
            operation.wake()

    def ended(self, operation: ServerOperation) -> None:
        """Take note of an operation's end."""
        self.operations.discard(operation)
        self._last_end = time.monotonic()
        self._server.operation_ended()
        self.flush_soon()

    # --- the end ----------------------------------------------------------------------------------

    def end_operations(self) -> None:
        """End what is still in flight, in a way that the client hears."""
        for operation in tuple(self.operations):
            operation.tell_cancel(CancelReason.SHUTDOWN, hard=True)
            operation.drop(DropReason.TRANSPORT_CLOSED, "the worker is shutting down")

    def still_reading(self, seconds: float) -> bool:
        """Whether to leave the client some time before its connection closes.

        The published client forgets what it has not polled when its connection closes, answers
        included; our own reads to the end.
        """
        if self.core.peer_is_ours or self._last_end is None:
            return False
        return time.monotonic() - self._last_end < seconds

    def lost(self) -> None:
        self._server.link_lost(self)
