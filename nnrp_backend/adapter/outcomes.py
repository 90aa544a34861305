"""How operations end, and what an end looks like on the wire."""

from enum import StrEnum
from typing import Final

from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.protocol.constants import CancelReason, DropReason
from nnrp_backend.server import ServerOperation

RETRY_AFTER_MS: Final = 1000
"""Advice where the engine gives none: room may appear as soon as any operation ends."""


class Outcome(StrEnum):
    """The end of one operation; a metric's label."""

    COMPLETED = "completed"
    ERROR = "error"
    """`response.error`, whatever its code."""
    REFUSED = "refused"
    """`response.error` before any engine saw the operation."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    """The total deadline passed."""
    STALLED = "stalled"
    """The engine was silent for too long."""
    LOST = "lost"
    """The connection ended, on whichever side."""


CANCELLED_FOR: Final[dict[int, tuple[Outcome, DropReason]]] = {
    CancelReason.SUPERSEDED: (Outcome.SUPERSEDED, DropReason.SUPERSEDED),
    CancelReason.DEADLINE_EXPIRED: (Outcome.EXPIRED, DropReason.DEADLINE_EXPIRED),
    CancelReason.BUDGET: (Outcome.CANCELLED, DropReason.BUDGET_EXCEEDED),
    CancelReason.TRANSPORT_CLOSING: (Outcome.LOST, DropReason.TRANSPORT_CLOSED),
}
"""What a client's reason for a cancellation means; any other is an ordinary cancellation."""


def cancelled_for(reason: int) -> tuple[Outcome, DropReason]:
    """Return the outcome and the drop reason that answer a cancellation."""
    return CANCELLED_FOR.get(reason, (Outcome.CANCELLED, DropReason.PEER_CANCELLED))


def status_code(error: ProfileError) -> int:
    """Return the `status_code` of a RESULT_PUSH that carries an error: a detail, not an outcome."""
    if error.code == ErrorCode.REQUEST_TIMEOUT:
        return 504
    if error.retryable:
        return 503
    return 400 if error.type == "invalid_request_error" else 500


def refuse(operation: ServerOperation, error: ProfileError) -> None:
    """End an operation with `response.error`, and with advice when to try again where it helps."""
    if error.retryable:
        operation.retry_after(error.retry_after_ms or RETRY_AFTER_MS)
    operation.complete(events.error(error), status_code(error))
