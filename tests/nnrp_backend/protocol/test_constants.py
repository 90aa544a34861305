"""The numbers agree with the published catalogue."""

import nnrp.core.enums as published
import nnrp.core.messages as published_messages
import nnrp.runtime as published_runtime
import pytest
from nnrp.capabilities import PREVIEW4_CAPABILITY_TOKENS

from nnrp_backend.protocol import constants as c

SAME_NAMES = [
    (c.MessageType, published.MessageType),
    (c.Role, published_runtime.RuntimeRole),
    (c.CloseReason, published_runtime.SessionCloseReason),
    (c.InFlightPolicy, published_runtime.InFlightPolicy),
    (c.PriorityClass, published_messages.SessionPriorityClass),
    (c.FlowScope, published_messages.FlowUpdateScopeKind),
    (c.FlowReason, published_messages.FlowUpdateReason),
    (c.FlowFlags, published_messages.FlowUpdateFlags),
    (c.ErrorCode, published.ErrorCode),
    (c.ErrorScope, published_messages.ErrorScope),
]


@pytest.mark.parametrize(("ours", "theirs"), SAME_NAMES, ids=lambda enum: enum.__module__)
def test_values_are_those_of_the_published_catalogue(ours, theirs):
    for member in ours:
        assert theirs[member.name] == member.value


def test_every_published_message_type_is_known():
    assert {member.value for member in c.MessageType} == {
        member.value for member in published.MessageType
    }


def test_drop_reasons_are_published_or_private():
    for reason in c.DropReason:
        if reason < 0x8000:
            assert reason in {member.value for member in published_runtime.ResultDropReasonCode}


@pytest.mark.parametrize(
    ("kind", "bit"),
    [("TENSOR", 1), ("TOKEN_CHUNK", 2), ("STRUCTURED_EVENT", 0x10), ("OPAQUE_BYTES", 0x40)],
)
def test_payload_kinds(kind, bit):
    assert c.PayloadKind[kind] == published.PayloadKind[kind] == bit


def test_flow_update_levels_end_below_paused():
    assert max(published_messages.FlowUpdateBackpressureLevel) == c.PressureLevel.HARD
    assert c.PressureLevel.PAUSED > c.PressureLevel.HARD


def test_tokens_are_published_and_the_one_that_spoils_lists_is_never_asked_for():
    published_tokens = set(PREVIEW4_CAPABILITY_TOKENS)
    assert published_tokens >= c.SERVED_CAPABILITIES > c.CONTROL_CAPABILITIES
    assert "payload.typed" not in c.CONTROL_CAPABILITIES


def test_our_mark():
    assert c.OUR_TAG == 0x4E4E525047570001
    assert c.OUR_TAG.to_bytes(8, "big")[:6] == b"NNRPGW"
