"""Messages of connections, sessions, submits and results: fixed metadata.

Field names and order are those of the NNRP/1 wire catalogue. Tensor fields, which structured events
leave 0, are kept so that a message re-packs to the bytes it came from.
"""

from typing import Final, NamedTuple

from nnrp_backend.protocol.constants import (
    LOSS_TOLERANCE_INHERIT,
    PayloadKind,
)
from nnrp_backend.protocol.layout import Layout


class ClientHello(NamedTuple):
    """CLIENT_HELLO: what the client can speak."""

    min_version_major: int = 1
    max_version_major: int = 1
    supported_wire_format_bitmap: int = 1
    supported_profile_bitmap: int = 0
    supported_payload_kind_bitmap: int = 0
    supported_codec_bitmap: int = 0
    supported_compression_bitmap: int = 0
    supported_dtype_bitmap: int = 0
    supported_layout_bitmap: int = 0
    cache_digest_bitmap: int = 0
    cache_object_bitmap: int = 0
    cache_namespace_count: int = 0
    max_lane_count: int = 1
    max_cache_entries: int = 0
    max_cache_bytes: int = 0
    target_cadence_x100: int = 0
    latency_budget_ms: int = 0
    quality_tier: int = 0
    degrade_policy: int = 0
    requested_session_id: int = 0
    auth_bytes: int = 0
    control_extension_bytes: int = 0


class ServerHelloAck(NamedTuple):
    """SERVER_HELLO_ACK: what the server chose of it."""

    selected_version_major: int = 1
    selected_wire_format: int = 0
    auth_status: int = 0
    reserved0: int = 0
    session_id: int = 0
    accepted_profile_bitmap: int = 0
    accepted_payload_kind_bitmap: int = 0
    accepted_codec_bitmap: int = 0
    accepted_compression_bitmap: int = 0
    accepted_dtype_bitmap: int = 0
    accepted_layout_bitmap: int = 0
    cache_digest_bitmap: int = 0
    cache_object_bitmap: int = 0
    max_cache_entries: int = 0
    max_cache_bytes: int = 0
    max_lane_count: int = 1
    max_concurrent_frames: int = 0
    target_cadence_x100: int = 0
    latency_budget_ms: int = 0
    quality_tier: int = 0
    degrade_policy: int = 0
    max_body_bytes: int = 0
    token_ttl_ms: int = 0
    retry_after_ms: int = 0
    control_extension_bytes: int = 0
    server_flags: int = 0


class SessionOpen(NamedTuple):
    """SESSION_OPEN: the session a client asks for."""

    requested_session_id: int = 0
    profile_id: int = 0
    priority_class: int = 0
    session_flags: int = 0
    schema_id: int = 0
    schema_version: int = 0
    default_deadline_ms: int = 0
    max_in_flight_operations: int = 0
    reserved: int = 0
    lease_ttl_hint_ms: int = 0
    resume_token_bytes: int = 0
    auth_bytes: int = 0
    session_extension_bytes: int = 0
    client_session_tag: int = 0


class SessionOpenAck(NamedTuple):
    """SESSION_OPEN_ACK: the session, or why there is none.

    A rejection carries the server's own limits, and a diagnostic of ``session_extension_bytes``.
    """

    session_id: int = 0
    accepted_profile_id: int = 0
    accepted_priority_class: int = 0
    session_status: int = 0
    schema_id: int = 0
    schema_version: int = 0
    granted_operation_credit: int = 0
    max_in_flight_operations: int = 0
    lease_ttl_ms: int = 0
    resume_window_ms: int = 0
    resume_token_bytes: int = 0
    session_extension_bytes: int = 0
    server_session_tag: int = 0
    route_scope_id: int = 0
    session_error_code: int = 0
    session_flags_ack: int = 0


class SessionClose(NamedTuple):
    """SESSION_CLOSE."""

    close_reason: int = 0
    in_flight_policy: int = 0
    reserved: int = 0
    drain_timeout_ms: int = 0
    last_operation_id: int = 0
    session_error_code: int = 0
    session_close_tag: int = 0


class SessionCloseAck(NamedTuple):
    """SESSION_CLOSE_ACK. The published client takes no status but 2, closed."""

    close_status: int = 0
    reserved0: int = 0
    reserved1: int = 0
    last_operation_id: int = 0
    session_error_code: int = 0


