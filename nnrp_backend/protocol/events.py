"""What a connection reports: the events that ``receive_data`` and ``handle_deadline`` return.

Dispatch on their type. ``operation`` and ``session`` are the live objects of
``nnrp_backend.protocol.session``: their state is already what the event says.

=====================  ======  =====================================================================
event                  role    meaning
=====================  ======  =====================================================================
Connected              both    the hello exchange is done
SessionOpened          both    submits may be sent, or will come
SessionRejected        client  the server refused the session; the connection lives
SessionClosed          both    nothing more is sent or taken on this session
CapabilitiesGranted    both    negotiation with a foreign peer ended (maybe with nothing granted)
PartialReceived        client  one result event
ProgressReceived       client  the operation entered a stage
RetryAdvised           client  the server said when a retry makes sense
OperationEnded         client  the terminal; nothing follows for this operation
PressureReported       client  how much more the server can take
PeerDraining           client  the server takes no new operations
ProbeAcknowledged      client  the server answered a probe
ProbeMissed            client  nothing at all came since the last probe
OperationSubmitted     server  a new operation; it is owed exactly one terminal
SubmitRefused          server  an operation that must not run; it is owed one terminal too
OperationCancelled     server  stop working; the terminal owed is a drop, unless ``operation.done``
DeadlineChanged        server  the operation got a new deadline
PriorityChanged        server  the operation got a new priority
CreditGranted          server  more events may be sent
PongReceived           both    the peer answered a ping
PeerErrorReceived      both    the peer sent ERROR or ERROR_RECOVERABLE
ProtocolViolation      both    the peer broke the protocol; recorded, answered, survived
ConnectionClosed       both    the end; always the last event
=====================  ======  =====================================================================
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from nnrp_backend.protocol.errors import ProtocolError, RemoteProtocolError
from nnrp_backend.protocol.session import Operation, Session


class Outcome(StrEnum):
    """How an operation ended, seen from the client."""

    RESULT = "result"
    """RESULT_PUSH. Its body may still be a ``response.error``: read it."""
    DROPPED = "dropped"
    """RESULT_DROP or RESULT_DROP_REASON."""
    FAILED = "failed"
    """ERROR for this operation, or a terminal that could not be read."""
    LOST = "lost"
    """The connection or the session ended first."""


class Refusal(StrEnum):
    """Why a submit must not run."""

    MALFORMED = "malformed"
    DUPLICATE_OPERATION = "duplicate_operation"
    TOO_MANY_OPERATIONS = "too_many_operations"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Connected:
    """The hello exchange is done."""


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session is open."""

    session: Session


@dataclass(frozen=True, slots=True)
class SessionRejected:
    """The server refused a session; another may be tried on this connection."""

    code: int
    """A ``SessionErrorCode``, or another number a foreign server chose."""
    retry_later: bool
    """The refusal is about now, not about what was asked."""
    diagnostic: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session is closed; its operations have already been reported as ended."""

    session: Session


@dataclass(frozen=True, slots=True)
class CapabilitiesGranted:
    """Negotiation ended: ``session.tokens`` is what may be sent."""

    session: Session
    tokens: frozenset[str]


class PartialReceived(NamedTuple):
    """One result event of an operation.

    A tuple, unlike the others: there is one for every token of every stream.
    """

    operation: Operation
    body: bytes
    """One JSON object, as sent."""


@dataclass(frozen=True, slots=True)
class ProgressReceived:
    """The operation entered a stage."""

    operation: Operation
    stage: int
    percent_x100: int
    """0 to 10000, or 0xFFFF when unknown."""


@dataclass(frozen=True, slots=True)
class RetryAdvised:
    """The server said when a retry makes sense; a terminal follows."""

    operation: Operation | None
    """``None``: meant for the whole session."""
    retry_after_ms: int
    jitter_ms: int


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """The terminal of an operation: exactly one, and its last event."""

    operation: Operation
    outcome: Outcome
    body: bytes = b""
    """JSON of a ``RESULT``; empty for an empty success and for every other outcome."""
    status_code: int = 0
    drop_reason: int = 0
    diagnostic: str = ""
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class PressureReported:
    """How much more the server can take: its free operation slots and its pressure."""

    session: Session | None
    """``None``: the whole connection."""
    window: int | None
    """``None``: not said."""
    level: int
    reason: int
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class PeerDraining:
    """The server takes no new operations; those in flight end normally."""

    session: Session | None
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class ProbeAcknowledged:
    """The server answered a TRANSPORT_PROBE."""

    rtt: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class ProbeMissed:
    """A probe went unanswered and nothing else came either."""

    silence: float
    """Seconds since the last byte from the server."""


@dataclass(frozen=True, slots=True)
class OperationSubmitted:
    """A new operation. Answer with partials and exactly one of ``complete`` or ``drop``."""

    operation: Operation
    payload: bytes
    """The JSON envelope, taken out of its typed frame."""


@dataclass(frozen=True, slots=True)
class SubmitRefused:
    """A submit that must not run. Answer with ``complete`` (a ``response.error`` body)."""

    operation: Operation
    refusal: Refusal
    detail: str


@dataclass(frozen=True, slots=True)
class OperationCancelled:
    """Stop working on an operation.

    When ``operation.done`` the peer can no longer be answered (the session or the connection is
    gone); otherwise the operation is owed a ``drop``.
    """

    operation: Operation
    reason: int
    """A ``CancelReason``."""
    hard: bool


@dataclass(frozen=True, slots=True)
class DeadlineChanged:
    """The operation got a deadline, or another one."""

    operation: Operation
    unix_ms: int
    discard: bool
    """The client has no use for work finished later."""


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """The operation got another priority."""

    operation: Operation
    priority_class: int
    delta: int


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """A credit window was replaced."""

    session: Session | None
    operation: Operation | None
    """Both ``None``: every operation of the connection. Only the session: all of its own."""


@dataclass(frozen=True, slots=True)
class PongReceived:
    """The peer answered a PING."""


@dataclass(frozen=True, slots=True)
class PeerErrorReceived:
    """The peer sent ERROR or ERROR_RECOVERABLE."""

    operation: Operation | None
    code: int
    scope: int
    fatal: bool
    retry_after_ms: int
    diagnostic: str


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """The peer broke the protocol; the connection lives on unless ``error.fatal``."""

    error: RemoteProtocolError


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection is over: flush what is queued, then close the transport."""

    error: ProtocolError | None
    """``None`` when the peer, or we, closed in good order."""


Event = (
    Connected
    | SessionOpened
    | SessionRejected
    | SessionClosed
    | CapabilitiesGranted
    | PartialReceived
    | ProgressReceived
    | RetryAdvised
    | OperationEnded
    | PressureReported
    | PeerDraining
    | ProbeAcknowledged
    | ProbeMissed
    | OperationSubmitted
    | SubmitRefused
    | OperationCancelled
    | DeadlineChanged
    | PriorityChanged
    | CreditGranted
    | PongReceived
    | PeerErrorReceived
    | ProtocolViolation
    | ConnectionClosed
)
