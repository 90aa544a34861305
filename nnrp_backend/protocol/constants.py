"""Numbers of the NNRP/1 wire: message types, enumerations, limits.

Every integer on the wire is little endian. Names follow the published protocol catalogue; an
enumeration lists the values this package uses or understands, and receivers treat other values
as opaque integers unless the field's rule says otherwise.
"""

from enum import IntEnum, IntFlag
from typing import Final

MAGIC: Final = b"NNRP"
VERSION_MAJOR: Final = 1
WIRE_FORMAT: Final = 0
HEADER_LENGTH: Final = 40

# --- limits --------------------------------------------------------------------------------------
# Every provider of the published runtime refuses packets over 64 MiB by closing the connection, so
# a larger one can neither be sent nor expected.
MAX_PACKET_BYTES: Final = 64 * 1024 * 1024
# Nothing before the end of the handshake is larger than a few hundred bytes. A stranger that
# announces more is refused before it can make us buffer it.
MAX_HANDSHAKE_PACKET_BYTES: Final = 64 * 1024
# Operations in flight on one session that a server accepts, and a client asks for.
DEFAULT_MAX_IN_FLIGHT: Final = 1024
# Sessions cost a peer memory and buy nothing over multiplexed operations: few are enough.
DEFAULT_MAX_SESSIONS: Final = 64
# DEADLINE frames that may precede their submit, kept per session; the oldest makes room.
MAX_RESERVATIONS: Final = 256
# The whole published catalogue has 19 tokens.
MAX_CAPABILITY_TOKENS: Final = 64
MAX_CAPABILITY_TOKEN_BYTES: Final = 255
# Diagnostics are one sentence for a person; longer ones are cut, on the way in and out.
MAX_DIAGNOSTIC_BYTES: Final = 1024
# Answers that a peer makes us queue (probe and ping answers, rejections) while it does not read
# what was already sent. Past this it is flooding, and only its own connection pays.
MAX_UNREAD_ANSWERS: Final = 1024
# An incomplete packet that grows by less than this within a client's ``dead_after`` is as good as
# silence: no link that works is that slow.
MIN_PROGRESS_BYTES: Final = 64 * 1024
# Recorded protocol errors kept for inspection.
MAX_RECORDED_ERRORS: Final = 16

# --- recognising our own endpoints ---------------------------------------------------------------
# Carried in client_session_tag and server_session_tag; foreign peers tolerate it. The last byte is
# the version of what the mark promises.
OUR_TAG: Final = 0x4E4E525047570001
OUR_TAG_FAMILY: Final = OUR_TAG >> 8


class MessageType(IntEnum):
    """Message types (NNRP/1 wire, common header, offset 6)."""

    CLIENT_HELLO = 0x01
    SERVER_HELLO_ACK = 0x02
    SESSION_PATCH = 0x03
    SESSION_PATCH_ACK = 0x04
    CLOSE = 0x05
    ERROR = 0x06
    SESSION_OPEN = 0x07
    SESSION_OPEN_ACK = 0x08
    SESSION_CLOSE = 0x09
    SESSION_CLOSE_ACK = 0x0A
    FRAME_SUBMIT = 0x10
    FRAME_CANCEL = 0x11
    RESULT_PUSH = 0x12
    RESULT_DROP = 0x13
    CACHE_PUT = 0x14
    CACHE_ACK = 0x15
    CACHE_INVALIDATE = 0x16
    FLOW_UPDATE = 0x17
    RESULT_HINT = 0x18
    TRANSPORT_PROBE = 0x19
    TRANSPORT_PROBE_ACK = 0x1A
    SESSION_MIGRATE = 0x1B
    SESSION_MIGRATE_ACK = 0x1C
    PING = 0x20
    PONG = 0x21
    CANCEL = 0x30
    ABORT = 0x31
    PRIORITY_UPDATE = 0x32
    DEADLINE = 0x33
    EXPIRE_AT = 0x34
    SUPERSEDE = 0x35
    BUDGET_UPDATE = 0x36
    PROGRESS = 0x37
    PARTIAL_RESULT = 0x38
    BACKPRESSURE = 0x39
    CREDIT_UPDATE = 0x3A
    CAPABILITY_NEGOTIATION = 0x3B
    DEGRADE_PROFILE = 0x3C
    ROUTE_HINT = 0x3D
    EXECUTION_HINT = 0x3E
    TRACE_CONTEXT = 0x3F
    RESULT_DROP_REASON = 0x40
    OBJECT_DECLARE = 0x41
    OBJECT_REF = 0x42
    OBJECT_RELEASE = 0x43
    OBJECT_PATCH = 0x44
    OBJECT_DELTA = 0x45
    CACHE_REFERENCE = 0x46
    CACHE_MISS = 0x47
    ERROR_RECOVERABLE = 0x48
    RETRY_AFTER = 0x49