class FrameSubmit(NamedTuple):
    """FRAME_SUBMIT: a new operation."""

    src_width: int = 0
    src_height: int = 0
    tile_width: int = 0
    tile_height: int = 0
    tile_count: int = 0
    section_count: int = 0
    frame_class: int = 0
    input_profile: int = 0
    tile_index_mode: int = 0
    reserved0: int = 0
    latency_budget_ms: int = 0
    target_fps_x100: int = 0
    retry_of_frame: int = 0
    tile_base_id: int = 0
    camera_bytes: int = 0
    tile_index_bytes: int = 0
    reserved1: int = 0
    operation_id: int = 0
    reserved2: int = 0
    submit_mode: int = 0
    budget_policy: int = 0
    loss_tolerance_policy: int = LOSS_TOLERANCE_INHERIT
    reserved3: int = 0
    object_ref_mask: int = 0
    dependency_frame_id: int = 0
    payload_kind_bitmap: int = PayloadKind.STRUCTURED_EVENT
    payload_frame_count: int = 1
    reserved4: int = 0


class ResultPush(NamedTuple):
    """RESULT_PUSH: the terminal of an operation that was not dropped."""

    status_code: int = 0
    result_flags: int = 0
    section_count: int = 0
    tile_count: int = 0
    active_profile_id: int = 0
    reserved0: int = 0
    inference_ms: int = 0
    queue_ms: int = 0
    server_total_ms: int = 0
    reserved1: int = 0
    tile_base_id: int = 0
    tile_index_bytes: int = 0
    reserved2: int = 0
    reserved3: int = 0
    result_class: int = 0
    applied_budget_policy: int = 0
    reserved4: int = 0
    reused_frame_id: int = 0
    covered_tile_count: int = 0
    dropped_tile_count: int = 0
    payload_kind_bitmap: int = PayloadKind.STRUCTURED_EVENT
    payload_frame_count: int = 1
    reserved5: int = 0


class PartialResult(NamedTuple):
    """PARTIAL_RESULT: one result event, whose body is opaque to the protocol."""

    operation_id: int
    result_sequence: int
    object_id: int = 0
    delta_sequence: int = 0
    body_bytes: int = 0
    flags: int = 0


class Error(NamedTuple):
    """ERROR."""

    error_code: int
    error_scope: int = 0
    is_fatal: int = 0
    retry_after_ms: int = 0
    related_session_id: int = 0
    related_frame_id: int = 0
    related_view_id: int = 0
    diagnostic_bytes: int = 0


class TransportProbe(NamedTuple):
    """TRANSPORT_PROBE: the client's liveness check."""

    probe_id: int
    probe_payload_bytes: int = 0
    client_send_ts_us: int = 0


class TransportProbeAck(NamedTuple):
    """TRANSPORT_PROBE_ACK."""

    probe_id: int
    reserved: int = 0
    server_recv_ts_us: int = 0


CLIENT_HELLO: Final = Layout(ClientHello, "<BBHIIIIIIHHHHIIHHHHIII")
SERVER_HELLO_ACK: Final = Layout(ServerHelloAck, "<BBBBIIIIIIIIIIIHHHHHHIIIII", zero=("reserved0",))
SESSION_OPEN: Final = Layout(
    SessionOpen, "<IHBBIIIHHIIIIQ", zero=("reserved",), masks={"session_flags": 0x0F}
)
SESSION_OPEN_ACK: Final = Layout(SessionOpenAck, "<IHBBIIHHIIIIQIII")
SESSION_CLOSE: Final = Layout(SessionClose, "<HBBIQII", zero=("reserved",))
SESSION_CLOSE_ACK: Final = Layout(SessionCloseAck, "<BBHQI", zero=("reserved0", "reserved1"))
FRAME_SUBMIT: Final = Layout(
    FrameSubmit,
    "<HHHHHHBBBBHHIIIIIQIBBBBIIIHH",
    zero=("reserved0", "reserved1", "reserved2", "reserved3", "reserved4"),
    nonzero=("operation_id",),
)
RESULT_PUSH: Final = Layout(
    ResultPush,
    "<HHHHHHHHHHIIQQBBHIHHIHH",
    zero=("reserved0", "reserved1", "reserved2", "reserved3", "reserved4", "reserved5"),
)
PARTIAL_RESULT: Final = Layout(PartialResult, "<QQQQII", masks={"flags": 0b11}, tail="body_bytes")
ERROR: Final = Layout(Error, "<8I", tail="diagnostic_bytes")
TRANSPORT_PROBE: Final = Layout(TransportProbe, "<IIQ", tail="probe_payload_bytes")
TRANSPORT_PROBE_ACK: Final = Layout(TransportProbeAck, "<IIQ", zero=("reserved",))
