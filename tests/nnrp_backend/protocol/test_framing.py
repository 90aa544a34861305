from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.protocol.constants import ErrorCode, ErrorScope
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.framing import PacketReader
from nnrp_backend.protocol.header import HEADER, Packet
from tests.support.protocol import packet

LIMIT = 1 << 20

CASES = {
    "header only": packet(0x20),
    "metadata only": packet(0x30, b"m" * 32, session=1, frame=2),
    "body only": packet(0x38, b"", b"b" * 7, session=1),
    "both": packet(0x10, b"m" * 72, b"b" * 300, session=1, frame=2, trace=2**64 - 1),
    "large": packet(0x12, b"m" * 64, bytes(range(256)) * 1024, session=0xFFFFFFFF, frame=1),
}
EXPECTED = {
    "header only": Packet(0x20, 0, 0, 0, 0, b"", b""),
    "metadata only": Packet(0x30, 0, 1, 2, 0, b"m" * 32, b""),
    "body only": Packet(0x38, 0, 1, 0, 0, b"", b"b" * 7),
    "both": Packet(0x10, 0, 1, 2, 2**64 - 1, b"m" * 72, b"b" * 300),
    "large": Packet(0x12, 0, 0xFFFFFFFF, 1, 0, b"m" * 64, bytes(range(256)) * 1024),
}


def read(*pieces: bytes, limit: int = LIMIT) -> tuple[list[Packet], PacketReader]:
    reader = PacketReader(limit)
    return [found for piece in pieces for found in reader.feed(piece)], reader


@pytest.mark.parametrize("name", CASES)
class TestEveryPacket:
    def test_whole(self, name):
        packets, reader = read(CASES[name])
        assert packets == [EXPECTED[name]]
        assert type(packets[0]) is Packet
        assert reader.buffered == 0

    def test_byte_by_byte(self, name):
        data = CASES[name]
        reader = PacketReader(LIMIT)
        for position in range(len(data) - 1):
            assert list(reader.feed(data[position : position + 1])) == []
            assert reader.buffered == position + 1
        [found] = reader.feed(data[-1:])
        assert found == EXPECTED[name]
        assert type(found.body) is bytes
        assert reader.buffered == 0

    def test_with_trailing_bytes(self, name):
        trailing = CASES["both"][:41]
        packets, reader = read(CASES[name] + trailing)
        assert packets == [EXPECTED[name]]
        assert reader.buffered == 41
        assert list(reader.feed(CASES["both"][41:])) == [EXPECTED["both"]]

    @pytest.mark.parametrize("cut", [1, 39, 40, 41])
    def test_cut_once_with_more_behind(self, name, cut):
        data = CASES[name]
        packets, reader = read(data[:cut], data[cut:] + CASES["header only"])
        assert packets == [EXPECTED[name], EXPECTED["header only"]]
        assert reader.packets == 2

    def test_nothing_at_all(self, name):
        packets, _ = read(b"", CASES[name][:50], b"", CASES[name][50:], b"")
        assert packets == [EXPECTED[name]]


@given(
    names=st.lists(st.sampled_from(sorted(CASES)), max_size=6),
    cuts=st.lists(st.integers(0, 600_000), max_size=8),
)
def test_where_reads_end_does_not_matter(names, cuts):
    data = b"".join(CASES[name] for name in names)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    packets, reader = read(*pieces)
    assert packets == [EXPECTED[name] for name in names]
    assert reader.buffered == 0
    assert reader.packets == len(names)


def header(magic=b"NNRP", major=1, wire=0, kind=0x10, size=40, meta=72, body=0):
    return HEADER.pack(magic, major, wire, kind, size, 0, meta, body, 1, 1, 0, 0, 0)


BROKEN = {
    "http": (b"GET / HTTP/1.1\r\nhost: example.org\r\n\r\n" + bytes(8), ErrorCode.MALFORMED_HEADER),
    "magic": (header(magic=b"NNRQ"), ErrorCode.MALFORMED_HEADER),
    "version": (header(major=2), ErrorCode.UNSUPPORTED_VERSION),
    "wire format": (header(wire=1), ErrorCode.UNSUPPORTED_VERSION),
    "header length": (header(size=44), ErrorCode.MALFORMED_HEADER),
    "too large": (header(body=LIMIT - 40 - 72 + 1), ErrorCode.LIMIT_EXCEEDED),
    "far too large": (header(meta=0xFFFFFFFF, body=0xFFFFFFFF), ErrorCode.LIMIT_EXCEEDED),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("before", [b"", CASES["both"]], ids=["first", "second"])
class TestBrokenStreams:
    def collect(self, pieces):
        reader, packets = PacketReader(LIMIT), []
        try:
            for piece in pieces:
                for found in reader.feed(piece):
                    packets.append(found)
        except RemoteProtocolError as error:
            return packets, error
        raise AssertionError("the stream was taken")

    def test_whole(self, name, before):
        data, code = BROKEN[name]
        packets, error = self.collect([before + data])
        assert len(packets) == bool(before)
        assert (error.code, error.scope) == (code, ErrorScope.CONNECTION)

    def test_byte_by_byte(self, name, before):
        data, code = BROKEN[name]
        packets, error = self.collect(bytes([byte]) for byte in before + data)
        assert len(packets) == bool(before)
        assert (error.code, error.scope) == (code, ErrorScope.CONNECTION)


def test_the_limit_counts_the_header():
    exact = packet(0x38, b"m" * 40, b"b" * 20)
    for pieces in ([exact], [exact[:40], exact[40:]], [exact[:10], exact[10:]]):
        packets, _ = read(*pieces, limit=100)
        assert len(packets) == 1
    with pytest.raises(RemoteProtocolError, match="a packet of 100 bytes is over the limit of 99"):
        read(exact, limit=99)


def test_the_limit_may_change_between_two_packets_of_one_read():
    reader = PacketReader(40)
    found = []
    for each in reader.feed(CASES["header only"] + CASES["both"]):
        found.append(each)
        reader.limit = LIMIT
    assert found == [EXPECTED["header only"], EXPECTED["both"]]


class Counted(bytes):
    """Bytes that count how much of them was sliced out."""

    sliced = 0

    def __getitem__(self, key):
        taken = bytes(self)[key]
        Counted.sliced += len(taken)
        return taken


def test_a_large_packet_is_collected_in_linear_time():
    size = 4 << 20
    data = packet(0x12, b"m" * 64, b"x" * size, session=1, frame=1)
    reader = PacketReader(size + 1000)
    Counted.sliced = 0
    packets = []
    for position in range(0, len(data), 65536):
        # What is held back grows by what arrived, and by nothing announced.
        assert reader.buffered == position
        packets += reader.feed(Counted(data[position : position + 65536]))
    assert [len(found.body) for found in packets] == [size]
    # Each byte was taken once: a buffer re-read at every read would be far above.
    assert Counted.sliced <= len(data)


def test_an_announced_giant_costs_nothing():
    reader = PacketReader(64 << 20)
    assert list(reader.feed(header(body=(64 << 20) - 112))) == []
    assert reader.buffered == 40
