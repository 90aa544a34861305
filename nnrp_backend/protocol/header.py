"""The common header, and packets as they are received.

A packet is a header of 40 bytes, ``meta_len`` bytes of fixed metadata and ``body_len`` bytes of
body. On stream transports packets follow each other with nothing in between (NNRP/1 wire, common
header).
"""

from struct import Struct
from typing import Final, NamedTuple

from nnrp_backend.protocol.constants import HEADER_LENGTH, MAGIC, VERSION_MAJOR, WIRE_FORMAT

__all__ = ["HEADER", "Packet", "pack_header"]

# magic, version_major, wire_format, msg_type, header_len, flags, meta_len, body_len, session_id,
# frame_id, view_id, route_id, trace_id
HEADER: Final = Struct("<4sBBBBIIIIIHHQ")


class Packet(NamedTuple):
    """One packet as received, its header fields already checked."""

    message_type: int
    flags: int
    session_id: int
    frame_id: int
    trace_id: int
    metadata: bytes
    body: bytes


def pack_header(
    message_type: int,
    meta_len: int,
    body_len: int,
    *,
    session_id: int = 0,
    frame_id: int = 0,
    flags: int = 0,
    trace_id: int = 0,
) -> bytes:
    """Return the 40 bytes before metadata and body."""
    return HEADER.pack(
        MAGIC,
        VERSION_MAJOR,
        WIRE_FORMAT,
        message_type,
        HEADER_LENGTH,
        flags,
        meta_len,
        body_len,
        session_id,
        frame_id,
        0,  # view_id: tensor lanes, not used
        0,  # route_id: not used
        trace_id,
    )
