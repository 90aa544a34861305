"""Each control message round-trips, agrees with the published codec, and refuses what it must."""

import nnrp.runtime as published
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnrp.core.messages import FlowUpdateMetadata

from nnrp_backend.protocol import control
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.layout import Layout
from tests.support.layouts import body_for, check_against_published
from tests.support.layouts import messages as generate

LAYOUTS = {name: value for name, value in vars(control).items() if isinstance(value, Layout)}

# Narrowed are the fields whose values the published class takes only from an enumeration or range.
SPECIFIED = {
    "CONTROL_REQUEST": (32, published.ControlRequestMetadata, {}),
    "SCHEDULING": (32, published.SchedulingMetadata, {}),
    "SUPERSEDE": (32, published.SupersedeMetadata, {}),
    "PROGRESS": (32, published.ProgressMetadata, {"percent_x100": st.integers(0, 10_000)}),
    "PRESSURE": (32, published.PressureMetadata, {}),
    "FLOW_UPDATE": (
        32,
        FlowUpdateMetadata,
        {
            "scope_kind": st.just(1),
            "update_reason": st.integers(0, 4),
            "backpressure_level": st.integers(0, 2),
            "connection_credit": st.just(0),
            "operation_credit": st.just(0),
            "operation_id": st.just(0),
            "flags": st.sampled_from([2, 3, 6, 7, 10, 15]),
        },
    ),
    "CAPABILITY_LIST": (32, published.CapabilityMetadata, {}),
    "TRACE_CONTEXT": (32, published.TraceContextMetadata, {}),
    "RESULT_DROP_REASON": (32, published.ResultDropReasonMetadata, {}),
    "RECOVERABLE_ERROR": (32, published.RecoverableErrorMetadata, {}),
    "RETRY_AFTER": (32, published.RetryAfterMetadata, {}),
    "CACHE_REFERENCE": (56, published.CacheReferenceMetadata, {"reuse_scope": st.integers(0, 5)}),
    "CACHE_MISS": (32, published.CacheMissMetadata, {"miss_reason": st.integers(0, 7)}),
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
    found = layout.unpack(metadata, body_for(layout, message))
    assert found == message
    assert type(found) is type(message)


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_bytes_are_those_of_the_published_codec(name, data):
    layout, (_, kind, narrowed) = LAYOUTS[name], SPECIFIED[name]
    message = data.draw(generate(layout, **narrowed))
    check_against_published(kind, layout, message)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("CONTROL_REQUEST", {"operation_id": 1, "flags": 4}),
        ("CONTROL_REQUEST", {"operation_id": 1, "reserved": 1}),
        ("CONTROL_REQUEST", {"operation_id": 1, "diagnostic_bytes": 1}),
        ("SCHEDULING", {"operation_id": 0}),
        ("SCHEDULING", {"operation_id": 1, "flags": 4}),
        ("SUPERSEDE", {"old_operation_id": 0, "new_operation_id": 1}),
        ("SUPERSEDE", {"old_operation_id": 1, "new_operation_id": 0}),
        ("SUPERSEDE", {"old_operation_id": 1, "new_operation_id": 2, "flags": 2}),
        ("PROGRESS", {"operation_id": 1, "body_bytes": 1}),
        ("PRESSURE", {"scope_id": 1, "reserved": 1}),
        ("PRESSURE", {"scope_id": 1, "flags": 4}),
        ("FLOW_UPDATE", {"reserved0": 1}),
        ("FLOW_UPDATE", {"reserved1": 1}),
        ("FLOW_UPDATE", {"flags": 0x10}),
        ("CAPABILITY_LIST", {"flags": 4}),
        ("CAPABILITY_LIST", {"body_bytes": 1}),
        ("TRACE_CONTEXT", {"flags": 4}),
        ("RESULT_DROP_REASON", {"operation_id": 1, "drop_reason_code": 0}),
        ("RESULT_DROP_REASON", {"operation_id": 0, "drop_reason_code": 1}),
        ("RESULT_DROP_REASON", {"operation_id": 1, "drop_reason_code": 1, "reserved": 1}),
        ("RECOVERABLE_ERROR", {"error_code": 1, "flags": 4}),
        ("RETRY_AFTER", {"scope_id": 1, "flags": 4}),
        ("CACHE_REFERENCE", {"cache_namespace": 1, "reserved": 1}),
        ("CACHE_MISS", {"cache_namespace": 1, "reserved": 1}),
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
