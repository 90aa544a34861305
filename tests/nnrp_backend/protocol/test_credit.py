import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.protocol.constants import FlowScope
from nnrp_backend.protocol.credit import Flow, read_flow
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.header import Packet
from tests.support.protocol import FLOW, HEADER, flow_update, pressure

CREDIT_UPDATE, BACKPRESSURE, FLOW_UPDATE = 0x3A, 0x39, 0x17


def read(data: bytes) -> Flow:
    _, _, _, kind, _, flags, meta, _, session, frame, _, _, trace = HEADER.unpack_from(data)
    return read_flow(
        Packet(kind, flags, session, frame, trace, data[40 : 40 + meta], data[40 + meta :])
    )


def flow(scope, operation=0, window=None, level=0, reason=0, retry=0, draining=False, epoch=None):
    return Flow(scope, operation, window, level, reason, retry, draining, epoch)


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (pressure(CREDIT_UPDATE, 1, 9), flow(FlowScope.SESSION, window=9)),
        (
            pressure(CREDIT_UPDATE, 7, 0, frame=7, flags=2),
            flow(FlowScope.OPERATION, 7, window=0),
        ),
        (pressure(CREDIT_UPDATE, 0, 5, session=0, flags=1), flow(FlowScope.CONNECTION, window=5)),
        (pressure(CREDIT_UPDATE, 0, 5, session=3, flags=1), flow(FlowScope.CONNECTION, window=5)),
        (
            pressure(BACKPRESSURE, 1, 0, level=3, retry_after_ms=100),
            flow(FlowScope.SESSION, window=0, level=3, reason=1, retry=100),
        ),
        (flow_update(credits=(0, 4, 0)), flow(FlowScope.SESSION, window=4, epoch=0)),
        (
            flow_update(session=0, scope=0, credits=(4, 0, 0), epoch=2),
            flow(FlowScope.CONNECTION, window=4, epoch=2),
        ),
        (
            flow_update(scope=2, credits=(0, 0, 4), operation=7, frame=7),
            flow(FlowScope.OPERATION, 7, window=4, epoch=0),
        ),
        # A field that is not valid is not said.
        (
            flow_update(credits=(0, 4, 0), flags=0, retry_after_ms=50, level=2),
            flow(FlowScope.SESSION, level=2, epoch=0),
        ),
        (
            flow_update(flags=8 | 2, reason=2, level=2, retry_after_ms=50),
            flow(FlowScope.SESSION, level=3, retry=50, draining=True, epoch=0),
        ),
    ],
)
def test_two_generations_of_flow_control_are_read_into_one_form(packet, expected):
    assert read(packet) == expected


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        (pressure(CREDIT_UPDATE, 1, 9, session=0), "without a session"),
        (pressure(CREDIT_UPDATE, 7, 9, session=0, flags=2), "without a session"),
        (pressure(CREDIT_UPDATE, 7, 9, flags=3), "at once"),
        (pressure(CREDIT_UPDATE, 7, 9, flags=4), "reserved bits"),
        (pressure(CREDIT_UPDATE, 0, 9, flags=2), "without an operation"),
        (flow_update(session=0), "without a session"),
        (flow_update(scope=3), "unknown scope 3"),
        (flow_update(credits=(1, 4, 0)), "credit of another scope"),
        (flow_update(session=0, scope=0, credits=(1, 0, 4)), "credit of another scope"),
        (flow_update(scope=2, credits=(0, 0, 4)), "an operation is named"),
        (flow_update(operation=7), "an operation is named"),
        (flow_update(flags=0x10), "reserved bits"),
    ],
)
def test_contradictions_are_refused(packet, complaint):
    with pytest.raises(RemoteProtocolError, match=complaint):
        read(packet)


@given(
    kind=st.sampled_from([CREDIT_UPDATE, BACKPRESSURE, FLOW_UPDATE]),
    metadata=st.binary(min_size=FLOW.size, max_size=FLOW.size),
    session=st.integers(0, 2),
)
def test_garbage_is_refused_and_nothing_else(kind, metadata, session):
    try:
        found = read_flow(Packet(kind, 0, session, 0, 0, metadata, b""))
    except RemoteProtocolError:
        return
    assert bool(found.operation_id) is (found.scope is FlowScope.OPERATION)
    assert session or found.scope is FlowScope.CONNECTION
