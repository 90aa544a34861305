"""Messages that steer operations and flow: fixed metadata.

Field names and order are those of the NNRP/1 wire catalogue. ``control_sequence`` is monotonic per
sender; a receiver ignores what is older than what it has seen for the same operation.
"""

from typing import Final, NamedTuple

from nnrp_backend.protocol.constants import PERCENT_UNKNOWN, Role
from nnrp_backend.protocol.layout import Layout


class ControlRequest(NamedTuple):
    """CANCEL and ABORT. Operation 0 is every operation of the session."""

    operation_id: int
    control_sequence: int = 0
    reason_code: int = 0
    source_role: int = Role.CLIENT
    flags: int = 0
    diagnostic_bytes: int = 0
    reserved: int = 0


class Scheduling(NamedTuple):
    """DEADLINE, EXPIRE_AT and PRIORITY_UPDATE."""

    operation_id: int
    control_sequence: int = 0
    priority_class: int = 0
    priority_delta: int = 0
    deadline_unix_ms: int = 0
    flags: int = 0


class Supersede(NamedTuple):
    """SUPERSEDE: a newer operation makes an older one worthless."""

    old_operation_id: int
    new_operation_id: int
    control_sequence: int = 0
    drop_reason_code: int = 0
    flags: int = 0
    diagnostic_bytes: int = 0


class Progress(NamedTuple):
    """PROGRESS: the operation entered a stage."""

    operation_id: int
    progress_sequence: int = 0
    stage_code: int = 0
    percent_x100: int = PERCENT_UNKNOWN
    object_id: int = 0
    body_bytes: int = 0


class Pressure(NamedTuple):
    """CREDIT_UPDATE and BACKPRESSURE. ``credit_window`` replaces the window before it."""

    scope_id: int
    credit_window: int = 0
    pressure_level: int = 0
    pressure_reason: int = 0
    retry_after_ms: int = 0
    flags: int = 0
    reserved: int = 0


class FlowUpdate(NamedTuple):
    """FLOW_UPDATE: the inherited form of credit and pressure."""

    scope_kind: int = 0
    update_reason: int = 0
    backpressure_level: int = 0
    reserved0: int = 0
    connection_credit: int = 0
    session_credit: int = 0
    operation_credit: int = 0
    reserved1: int = 0
    operation_id: int = 0
    retry_after_ms: int = 0
    credit_epoch: int = 0
    flags: int = 0


class CapabilityList(NamedTuple):
    """CAPABILITY_NEGOTIATION and DEGRADE_PROFILE; the body is the list of tokens."""

    profile_id: int = 0
    capability_count: int = 0
    cost_model_id: int = 0
    preference_rank: int = 0
    limit_bytes: int = 0
    limit_units: int = 0
    body_bytes: int = 0
    flags: int = 0


class TraceContext(NamedTuple):
    """TRACE_CONTEXT: of the session (frame 0), or of one operation."""

    trace_id: int = 0
    span_id: int = 0
    parent_span_id: int = 0
    stage_code: int = 0
    flags: int = 0
    body_bytes: int = 0


class ResultDropReason(NamedTuple):
    """RESULT_DROP_REASON: the terminal of an operation without a result."""

    operation_id: int
    result_sequence: int = 0
    drop_reason_code: int = 0
    source_role: int = Role.SERVER
    flags: int = 0
    diagnostic_bytes: int = 0
    reserved: int = 0


class RecoverableError(NamedTuple):
    """ERROR_RECOVERABLE: something failed; the session and its other operations go on."""

    error_code: int
    error_scope: int = 0
    recovery_action: int = 0
    source_role: int = Role.SERVER
    flags: int = 0
    retry_after_ms: int = 0
    related_session_id: int = 0
    related_frame_id: int = 0
    related_view_id: int = 0
    diagnostic_bytes: int = 0


class RetryAfter(NamedTuple):
    """RETRY_AFTER."""

    scope_id: int
    control_sequence: int = 0
    retry_after_ms: int = 0
    jitter_ms: int = 0
    reason_code: int = 0
    source_role: int = Role.SERVER
    flags: int = 0
    diagnostic_bytes: int = 0


class CacheReference(NamedTuple):
    """CACHE_REFERENCE: use an object of the peer's cache."""

    cache_namespace: int
    profile_id: int = 0
    reuse_scope: int = 0
    cache_key_hi: int = 0
    cache_key_lo: int = 0
    lease_id: int = 0
    producer_trace_id: int = 0
    expiration_hint_ms: int = 0
    metadata_bytes: int = 0
    flags: int = 0
    reserved: int = 0


class CacheMiss(NamedTuple):
    """CACHE_MISS."""

    cache_namespace: int
    profile_id: int = 0
    miss_reason: int = 0
    cache_key_hi: int = 0
    cache_key_lo: int = 0
    diagnostic_bytes: int = 0
    reserved: int = 0


_TWO_FLAGS: Final = {"flags": 0b11}

CONTROL_REQUEST: Final = Layout(
    ControlRequest, "<QQHBBIQ", zero=("reserved",), masks=_TWO_FLAGS, tail="diagnostic_bytes"
)
SCHEDULING: Final = Layout(Scheduling, "<QQHhQI", nonzero=("operation_id",), masks=_TWO_FLAGS)
SUPERSEDE: Final = Layout(
    Supersede,
    "<QQQHHI",
    nonzero=("old_operation_id", "new_operation_id"),
    masks={"flags": 0b1},
    tail="diagnostic_bytes",
)
PROGRESS: Final = Layout(Progress, "<QQHHQI", tail="body_bytes")
PRESSURE: Final = Layout(Pressure, "<QQHHIII", zero=("reserved",), masks=_TWO_FLAGS)
FLOW_UPDATE: Final = Layout(
    FlowUpdate, "<BBBBHHHHQIII", zero=("reserved0", "reserved1"), masks={"flags": 0b1111}
)
CAPABILITY_LIST: Final = Layout(CapabilityList, "<HHHHQQII", masks=_TWO_FLAGS, tail="body_bytes")
TRACE_CONTEXT: Final = Layout(TraceContext, "<QQQHHI", masks=_TWO_FLAGS, tail="body_bytes")
RESULT_DROP_REASON: Final = Layout(
    ResultDropReason,
    "<QQHBBIQ",
    zero=("reserved",),
    nonzero=("operation_id", "drop_reason_code"),
    masks=_TWO_FLAGS,
    tail="diagnostic_bytes",
)
RECOVERABLE_ERROR: Final = Layout(
    RecoverableError, "<IIHBBIIIII", masks=_TWO_FLAGS, tail="diagnostic_bytes"
)
RETRY_AFTER: Final = Layout(RetryAfter, "<QQIIHBBI", masks=_TWO_FLAGS, tail="diagnostic_bytes")
CACHE_REFERENCE: Final = Layout(
    CacheReference, "<IHHQQQQIIII", zero=("reserved",), masks=_TWO_FLAGS, tail="metadata_bytes"
)
CACHE_MISS: Final = Layout(CacheMiss, "<IHHQQII", zero=("reserved",), tail="diagnostic_bytes")