# Features that are not offered here. Clients answer nothing to them, servers that they are
# unsupported.
UNUSED_BY_CLIENT: Final = frozenset(
    {
        MessageType.RESULT_HINT,
        MessageType.CACHE_ACK,
        MessageType.CACHE_INVALIDATE,
        MessageType.CACHE_MISS,
        MessageType.CACHE_REFERENCE,
        MessageType.EXECUTION_HINT,
        MessageType.ROUTE_HINT,
        MessageType.OBJECT_DECLARE,
        MessageType.OBJECT_REF,
        MessageType.OBJECT_RELEASE,
        MessageType.OBJECT_PATCH,
        MessageType.OBJECT_DELTA,
    }
)
UNUSED_BY_SERVER: Final = frozenset(
    {
        MessageType.BUDGET_UPDATE,
        MessageType.CACHE_INVALIDATE,
        MessageType.CACHE_PUT,
        MessageType.EXECUTION_HINT,
        MessageType.ROUTE_HINT,
        MessageType.OBJECT_DECLARE,
        MessageType.OBJECT_REF,
        MessageType.OBJECT_RELEASE,
        MessageType.OBJECT_PATCH,
        MessageType.OBJECT_DELTA,
        MessageType.SESSION_MIGRATE,
        MessageType.SESSION_PATCH,
    }
)


class Role(IntEnum):
    """Who speaks (``source_role``)."""

    UNSPECIFIED = 0
    CLIENT = 1
    SERVER = 2
    RUNTIME = 3
    SUBAGENT = 4
    TOOL = 5
    SCHEDULER = 6


class PayloadKind(IntFlag):
    """Kinds of typed payload frames; a bitmap in metadata, one bit in a descriptor."""

    TENSOR = 0x01
    TOKEN_CHUNK = 0x02
    AUDIO = 0x04
    VIDEO = 0x08
    STRUCTURED_EVENT = 0x10
    TOOL_DELTA = 0x20
    OPAQUE_BYTES = 0x40


class StreamSemantics(IntEnum):
    """What a typed payload is to the ones before it."""

    UNSPECIFIED = 0
    SNAPSHOT = 1
    APPEND = 2


class PriorityClass(IntEnum):
    """Scheduling class of a session, or of an operation after PRIORITY_UPDATE."""

    INTERACTIVE = 0
    BALANCED = 1
    BACKGROUND = 2


class SessionStatus(IntEnum):
    """``session_status`` of SESSION_OPEN_ACK."""

    OPENED = 0
    REJECTED = 1
    RETRY_LATER = 2
    RESUMED = 3


class SessionErrorCode(IntEnum):
    """Why a session was refused (``session_error_code``)."""

    NONE = 0
    AUTH_FAILED = 0x10001
    PROFILE = 0x10002
    SCHEMA = 0x10003
    PRIORITY = 0x10004
    LEASE = 0x10005
    RESUME = 0x10006
    LIMIT = 0x10007


class CloseStatus(IntEnum):
    """``close_status`` of SESSION_CLOSE_ACK."""

    ACKNOWLEDGED = 0
    DRAINING = 1
    CLOSED = 2
    REJECTED = 3


