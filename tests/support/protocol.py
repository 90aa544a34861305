"""Sequence diagrams for the protocol core: two cores wired in memory, or one against raw bytes.

``Pair`` wires a client and a server of ours. ``RawPeer`` plays a foreign end: it builds and takes
apart packets with layouts written down here from the wire description, so that it shares nothing
with the package under test.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from nnrp_backend.protocol import ClientConfig, ClientConnection, ServerConfig, ServerConnection
from nnrp_backend.protocol.connection import Connection
from nnrp_backend.protocol.events import Event, OperationSubmitted
from nnrp_backend.protocol.session import Operation, Session

HEADER = struct.Struct("<4sBBBBIIIIIHHQ")
HELLO = struct.Struct("<BBHIIIIIIHHHHIIHHHHIII")
HELLO_ACK = struct.Struct("<BBBBIIIIIIIIIIIHHHHHHIIIII")
OPEN = struct.Struct("<IHBBIIIHHIIIIQ")
OPEN_ACK = struct.Struct("<IHBBIIHHIIIIQIII")
CLOSE = struct.Struct("<HBBIQII")
CLOSE_ACK = struct.Struct("<BBHQI")
SUBMIT = struct.Struct("<HHHHHHBBBBHHIIIIIQIBBBBIIIHH")
RESULT = struct.Struct("<HHHHHHHHHHIIQQBBHIHHIHH")
PARTIAL = struct.Struct("<QQQQII")
PROGRESS = struct.Struct("<QQHHQI")
CONTROL = struct.Struct("<QQHBBIQ")
SCHEDULING = struct.Struct("<QQHhQI")
SUPERSEDE = struct.Struct("<QQQHHI")
PRESSURE = struct.Struct("<QQHHIII")
FLOW = struct.Struct("<BBBBHHHHQIII")
CAPABILITY = struct.Struct("<HHHHQQII")
TRACE = struct.Struct("<QQQHHI")
RECOVERABLE = struct.Struct("<IIHBBIIIII")
RETRY = struct.Struct("<QQIIHBBI")
ERROR = struct.Struct("<8I")
PROBE = struct.Struct("<IIQ")
CACHE_REFERENCE = struct.Struct("<IHHQQQQIIII")
CACHE_MISS = struct.Struct("<IHHQQII")
PRELUDE = struct.Struct("<8I")
DESCRIPTOR = struct.Struct("<HBBIIHHII")

EventT = TypeVar("EventT")


class Frame(NamedTuple):
    """A packet as it went over the wire."""

    kind: int
    session: int
    frame: int
    meta: bytes
    body: bytes
    trace: int = 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.meta)


def packet(
    kind: int,
    meta: bytes = b"",
    body: bytes = b"",
    *,
    session: int = 0,
    frame: int = 0,
    trace: int = 0,
) -> bytes:
    header = HEADER.pack(
        b"NNRP", 1, 0, kind, 40, 0, len(meta), len(body), session, frame, 0, 0, trace
    )
    return header + meta + body


def frames(data: bytes) -> list[Frame]:
    """Take a byte stream apart; it must end with a whole packet."""
    found = []
    while data:
        magic, major, wire, kind, size, flags, meta, body, session, frame, view, route, trace = (
            HEADER.unpack_from(data)
        )
        assert (magic, major, wire, size, flags, view, route) == (b"NNRP", 1, 0, 40, 0, 0, 0)
        end = 40 + meta + body
        assert len(data) >= end, "the stream ends inside a packet"
        found.append(
            Frame(kind, session, frame, data[40 : 40 + meta], data[40 + meta : end], trace)
        )
        data = data[end:]
    return found


def typed(event: bytes, semantics: int = 1) -> bytes:
    """The canonical body of one JSON event."""
    size = len(event)
    prelude = PRELUDE.pack(0, 0, 24, size, 0, 0, 0, 0)
    return prelude + DESCRIPTOR.pack(0, 0x10, 0, 0, 0, semantics, 0, 0, size) + event


def hello(*, profiles: int = 3, kinds: int = 0x73, versions: tuple[int, int] = (1, 1)) -> bytes:
    """CLIENT_HELLO with the values that the published runtime sends."""
    meta = HELLO.pack(*versions, 1, profiles, kinds, *[0] * 7, 1, 0, 0, 0, 500, *[0] * 5)
    return packet(0x01, meta)


def hello_ack(*, profiles: int = 2, kinds: int = 0x73, max_body: int = 64 << 20) -> bytes:
    """SERVER_HELLO_ACK with the values that the published runtime sends."""
    meta = HELLO_ACK.pack(
        1, 0, 0, 0, 0, profiles, kinds, *[0] * 8, 1, 64, 0, 0, 0, 0, max_body, 120_000, 0, 0, 0
    )
    return packet(0x02, meta)


def open_session(*, max_in_flight: int = 64, tag: int = 0, profile: int = 2, **other: int) -> bytes:
    """SESSION_OPEN; ``other``: schema, version, priority, resume, auth, reserved."""
    meta = OPEN.pack(
        0,
        profile,
        other.get("priority", 1),
        0,
        other.get("schema", 0x1001),
        other.get("version", 3),
        500,
        max_in_flight,
        other.get("reserved", 0),
        30_000,
        other.get("resume", 0),
        other.get("auth", 0),
        0,
        tag,
    )
    return packet(0x07, meta)


def open_ack(
    session: int = 1,
    *,
    status: int = 0,
    max_in_flight: int = 64,
    code: int = 0,
    tag: int = 1,
    diagnostic: bytes = b"",
) -> bytes:
    meta = OPEN_ACK.pack(
        session, 2, 1, status, 0x1001, 3, 32, max_in_flight, 30_000, 0, 0, len(diagnostic), tag, 0,
        code, 0,
    )  # fmt: skip
    return packet(0x08, meta, diagnostic, session=session)


def submit(
    operation: int,
    event: bytes = b'{"a":1}',
    *,
    session: int = 1,
    frame: int | None = None,
    body: bytes | None = None,
    kinds: int = 0x10,
    count: int = 1,
    trace: int = 0,
) -> bytes:
    meta = SUBMIT.pack(*[0] * 17, operation, 0, 0, 0, 0xFF, 0, 0, 0, kinds, count, 0)
    return packet(
        0x10,
        meta,
        typed(event) if body is None else body,
        session=session,
        frame=operation if frame is None else frame,
        trace=trace,
    )


def partial(
    operation: int, body: bytes = b"{}", *, session: int = 1, frame: int = 0, sequence: int = 1
) -> bytes:
    meta = PARTIAL.pack(operation, sequence, 0, 0, len(body), 0)
    return packet(0x38, meta, body, session=session, frame=frame or operation)


def result(
    frame: int,
    event: bytes = b"{}",
    *,
    session: int = 1,
    body: bytes | None = None,
    kinds: int = 0x10,
    count: int = 1,
    status: int = 200,
) -> bytes:
    meta = RESULT.pack(status, *[0] * 19, kinds, count, 0)
    return packet(0x12, meta, typed(event) if body is None else body, session=session, frame=frame)


def dropped(operation: int, code: int = 3, *, session: int = 1, frame: int = 0) -> bytes:
    meta = CONTROL.pack(operation, 1, code, 2, 0, 4, 0)
    return packet(0x40, meta, b"gone", session=session, frame=frame or operation)


def cancel(
    operation: int,
    *,
    session: int = 1,
    frame: int | None = None,
    sequence: int = 1,
    reason: int = 1,
    kind: int = 0x30,
) -> bytes:
    meta = CONTROL.pack(operation, sequence, reason, 1, 1, 0, 0)
    return packet(kind, meta, session=session, frame=operation if frame is None else frame)


def schedule(
    kind: int,
    operation: int,
    *,
    session: int = 1,
    frame: int | None = None,
    sequence: int = 1,
    deadline: int = 0,
    priority: int = 0,
    delta: int = 0,
    flags: int = 0,
) -> bytes:
    meta = SCHEDULING.pack(operation, sequence, priority, delta, deadline, flags)
    return packet(kind, meta, session=session, frame=operation if frame is None else frame)


def pressure(
    kind: int,
    scope_id: int,
    window: int,
    *,
    session: int = 1,
    frame: int = 0,
    level: int = 0,
    flags: int = 0,
    retry_after_ms: int = 0,
) -> bytes:
    meta = PRESSURE.pack(scope_id, window, level, 1 if level else 0, retry_after_ms, flags, 0)
    return packet(kind, meta, session=session, frame=frame)


def flow_update(
    *,
    session: int = 1,
    scope: int = 1,
    reason: int = 0,
    level: int = 0,
    credits: tuple[int, int, int] = (0, 0, 0),
    operation: int = 0,
    frame: int = 0,
    epoch: int = 0,
    flags: int = 1,
    retry_after_ms: int = 0,
) -> bytes:
    meta = FLOW.pack(scope, reason, level, 0, *credits, 0, operation, retry_after_ms, epoch, flags)
    return packet(0x17, meta, session=session, frame=frame)


def capabilities(
    *tokens: str, kind: int = 0x3B, session: int = 1, flags: int = 2, count: int | None = None
) -> bytes:
    entries = [token.encode() for token in tokens]
    body = b"".join(struct.pack("<H", len(entry)) + entry for entry in entries)
    number = len(entries) if count is None else count
    meta = CAPABILITY.pack(0, number, 0, 0, 0, 0, len(body), flags)
    return packet(kind, meta, body, session=session)


def tokens_in(body: bytes) -> list[str]:
    """Read the token list of a capability frame."""
    found = []
    while body:
        (size,) = struct.unpack_from("<H", body)
        found.append(body[2 : 2 + size].decode())
        body = body[2 + size :]
    return found


class RawPeer:
    """A foreign end, played by hand against one core of ours.

    ``says`` delivers packets and returns the events they caused; ``hears`` takes what the core has
    sent since the last look.
    """

    def __init__(self, core: Connection) -> None:
        self.core = core
        self.now = 0.0

    def says(self, *packets: bytes) -> list[Event]:
        return self.core.receive_data(b"".join(packets), self.now)

    def hears(self) -> list[Frame]:
        return frames(b"".join(self.core.data_to_send()))


def raw_client(
    config: ServerConfig | None = None, *, tag: int = 0, grant: tuple[str, ...] = ()
) -> tuple[ServerConnection, RawPeer]:
    """A server of ours with session 1 open, and the client that opened it (foreign by default)."""
    server = ServerConnection(config)
    peer = RawPeer(server)
    server.accept(0.0)
    peer.says(hello(), open_session(tag=tag))
    if grant:
        peer.says(capabilities(*sorted(grant)))
    peer.hears()
    return server, peer


def raw_server(
    config: ClientConfig | None = None, *, tag: int = 1, grant: tuple[str, ...] | None = ()
) -> tuple[ClientConnection, Session, RawPeer]:
    """A client of ours with session 1 open, and the server that opened it (foreign by default).

    ``grant``: the tokens of its answer to the negotiation; ``None`` for none yet.
    """
    client = ClientConnection(config or ClientConfig(probe_interval=0))
    peer = RawPeer(client)
    client.connect(0.0)
    client.open_session(0.0)
    peer.says(hello_ack())
    peer.says(open_ack(tag=tag, max_in_flight=min(64, (config or ClientConfig()).max_in_flight)))
    session = client.sessions[1]
    if grant is not None and not session.peer_is_ours:
        peer.says(capabilities(*sorted(grant)))
    peer.hears()
    return client, session, peer


@dataclass
class Pair:
    """A client and a server core of ours, and the wire between them.

    Packets wait on the wire until ``to_server``, ``to_client`` or ``roundtrip`` delivers them, so a
    test can let two of them cross. What comes out is kept in ``client_events``, ``server_events``.
    """

    client: ClientConnection
    server: ServerConnection
    now: float = 0.0
    client_events: list[Event] = field(default_factory=list)
    server_events: list[Event] = field(default_factory=list)
    seen_by_server: list[Frame] = field(default_factory=list)
    seen_by_client: list[Frame] = field(default_factory=list)

    def to_server(self) -> list[Event]:
        """Deliver what the client has sent."""
        data = b"".join(self.client.data_to_send())
        self.seen_by_server += frames(data)
        events = self.server.receive_data(data, self.now) if data else []
        self.server_events += events
        return events

    def to_client(self) -> list[Event]:
        """Deliver what the server has sent."""
        data = b"".join(self.server.data_to_send())
        self.seen_by_client += frames(data)
        events = self.client.receive_data(data, self.now) if data else []
        self.client_events += events
        return events

    def roundtrip(self) -> None:
        """Deliver both ways until nothing moves."""
        quiet = False
        while not quiet:
            before = len(self.seen_by_server) + len(self.seen_by_client)
            self.to_server()
            self.to_client()
            quiet = before == len(self.seen_by_server) + len(self.seen_by_client)

    def forget(self) -> None:
        """Drop what was recorded so far."""
        for record in (
            self.client_events,
            self.server_events,
            self.seen_by_client,
            self.seen_by_server,
        ):
            record.clear()

    @property
    def session(self) -> Session:
        """The client's only session."""
        [session] = self.client.sessions.values()
        return session

    def submit(self, payload: bytes = b'{"a":1}', **options: Any) -> tuple[Operation, Operation]:
        """Submit and deliver; return the client's and the server's operation."""
        mine = self.client.submit(self.session, payload, **options)
        submitted = only(self.to_server(), OperationSubmitted)
        return mine, submitted.operation


def pair(
    client: ClientConfig | None = None, server: ServerConfig | None = None, *, opened: bool = True
) -> Pair:
    """Wire two cores of ours, with one session open unless told otherwise."""
    cores = Pair(
        ClientConnection(client or ClientConfig(probe_interval=0)), ServerConnection(server)
    )
    cores.server.accept(0.0)
    cores.client.connect(0.0)
    if opened:
        cores.client.open_session(0.0)
        cores.roundtrip()
        assert len(cores.client.sessions) == 1
        cores.forget()
    return cores


def only(events: list[Event], kind: type[EventT]) -> EventT:
    """Return the single event of a kind, failing when there is none or more than one."""
    found = [event for event in events if isinstance(event, kind)]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} in {events}"
    return found[0]


def kinds(events: list[Event]) -> list[str]:
    """Name the events, for a look at their order."""
    return [type(event).__name__ for event in events]
