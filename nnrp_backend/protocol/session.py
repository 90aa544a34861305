"""Live state of sessions and operations, shared by both roles."""

from typing import Any, Final, NamedTuple

from nnrp_backend.protocol.constants import CONTROL_CAPABILITIES, OUR_TAG_FAMILY, CancelReason
from nnrp_backend.protocol.states import OperationState, SessionState, Trigger, advance

__all__ = ["Operation", "Reservation", "Session", "Trace", "is_ours"]


def is_ours(tag: int) -> bool:
    """Tell whether a session tag is the mark of this implementation, whatever its version."""
    return tag >> 8 == OUR_TAG_FAMILY


class Trace(NamedTuple):
    """What the protocol can carry of a trace: 64 bits of its id, and whether it is sampled."""

    trace_id: int
    span_id: int = 0
    sampled: bool = True


class Reservation:
    """What was said about an operation before its submit."""

    __slots__ = ("control_sequence", "deadline_unix_ms", "frame_id", "priority")

    def __init__(self, frame_id: int) -> None:
        self.frame_id: Final = frame_id
        self.control_sequence = 0
        self.deadline_unix_ms: int | None = None
        self.priority: tuple[int, int] | None = None


class Operation:
    """One operation: an operation id and a frame id bound to each other on a session.

    The same object is handed out in every event of the operation and taken by every verb.
    ``context`` belongs to the caller.
    """

    __slots__ = (
        "cancel_reason",
        "context",
        "control_sequence",
        "credit",
        "deadline_unix_ms",
        "drop_reason",
        "flow_epoch",
        "frame_id",
        "hard",
        "operation_id",
        "priority_class",
        "priority_delta",
        "progress_sequence",
        "result_sequence",
        "retry_after_ms",
        "session",
        "state",
        "trace",
    )

    def __init__(self, session: "Session", operation_id: int, frame_id: int) -> None:
        self.session: Final = session
        self.operation_id: Final = operation_id
        self.frame_id: Final = frame_id
        self.context: Any = None
        self.state = OperationState.ACTIVE
        self.deadline_unix_ms: int | None = None
        self.priority_class = session.priority_class
        self.priority_delta = 0
        self.trace: Trace | None = None
        # Events that may still be sent; None without a window. Below zero when what was pulled
        # became more events than the window had left.
        self.credit: int | None = None
        self.flow_epoch = 0
        self.result_sequence = 0
        self.progress_sequence = 0
        self.control_sequence = 0
        self.retry_after_ms = 0
        self.cancel_reason: int = CancelReason.UNSPECIFIED
        self.hard = False
        self.drop_reason = 0  # what a cancelled operation will be dropped for

    @property
    def done(self) -> bool:
        """Whether the terminal was sent or received, or has become impossible."""
        return self.state is OperationState.DONE

    def advance(self, trigger: Trigger) -> None:
        """Move the state; done operations leave their session."""
        self.state = advance(self.state, trigger)
        if self.state is OperationState.DONE:
            self.session.forget(self)

    def __repr__(self) -> str:
        return (
            f"<Operation {self.operation_id} (frame {self.frame_id}) {self.state.name}"
            f" on session {self.session.session_id}>"
        )


class Session:
    """One session of a connection."""

    __slots__ = (
        "credit",
        "draining",
        "flow_epoch",
        "frames",
        "max_in_flight",
        "operations",
        "peer_is_ours",
        "priority_class",
        "reservations",
        "session_id",
        "state",
        "tokens",
        "trace",
    )

    def __init__(
        self, session_id: int, *, peer_tag: int, max_in_flight: int, priority_class: int
    ) -> None:
        self.session_id: Final = session_id
        self.peer_is_ours: Final = is_ours(peer_tag)
        self.max_in_flight: Final = max_in_flight
        self.priority_class: Final = priority_class
        self.state = SessionState.OPENING
        # Our mark grants everything; a foreign peer grants what it is asked for and agrees to.
        self.tokens: frozenset[str] = CONTROL_CAPABILITIES if self.peer_is_ours else frozenset()
        self.operations: dict[int, Operation] = {}
        self.frames: dict[int, Operation] = {}
        self.reservations: dict[int, Reservation] = {}
        self.credit: int | None = None
        self.flow_epoch = 0
        self.trace: Trace | None = None
        self.draining = False

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent on it."""
        return self.state is SessionState.OPEN

    @property
    def available(self) -> int:
        """Operations that may be submitted now."""
        if not self.is_open or self.draining:
            return 0
        return max(0, self.max_in_flight - len(self.operations))

    def may(self, capability: str) -> bool:
        """Tell whether frames of ``capability`` may be sent."""
        return capability in self.tokens

    def advance(self, trigger: Trigger) -> None:
        """Move the state."""
        self.state = advance(self.state, trigger)

    def register(self, operation: Operation) -> None:
        """Bind an operation's two ids."""
        self.operations[operation.operation_id] = operation
        self.frames[operation.frame_id] = operation

    def forget(self, operation: Operation) -> None:
        """Release an operation's ids; nothing for one that was refused and never registered."""
        if self.operations.get(operation.operation_id) is operation:
            del self.operations[operation.operation_id]
            del self.frames[operation.frame_id]

    def __repr__(self) -> str:
        peer = "ours" if self.peer_is_ours else "foreign"
        draining = ", draining" if self.draining else ""
        return (
            f"<Session {self.session_id} {self.state.name} ({peer}{draining}):"
            f" {len(self.operations)}/{self.max_in_flight} operations>"
        )
