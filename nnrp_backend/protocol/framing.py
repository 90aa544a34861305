"""Cut packets out of a byte stream.

Reads end anywhere. A packet that lies whole inside one read is sliced straight out of it. Only a
packet that spans reads is collected in a buffer, which grows by what arrived (never by what a
header announces) and is copied once, when the packet is complete: a 64 MiB packet arriving in
64 KiB reads costs time linear in its size.
"""

from collections.abc import Iterator

from nnrp_backend.protocol.constants import (
    HEADER_LENGTH,
    MAGIC,
    VERSION_MAJOR,
    WIRE_FORMAT,
    ErrorCode,
    ErrorScope,
)
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.header import HEADER, Packet

__all__ = ["PacketReader"]

_HeaderFields = tuple[bytes, int, int, int, int, int, int, int, int, int, int, int, int]


class PacketReader:
    """Turn reads into packets.

    ``limit`` is the largest packet accepted, header included; it may change between packets.
    """

    __slots__ = ("_missing", "_partial", "limit", "packets")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.packets = 0
        self._partial = bytearray()
        self._missing = 0  # bytes until the header, or after it the packet, is complete

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete packet held back."""
        return len(self._partial)

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Yield the packets that ``data`` completes, in order.

        Raises:
            RemoteProtocolError: the stream is not NNRP/1, or a packet is over the limit. The place
                of the next packet is unknown then: nothing more can be read.
        """
        position = 0
        while self._partial:
            taken = data[position : position + self._missing]
            position += len(taken)
            self._partial += taken
            self._missing -= len(taken)
            if not self._missing and len(self._partial) == HEADER_LENGTH:
                self._missing = self._announced(self._partial)
            if self._missing:
                if position == len(data):
                    return
                continue
            yield self._complete()

        end = len(data)
        total = HEADER_LENGTH
        while end - position >= HEADER_LENGTH:
            fields: _HeaderFields = HEADER.unpack_from(data, position)
            magic, version, wire, kind, length, flags, meta, body, session, frame, _, _, trace = (
                fields
            )
            total = HEADER_LENGTH + meta + body
            if (
                magic != MAGIC
                or version != VERSION_MAJOR
                or wire != WIRE_FORMAT
                or length != HEADER_LENGTH
                or total > self.limit
            ):
                raise _header_error(fields, self.limit)
            if position + total > end:
                break
            body_at = position + HEADER_LENGTH + meta
            self.packets += 1
            # tuple.__new__ takes half the time of Packet(...).
            yield tuple.__new__(
                Packet,
                (
                    kind,
                    flags,
                    session,
                    frame,
                    trace,
                    data[position + HEADER_LENGTH : body_at],
                    data[body_at : position + total],
                ),
            )
            position += total
        if rest := end - position:
            self._partial += data[position:]
            self._missing = (total if rest >= HEADER_LENGTH else HEADER_LENGTH) - rest

    def _announced(self, header: bytearray) -> int:
        """Return how many bytes follow a complete header."""
        fields: _HeaderFields = HEADER.unpack(header)
        following = fields[6] + fields[7]
        if (
            fields[:3] != (MAGIC, VERSION_MAJOR, WIRE_FORMAT)
            or fields[4] != HEADER_LENGTH
            or HEADER_LENGTH + following > self.limit
        ):
            raise _header_error(fields, self.limit)
        return following

    def _complete(self) -> Packet:
        """Take the complete packet out of the buffer."""
        whole = memoryview(self._partial)
        self._partial = bytearray()
        self.packets += 1
        _, _, _, kind, _, flags, meta, _, session, frame, _, _, trace = HEADER.unpack_from(whole)
        body_at = HEADER_LENGTH + meta
        return Packet(
            kind,
            flags,
            session,
            frame,
            trace,
            bytes(whole[HEADER_LENGTH:body_at]),
            bytes(whole[body_at:]),
        )


def _header_error(fields: _HeaderFields, limit: int) -> RemoteProtocolError:
    magic, version, wire, kind, length, _, meta, body, *_ = fields
    total = HEADER_LENGTH + meta + body
    code = ErrorCode.MALFORMED_HEADER
    if magic != MAGIC:
        return RemoteProtocolError("not an NNRP packet", code=code, scope=ErrorScope.CONNECTION)
    if (version, wire) != (VERSION_MAJOR, WIRE_FORMAT):
        code = ErrorCode.UNSUPPORTED_VERSION
        detail = f"version {version} with wire format {wire} is not spoken here"
    elif length != HEADER_LENGTH:
        detail = f"header length is {length}, must be {HEADER_LENGTH}"
    else:
        code = ErrorCode.LIMIT_EXCEEDED
        detail = f"a packet of {total} bytes is over the limit of {limit}"
    return RemoteProtocolError(detail, code=code, scope=ErrorScope.CONNECTION, message_type=kind)