class CloseReason(IntEnum):
    """``close_reason`` of SESSION_CLOSE."""

    NORMAL = 0
    CLIENT_SHUTDOWN = 1
    SERVER_SHUTDOWN = 2
    IDLE_TIMEOUT = 3
    PROTOCOL_ERROR = 4
    AUTH_REVOKED = 5


class InFlightPolicy(IntEnum):
    """What a closing session does with its operations."""

    DRAIN = 0
    ABORT = 1


class CancelReason(IntEnum):
    """``reason_code`` of CANCEL and ABORT."""

    UNSPECIFIED = 0
    USER_CANCELLED = 1
    SUPERSEDED = 2
    DEADLINE_EXPIRED = 3
    BUDGET = 4
    DEPENDENCY_FAILED = 5
    TRANSPORT_CLOSING = 6
    SHUTDOWN = 7


class ControlFlags(IntFlag):
    """``flags`` of CANCEL and ABORT."""

    COOPERATIVE = 1
    HARD_ABORT = 2


class DropReason(IntEnum):
    """``drop_reason_code`` of RESULT_DROP_REASON; 0 is not allowed on the wire."""

    UNSPECIFIED = 0  # a RESULT_DROP, which carries no reason
    DEADLINE_EXPIRED = 1
    SUPERSEDED = 2
    PEER_CANCELLED = 3
    BACKPRESSURE = 4
    CAPABILITY_MISMATCH = 5
    BUDGET_EXCEEDED = 6
    OBJECT_INVALIDATED = 7
    TRANSPORT_CLOSED = 8
    # Private range (0x8000 and up): the submit reused the frame id of a running operation.
    DUPLICATE_FRAME = 0x8001


class DropFlags(IntFlag):
    """``flags`` of RESULT_DROP_REASON, ERROR_RECOVERABLE and RETRY_AFTER."""

    FINAL = 1
    RETRYABLE = 2


class SchedulingFlags(IntFlag):
    """``flags`` of DEADLINE, EXPIRE_AT and PRIORITY_UPDATE."""

    DISCARD_STALE = 1
    EMIT_DROP_REASON = 2


class Stage(IntEnum):
    """``stage_code`` of PROGRESS and TRACE_CONTEXT."""

    UNSPECIFIED = 0
    QUEUED = 1
    ADMITTED = 2
    INPUT_RECEIVED = 3
    PREPROCESSING = 4
    EXECUTING = 5
    WAITING_DEPENDENCY = 6
    PRODUCING_PARTIAL = 7
    FINALIZING = 8
    COMPLETED = 9
    DROPPED = 0xA
    FAILED = 0xB


PERCENT_UNKNOWN: Final = 0xFFFF


class PressureLevel(IntEnum):
    """``pressure_level`` of CREDIT_UPDATE and BACKPRESSURE; FLOW_UPDATE knows 0 to 2 only."""

    NONE = 0
    SOFT = 1
    HARD = 2
    PAUSED = 3


class PressureReason(IntEnum):
    """``pressure_reason`` of CREDIT_UPDATE and BACKPRESSURE."""

    UNSPECIFIED = 0
    RECEIVER_QUEUE_FULL = 1
    SENDER_QUEUE_FULL = 2
    MEMORY = 3
    BANDWIDTH = 4
    COMPUTE = 5
    DEADLINE = 6
    FAIRNESS = 7


class PressureFlags(IntFlag):
    """Scope of CREDIT_UPDATE and BACKPRESSURE; neither bit means the session."""

    SESSION_SCOPE = 0
    CONNECTION_SCOPE = 1
    OPERATION_SCOPE = 2


class FlowScope(IntEnum):
    """``scope_kind`` of FLOW_UPDATE."""

    CONNECTION = 0
    SESSION = 1
    OPERATION = 2


class FlowReason(IntEnum):
    """``update_reason`` of FLOW_UPDATE."""

    GRANT = 0
    REDUCE = 1
    PAUSE = 2
    RESUME = 3
    CONGESTION = 4


class FlowFlags(IntFlag):
    """``flags`` of FLOW_UPDATE."""

    CREDIT_VALID = 1
    RETRY_AFTER_VALID = 2
    BACKGROUND_ONLY = 4
    DRAIN_IN_FLIGHT_ONLY = 8


