from typing import NamedTuple

import pytest

from nnrp_backend.protocol.constants import ErrorCode
from nnrp_backend.protocol.errors import LocalProtocolError, RemoteProtocolError
from nnrp_backend.protocol.layout import Layout


class Message(NamedTuple):
    name: int
    reserved: int = 0
    flags: int = 0
    tail: int = 0


LAYOUT = Layout(
    Message,
    "<IHBB",
    zero=("reserved",),
    nonzero=("name",),
    masks={"flags": 0b101},
    tail="tail",
)


def test_packs_in_field_order():
    assert LAYOUT.size == 8
    assert LAYOUT.fields == ("name", "reserved", "flags", "tail")
    assert LAYOUT.pack(Message(1, 0, 4, 2)) == b"\x01\x00\x00\x00\x00\x00\x04\x02"


def test_unpacks_what_it_packed():
    assert LAYOUT.unpack(b"\x01\x00\x00\x00\x00\x00\x04\x02", b"xy") == Message(1, 0, 4, 2)


@pytest.mark.parametrize(
    ("metadata", "body", "complaint"),
    [
        (b"", b"", "metadata is 0 bytes, must be 8"),
        (bytes(7), b"", "metadata is 7 bytes, must be 8"),
        (bytes(9), b"", "metadata is 9 bytes, must be 8"),
        (LAYOUT.pack(Message(1, reserved=3)), b"", "reserved field reserved is 3"),
        (LAYOUT.pack(Message(0)), b"", "name must not be 0"),
        (LAYOUT.pack(Message(1, flags=2)), b"", "flags has reserved bits set: 0x2"),
        (LAYOUT.pack(Message(1, tail=1)), b"", "tail is 1, the body has 0 bytes"),
        (LAYOUT.pack(Message(1, tail=1)), b"xy", "tail is 1, the body has 2 bytes"),
    ],
)
def test_refuses_what_the_rules_forbid(metadata, body, complaint):
    with pytest.raises(RemoteProtocolError) as caught:
        LAYOUT.unpack(metadata, body)
    assert caught.value.detail == complaint
    assert caught.value.code is ErrorCode.MALFORMED_BODY
    assert not caught.value.fatal


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_value_that_does_not_fit_is_our_mistake(value):
    with pytest.raises(LocalProtocolError, match=f"Message\\(name={value}"):
        LAYOUT.pack(Message(value))


def test_without_rules_anything_goes():
    plain = Layout(Message, "<IHBB")
    assert plain.unpack(b"\x00\x00\x00\x00\x03\x00\xff\x09", b"") == Message(0, 3, 255, 9)
