"""Each message round-trips, agrees with the published codec, and refuses what it must."""

import nnrp.core.messages as published
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnrp.runtime import PartialResultMetadata
from nnrp.runtime.types import SessionCloseMetadata

from nnrp_backend.protocol import messages
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.layout import Layout
from tests.support import protocol as raw
from tests.support.layouts import body_for, check_against_published, field_starts
from tests.support.layouts import messages as generate

LAYOUTS = {name: value for name, value in vars(messages).items() if isinstance(value, Layout)}

# Sizes and, where the published SDK has a codec, its class. Narrowed are the fields whose values it
# takes only from an enumeration.
SPECIFIED = {
    "CLIENT_HELLO": (64, published.ClientHelloMetadata, {}),
    "SERVER_HELLO_ACK": (80, published.ServerHelloAckMetadata, {}),
    "SESSION_OPEN": (
        48,
        published.SessionOpenMetadata,
        {
            "profile_id": st.just(2),
            "priority_class": st.integers(0, 2),
            "schema_id": st.just(0x1001),
            "schema_version": st.just(3),
        },
    ),
    "SESSION_OPEN_ACK": (56, None, {}),
    "SESSION_CLOSE": (
        24,
        SessionCloseMetadata,
        {"close_reason": st.integers(0, 5), "in_flight_policy": st.integers(0, 1)},
    ),
    "SESSION_CLOSE_ACK": (16, None, {}),
    "FRAME_SUBMIT": (72, published.FrameSubmitMetadata, None),
    "RESULT_PUSH": (64, published.ResultPushMetadata, None),
    "PARTIAL_RESULT": (40, PartialResultMetadata, {}),
    "ERROR": (32, published.ErrorMetadata, {"error_scope": st.integers(0, 2)}),
    "TRANSPORT_PROBE": (16, published.TransportProbeMetadata, {}),
    "TRANSPORT_PROBE_ACK": (16, published.TransportProbeAckMetadata, {}),
}


def test_every_layout_is_covered_and_has_its_size():
    assert set(SPECIFIED) == set(LAYOUTS)
    for name, (size, _, _) in SPECIFIED.items():
        assert LAYOUTS[name].size == size


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_round_trip(name, data):
    layout = LAYOUTS[name]
    message = data.draw(generate(layout))
    metadata = layout.pack(message)
    assert len(metadata) == layout.size
    found = layout.unpack(metadata, body_for(layout, message))
    assert found == message
    assert type(found) is type(message)


@pytest.mark.parametrize("name", [name for name, (_, kind, _) in SPECIFIED.items() if kind])
@given(data=st.data())
def test_bytes_are_those_of_the_published_codec(name, data):
    layout, (_, kind, narrowed) = LAYOUTS[name], SPECIFIED[name]
    if narrowed is None:  # tensor fields constrain each other: what structured events leave 0
        narrowed = dict.fromkeys(layout.fields, st.just(0))
        narrowed |= {"payload_kind_bitmap": st.just(0x10), "payload_frame_count": st.just(1)}
        for free in (
            "operation_id",
            "inference_ms",
            "queue_ms",
            "status_code",
            "latency_budget_ms",
        ):
            if free in layout.fields:
                bits = 64 if free == "operation_id" else 16
                narrowed[free] = st.integers(1, 2**bits - 1)
        if "loss_tolerance_policy" in layout.fields:
            narrowed["loss_tolerance_policy"] = st.just(0xFF)
    message = data.draw(generate(layout, **narrowed))
    check_against_published(kind, layout, message)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_byte_belongs_to_one_field(name):
    """Each field moves its own bytes and no other: offsets are those of the wire description."""
    layout = LAYOUTS[name]
    starts = field_starts(layout)
    assert sorted(starts.values()) == list(starts.values())
    for index, start in enumerate(starts.values()):
        values = [0] * len(layout.fields)
        values[index] = 1
        packed = layout.struct.pack(*values)
        assert packed[start] == 1
        assert sum(packed) == 1


OFFSETS = {
    ("SESSION_OPEN", "client_session_tag"): 40,
    ("SESSION_OPEN", "max_in_flight_operations"): 20,
    ("SESSION_OPEN_ACK", "granted_operation_credit"): 16,
    ("SESSION_OPEN_ACK", "max_in_flight_operations"): 18,
    ("SESSION_OPEN_ACK", "server_session_tag"): 36,
    ("SESSION_OPEN_ACK", "session_error_code"): 48,
    ("SESSION_CLOSE_ACK", "session_error_code"): 12,
    ("FRAME_SUBMIT", "operation_id"): 40,
    ("FRAME_SUBMIT", "payload_kind_bitmap"): 64,
    ("RESULT_PUSH", "payload_frame_count"): 60,
    ("PARTIAL_RESULT", "body_bytes"): 32,
    ("SERVER_HELLO_ACK", "max_body_bytes"): 60,
    ("CLIENT_HELLO", "auth_bytes"): 56,
}


@pytest.mark.parametrize(("name", "field"), OFFSETS)
def test_offsets_of_the_fields_we_live_by(name, field):
    assert field_starts(LAYOUTS[name])[field] == OFFSETS[name, field]


def test_defaults_are_what_a_structured_event_needs():
    assert messages.FRAME_SUBMIT.pack(messages.FrameSubmit(operation_id=9)) == raw.SUBMIT.pack(
        *[0] * 17, 9, 0, 0, 0, 0xFF, 0, 0, 0, 0x10, 1, 0
    )
    assert messages.RESULT_PUSH.pack(messages.ResultPush(status_code=200)) == raw.RESULT.pack(
        200, *[0] * 19, 0x10, 1, 0
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("SERVER_HELLO_ACK", {"reserved0": 1}),
        ("SESSION_OPEN", {"reserved": 1}),
        ("SESSION_OPEN", {"session_flags": 0x10}),
        ("SESSION_CLOSE", {"reserved": 1}),
        ("SESSION_CLOSE_ACK", {"reserved0": 1}),
        ("SESSION_CLOSE_ACK", {"reserved1": 1}),
        ("FRAME_SUBMIT", {"operation_id": 0}),
        *[("FRAME_SUBMIT", {"operation_id": 1, f"reserved{n}": 1}) for n in range(5)],
        *[("RESULT_PUSH", {f"reserved{n}": 1}) for n in range(6)],
        ("PARTIAL_RESULT", {"operation_id": 1, "result_sequence": 1, "flags": 4}),
        ("PARTIAL_RESULT", {"operation_id": 1, "result_sequence": 1, "body_bytes": 5}),
        ("ERROR", {"error_code": 1, "diagnostic_bytes": 1}),
        ("TRANSPORT_PROBE", {"probe_id": 1, "probe_payload_bytes": 1}),
        ("TRANSPORT_PROBE_ACK", {"probe_id": 1, "reserved": 1}),
    ],
)
def test_what_receivers_must_refuse(name, values):
    layout = LAYOUTS[name]
    with pytest.raises(RemoteProtocolError):
        layout.unpack(layout.pack(layout.message(**values)))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("difference", [-1, 1])
def test_metadata_of_another_size_is_refused(name, difference):
    layout = LAYOUTS[name]
    with pytest.raises(RemoteProtocolError, match="metadata is"):
        layout.unpack(b"\x01" * (layout.size + difference))
