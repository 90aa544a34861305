import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.protocol.capabilities import pack_tokens, unpack_tokens
from nnrp_backend.protocol.constants import CONTROL_CAPABILITIES
from nnrp_backend.protocol.errors import RemoteProtocolError

TOKEN = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)


def entry(text: bytes) -> bytes:
    return struct.pack("<H", len(text)) + text


def test_the_list_of_one_token_as_the_published_runtime_takes_it():
    assert pack_tokens(["control.cancel_abort"]) == b"\x14\x00control.cancel_abort"


def test_what_we_ask_for_is_sorted_and_unique():
    body = pack_tokens([*CONTROL_CAPABILITIES, "control.supersede"])
    tokens = unpack_tokens(body, len(CONTROL_CAPABILITIES))
    assert tokens == sorted(CONTROL_CAPABILITIES)
    assert "payload.typed" not in tokens


@given(st.sets(TOKEN, max_size=20))
def test_round_trip(tokens):
    body = pack_tokens(tokens)
    assert unpack_tokens(body, len(tokens)) == sorted(tokens, key=str.encode)


@given(st.sets(TOKEN, min_size=1, max_size=5), st.data())
def test_cut_or_trailing_lists_are_refused(tokens, data):
    body = pack_tokens(tokens)
    end = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(RemoteProtocolError):
        unpack_tokens(body[:end], len(tokens))
    with pytest.raises(RemoteProtocolError):
        unpack_tokens(body + b"\x01", len(tokens))


def test_the_bounds_themselves_are_allowed():
    longest = ["x" * 255]
    assert unpack_tokens(pack_tokens(longest), 1) == longest
    many = sorted(f"t{n}" for n in range(64))
    assert unpack_tokens(pack_tokens(many), 64) == many


@pytest.mark.parametrize(
    ("body", "count", "complaint"),
    [
        (b"", 1, "the 1 tokens it announces"),
        (entry(b"a"), 0, "the 0 tokens it announces"),
        (entry(b"a") + entry(b"b"), 3, "the 3 tokens it announces"),
        (entry(b"b") + entry(b"a"), 2, "not sorted"),
        (entry(b"a") + entry(b"a"), 2, "not sorted and unique"),
        (entry(b""), 1, "empty"),
        (entry(b"\xc3\xa4"), 1, "not ASCII"),
        (entry(b"x" * 256), 1, "too long"),
        (b"\x05", 1, "cut"),
        (b"\x05\x00abc", 1, "cut"),
        (entry(b"a"), 65, "at most 64"),
    ],
)
def test_malformed_lists_are_refused(body, count, complaint):
    with pytest.raises(RemoteProtocolError, match=complaint):
        unpack_tokens(body, count)


@given(st.binary(max_size=100), st.integers(0, 5))
def test_garbage_is_refused_and_nothing_else(body, count):
    try:
        tokens = unpack_tokens(body, count)
    except RemoteProtocolError:
        return
    assert pack_tokens(tokens) == body
