"""NNRP/1 frames built by hand from the wire description, for peers that misbehave.

It shares nothing with the package under test.
"""

import asyncio
import struct
from typing import NamedTuple

HEADER = struct.Struct("<4sBBBBIIIIIHHQ")
CLIENT_HELLO = struct.Struct("<BBHIIIIIIHHHHIIHHHHIII")
SESSION_OPEN = struct.Struct("<IHBBIIIHHIIIIQ")
FRAME_SUBMIT = struct.Struct("<HHHHHHBBBBHHIIIIIQIBBBBIIIHH")
CONTROL = struct.Struct("<QQHBBIQ")
CAPABILITY_LIST = struct.Struct("<HHHHQQII")
PRELUDE = struct.Struct("<8I")
DESCRIPTOR = struct.Struct("<HBBIIHHII")

HELLO, HELLO_ACK, OPEN, OPEN_ACK = 0x01, 0x02, 0x07, 0x08
SUBMIT, RESULT, PROBE, PROBE_ACK = 0x10, 0x12, 0x19, 0x1A
CANCEL, PARTIAL, TRACE, DROP = 0x30, 0x38, 0x3F, 0x40
NEGOTIATE, DEGRADE = 0x3B, 0x3C


class Packet(NamedTuple):
    kind: int
    session: int
    frame: int
    meta: bytes
    body: bytes


def packet(
    kind: int, meta: bytes = b"", body: bytes = b"", session: int = 0, frame: int = 0
) -> bytes:
    header = HEADER.pack(b"NNRP", 1, 0, kind, 40, 0, len(meta), len(body), session, frame, 0, 0, 0)
    return header + meta + body


def hello() -> bytes:
    """CLIENT_HELLO as the published runtime sends it."""
    return packet(HELLO, CLIENT_HELLO.pack(1, 1, 1, 3, 0x73, *[0] * 7, 1, 0, 0, 0, 500, *[0] * 5))


def session_open(max_in_flight: int = 4) -> bytes:
    meta = SESSION_OPEN.pack(0, 2, 1, 0, 0x1001, 3, 500, max_in_flight, 0, 30_000, 0, 0, 0, 0)
    return packet(OPEN, meta)


def submit(session: int, operation: int, json: bytes = b"{}", *, frame: int | None = None) -> bytes:
    meta = FRAME_SUBMIT.pack(*[0] * 17, operation, 0, 0, 0, 0xFF, 0, 0, 0, 0x10, 1, 0)
    return packet(SUBMIT, meta, typed(json), session, operation if frame is None else frame)


def submit_bare(session: int, operation: int, json: bytes) -> bytes:
    """What the public adapter sends: the JSON alone where a typed body belongs."""
    meta = FRAME_SUBMIT.pack(*[0] * 17, operation, 0, 0, 0, 0xFF, 0, 0, 0, 0x10, 1, 0)
    return packet(SUBMIT, meta, json, session, operation)


def cancel(session: int, operation: int, sequence: int = 1) -> bytes:
    return packet(CANCEL, CONTROL.pack(operation, sequence, 1, 1, 1, 0, 0), b"", session, operation)


def negotiate(session: int, *tokens: str) -> bytes:
    """CAPABILITY_NEGOTIATION at session scope; less may be granted."""
    body = b"".join(
        struct.pack("<H", len(token)) + token.encode("ascii") for token in sorted(tokens)
    )
    meta = CAPABILITY_LIST.pack(0, len(tokens), 0, 0, 0, 0, len(body), 2)
    return packet(NEGOTIATE, meta, body, session)


def tokens(body: bytes) -> set[str]:
    """The tokens of a capability list."""
    found = set()
    while body:
        (length,) = struct.unpack_from("<H", body)
        found.add(body[2 : 2 + length].decode("ascii"))
        body = body[2 + length :]
    return found


def typed(json: bytes) -> bytes:
    """The canonical body: prelude, one structured event descriptor, the JSON."""
    n = len(json)
    return (
        PRELUDE.pack(0, 0, 24, n, 0, 0, 0, 0) + DESCRIPTOR.pack(0, 0x10, 0, 0, 0, 1, 0, 0, n) + json
    )


class RawPeer:
    """A client that says exactly what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, host: str, port: int) -> "RawPeer":
        return cls(*await asyncio.open_connection(host, port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self) -> Packet:
        """The next packet; IncompleteReadError at the end of the connection."""
        async with asyncio.timeout(5):
            fields = HEADER.unpack(await self.reader.readexactly(40))
            meta = await self.reader.readexactly(fields[6])
            body = await self.reader.readexactly(fields[7])
        return Packet(fields[3], fields[8], fields[9], meta, body)

    async def read_until(self, kind: int) -> Packet:
        while (found := await self.read()).kind != kind:
            pass
        return found

    async def handshake(self) -> int:
        """Hello and session open; returns the session id."""
        self.send(hello())
        assert (await self.read()).kind == HELLO_ACK
        self.send(session_open())
        answer = await self.read()
        assert answer.kind == OPEN_ACK
        assert answer.session, "the session was refused"
        return answer.session

    async def closed(self, timeout: float = 5.0) -> bytes:
        """Wait for the end of the connection; returns what came before it."""
        async with asyncio.timeout(timeout):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""
            finally:
                self.close()

    def close(self) -> None:
        self.writer.transport.abort()