class CapabilityFlags(IntFlag):
    """``flags`` of CAPABILITY_NEGOTIATION and DEGRADE_PROFILE."""

    HARD_REQUIREMENT = 1
    DOWNGRADE_ALLOWED = 2


class TraceFlags(IntFlag):
    """``flags`` of TRACE_CONTEXT."""

    SAMPLED = 1
    ERROR = 2


class ErrorCode(IntEnum):
    """``error_code`` of ERROR and ERROR_RECOVERABLE."""

    UNSUPPORTED_VERSION = 0x01
    AUTH_FAILED = 0x02
    INVALID_STATE = 0x03
    MALFORMED_HEADER = 0x04
    MALFORMED_BODY = 0x05
    UNSUPPORTED_CAPABILITY = 0x06
    LIMIT_EXCEEDED = 0x07
    FRAME_EXPIRED = 0x08
    FRAME_CANCELLED = 0x09
    CACHE_MISS = 0x0A
    SERVER_BUSY = 0x0B
    INTERNAL_ERROR = 0x0C


class ErrorScope(IntEnum):
    """``error_scope`` of ERROR and ERROR_RECOVERABLE."""

    CONNECTION = 0
    SESSION = 1
    FRAME = 2


class CacheMissReason(IntEnum):
    """``miss_reason`` of CACHE_MISS."""

    UNKNOWN = 0
    NOT_FOUND = 1


# --- profiles ------------------------------------------------------------------------------------
# The session profile every published server accepts: token deltas. It says nothing about the
# payloads, which are structured events of profile 0.
TOKEN_PROFILE: Final = 2
TOKEN_PROFILE_BIT: Final = 0b10
TOKEN_SCHEMA_ID: Final = 0x1001
TOKEN_SCHEMA_VERSION: Final = 3
# Hello bitmaps the published runtime sends and accepts: profiles TENSOR and TOKEN; payload kinds
# tensor, token, structured event, tool delta and opaque bytes.
HELLO_PROFILES: Final = 0b11
HELLO_PAYLOAD_KINDS: Final = 0x73
LOSS_TOLERANCE_INHERIT: Final = 0xFF


# --- capability tokens ---------------------------------------------------------------------------
class Capability:
    """Tokens of CAPABILITY_NEGOTIATION that this package knows how to use."""

    CANCEL_ABORT: Final = "control.cancel_abort"
    CREDIT_BACKPRESSURE: Final = "control.credit_backpressure"
    DEADLINE_EXPIRE: Final = "control.deadline_expire"
    DEGRADE_PROFILE: Final = "control.degrade_profile"
    PRIORITY_UPDATE: Final = "control.priority_update"
    PROGRESS_PARTIAL: Final = "control.progress_partial"
    RECOVERABLE_ERROR: Final = "control.recoverable_error"
    RESULT_DROP_REASON: Final = "control.result_drop_reason"
    SUPERSEDE: Final = "control.supersede"
    TRACE_CONTEXT: Final = "control.trace_context"
    # Understood when a peer asks for it. Never asked for: the published runtime drops the whole
    # list that holds it.
    PAYLOAD_TYPED: Final = "payload.typed"


# What a client asks a foreign server for, and what our own mark grants.
CONTROL_CAPABILITIES: Final = frozenset(
    {
        Capability.CANCEL_ABORT,
        Capability.CREDIT_BACKPRESSURE,
        Capability.DEADLINE_EXPIRE,
        Capability.DEGRADE_PROFILE,
        Capability.PRIORITY_UPDATE,
        Capability.PROGRESS_PARTIAL,
        Capability.RECOVERABLE_ERROR,
        Capability.RESULT_DROP_REASON,
        Capability.SUPERSEDE,
        Capability.TRACE_CONTEXT,
    }
)
# What a server grants to a foreign client that asks.
SERVED_CAPABILITIES: Final = CONTROL_CAPABILITIES | {Capability.PAYLOAD_TYPED}
