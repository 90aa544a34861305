from hypothesis import given
from hypothesis import strategies as st
from nnrp.core.header import NnrpHeader

from nnrp_backend.protocol.constants import MessageType
from nnrp_backend.protocol.header import HEADER, Packet, pack_header

# The header of a PARTIAL_RESULT of session 1, frame 1, with a body of 349 bytes, as captured from
# the published runtime.
GOLDEN = bytes.fromhex(
    "4e4e5250 01 00 38 28 00000000 28000000 5d010000 01000000 01000000 0000 0000 0000000000000000"
)


def test_the_captured_header():
    assert pack_header(0x38, 40, 349, session_id=1, frame_id=1) == GOLDEN


@given(
    kind=st.sampled_from(list(MessageType)),
    meta_len=st.integers(0, 0xFFFFFFFF),
    body_len=st.integers(0, 0xFFFFFFFF),
    session_id=st.integers(0, 0xFFFFFFFF),
    frame_id=st.integers(0, 0xFFFFFFFF),
    flags=st.integers(0, 0x3F),
    trace_id=st.integers(0, 2**64 - 1),
)
def test_headers_are_those_of_the_published_codec(kind, meta_len, body_len, **fields):
    ours = pack_header(kind, meta_len, body_len, **fields)
    theirs = NnrpHeader.unpack(ours)
    assert theirs.pack() == ours
    assert (theirs.msg_type, theirs.meta_len, theirs.body_len) == (kind, meta_len, body_len)
    for name, value in fields.items():
        assert getattr(theirs, name) == value
    assert (theirs.version_major, theirs.view_id, theirs.route_id) == (1, 0, 0)


def test_a_header_has_40_bytes():
    assert HEADER.size == len(pack_header(MessageType.PING, 0, 0)) == 40


def test_a_packet_is_a_tuple_with_names():
    packet = Packet(0x20, 0, 1, 2, 3, b"m", b"b")
    assert packet[0] == packet.message_type
    assert packet == (0x20, 0, 1, 2, 3, b"m", b"b")
