"""What both roles do with bytes, errors and the end, whatever the packets are about."""

import ast
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_backend import protocol
from nnrp_backend.protocol import ClientConnection, ServerConfig, ServerConnection
from nnrp_backend.protocol.connection import decode_diagnostic, encode_diagnostic
from nnrp_backend.protocol.constants import (
    MAX_RECORDED_ERRORS,
    MAX_UNREAD_ANSWERS,
    OUR_TAG,
    ErrorCode,
    ErrorScope,
    MessageType,
)
from nnrp_backend.protocol.errors import (
    LocalProtocolError,
    PacketTooLarge,
    PeerReportedError,
    PeerTimeout,
    RemoteProtocolError,
)
from nnrp_backend.protocol.events import (
    Connected,
    ConnectionClosed,
    OperationCancelled,
    OperationEnded,
    OperationSubmitted,
    Outcome,
    PeerErrorReceived,
    PongReceived,
    ProtocolViolation,
    SessionClosed,
    SessionOpened,
)
from nnrp_backend.protocol.states import ConnectionState, SessionState
from tests.support import protocol as raw
from tests.support.protocol import RawPeer, kinds, only, pair, raw_client, raw_server

PING, PONG = 0x20, 0x21


def error(
    code: int = 3,
    scope: int = 0,
    fatal: int = 0,
    *,
    session: int = 0,
    frame: int = 0,
    retry_after_ms: int = 0,
    diagnostic: bytes = b"",
) -> bytes:
    meta = raw.ERROR.pack(code, scope, fatal, retry_after_ms, session, frame, 0, len(diagnostic))
    return raw.packet(0x06, meta, diagnostic)


class TestReceiving:
    """The same bytes mean the same, however they were read."""

    # A whole life of a server's connection, up to the last packet.
    CONVERSATION = (
        raw.hello()
        + raw.open_session(tag=OUR_TAG)
        + raw.submit(1, b'{"first":1}')
        + raw.submit(2, b"x" * 3000, body=b'{"bare":' + b" " * 3000 + b"}")
        + raw.cancel(1)
        + raw.packet(0xEE, b"unknown", b"type", session=1)
        + raw.submit(3)
    )
    EXPECTED = (
        "Connected",
        "SessionOpened",
        "OperationSubmitted",
        "OperationSubmitted",
        "OperationCancelled",
        "ProtocolViolation",
        "OperationSubmitted",
    )

    def feed(self, pieces):
        server = ServerConnection()
        server.accept(0.0)
        events = [event for piece in pieces for event in server.receive_data(piece, 0.0)]
        return server, events, raw.frames(b"".join(server.data_to_send()))

    def test_whole(self):
        _, events, _ = self.feed([self.CONVERSATION])
        assert kinds(events) == list(self.EXPECTED)

    def test_byte_by_byte(self):
        whole = self.feed([self.CONVERSATION])
        single = self.feed(bytes([byte]) for byte in self.CONVERSATION)
        assert kinds(single[1]) == list(self.EXPECTED)
        assert single[2] == whole[2]

    def test_with_trailing_bytes(self):
        rest = raw.submit(4)
        server, events, _ = self.feed([self.CONVERSATION + rest[:77]])
        assert kinds(events) == list(self.EXPECTED)
        assert only(server.receive_data(rest[77:], 0.0), OperationSubmitted).payload == b'{"a":1}'

    def test_data_before_the_start_is_our_mistake(self):
        for core in (ClientConnection(), ServerConnection()):
            with pytest.raises(LocalProtocolError, match="before connect or accept"):
                core.receive_data(b"", 0.0)

    def test_data_after_the_end_is_ignored(self):
        server, peer = raw_client()
        server.close()
        assert peer.says(raw.submit(1), b"garbage" * 10) == []
        assert peer.hears() == []
        assert server.counters.protocol_errors == 0


# One of every packet that a role understands, in an order in which all of them are in place.
TO_SERVER = {
    "CAPABILITY_NEGOTIATION": raw.capabilities("control.cancel_abort", "control.recoverable_error"),
    "DEGRADE_PROFILE": raw.capabilities("control.recoverable_error", kind=0x3C),
    "TRANSPORT_PROBE": raw.packet(0x19, raw.PROBE.pack(1, 4, 5), b"data"),
    "TRACE_CONTEXT": raw.packet(0x3F, raw.TRACE.pack(5, 6, 0, 0, 1, 2), b"{}", session=1),
    "DEADLINE": raw.schedule(0x33, 1, deadline=9),
    "FRAME_SUBMIT": raw.submit(1),
    "FRAME_SUBMIT of another": raw.submit(2),
    "FRAME_SUBMIT of a third": raw.submit(3),
    "FRAME_SUBMIT that is broken": raw.submit(4, body=b"junk"),
    "EXPIRE_AT": raw.schedule(0x34, 1, sequence=2, deadline=9),
    "PRIORITY_UPDATE": raw.schedule(0x32, 1, sequence=3, priority=2),
    "CREDIT_UPDATE": raw.pressure(0x3A, 1, 5, frame=1, flags=2),
    "BACKPRESSURE": raw.pressure(0x39, 1, 0, level=3),
    "FLOW_UPDATE": raw.flow_update(credits=(0, 5, 0)),
    "OBJECT_DECLARE": raw.packet(0x41, b"any", b"thing", session=1),
    "CACHE_REFERENCE": raw.packet(
        0x46, raw.CACHE_REFERENCE.pack(1, 0, 0, 1, 2, 0, 0, 0, 1, 0, 0), b"x", session=1
    ),
    "CANCEL": raw.cancel(1, sequence=4),
    "ABORT": raw.cancel(1, sequence=5, kind=0x31),
    "FRAME_CANCEL": raw.packet(0x11, session=1, frame=2),
    "SUPERSEDE": raw.packet(0x35, raw.SUPERSEDE.pack(3, 9, 1, 2, 1, 2), b"no", session=1, frame=3),
    "SESSION_OPEN": raw.open_session(tag=OUR_TAG),
    "PING": raw.packet(PING),
    "PONG": raw.packet(PONG),
    "ERROR": error(3, 0, 0, diagnostic=b"note"),
    "SESSION_CLOSE": raw.packet(0x09, raw.CLOSE.pack(0, 0, 0, 0, 0, 0, 1), session=1),
    "CLOSE": raw.packet(0x05, b"any", b"thing"),
}
TO_CLIENT = {
    "CAPABILITY_NEGOTIATION": raw.capabilities("control.cancel_abort"),
    "DEGRADE_PROFILE": raw.capabilities(kind=0x3C),
    "PROGRESS": raw.packet(0x37, raw.PROGRESS.pack(1, 1, 5, 50, 0, 2), b"{}", session=1, frame=1),
    "PARTIAL_RESULT": raw.partial(1, b'{"a":1}'),
    "CREDIT_UPDATE": raw.pressure(0x3A, 1, 5),
    "BACKPRESSURE": raw.pressure(0x39, 1, 0, level=2),
    "FLOW_UPDATE": raw.flow_update(credits=(0, 5, 0)),
    "RESULT_HINT": raw.packet(0x18, bytes(16), session=1),
    "TRACE_CONTEXT": raw.packet(0x3F, raw.TRACE.pack(5, 6, 0, 0, 1, 0), session=1),
    "ERROR_RECOVERABLE": raw.packet(
        0x48, raw.RECOVERABLE.pack(11, 2, 0, 2, 2, 9, 1, 1, 0, 4), b"busy", session=1, frame=1
    ),
    "RETRY_AFTER": raw.packet(
        0x49, raw.RETRY.pack(1, 1, 9, 0, 1, 2, 2, 4), b"busy", session=1, frame=1
    ),
    "RESULT_PUSH": raw.result(1),
    "RESULT_DROP_REASON": raw.dropped(2),
    "RESULT_DROP": raw.packet(0x13, session=1, frame=3),
    "TRANSPORT_PROBE_ACK": raw.packet(0x1A, raw.PROBE.pack(1, 0, 5)),
    "SESSION_OPEN_ACK": raw.open_ack(2, tag=OUR_TAG),
    "PING": raw.packet(PING),
    "PONG": raw.packet(PONG),
    "ERROR": error(3, 0, 0, diagnostic=b"note"),
    "SESSION_CLOSE": raw.packet(0x09, raw.CLOSE.pack(0, 0, 0, 0, 0, 0, 1), session=1),
    "SESSION_CLOSE_ACK": raw.packet(0x0A, raw.CLOSE_ACK.pack(2, 0, 0, 0, 0), session=2),
    "CLOSE": raw.packet(0x05, b"any", b"thing"),
}


class TestEveryPacket:
    """Each packet that a role understands: whole, byte by byte, and with the next one behind it."""

    def server(self):
        return raw_client()

    def client(self):
        client, session, peer = raw_server(grant=None)
        for _ in range(3):
            client.submit(session, b"{}")
        client.probe(0.0)
        client.open_session(0.0)
        return client, peer

    def told(self, core, peer, pieces, name):
        """Return what the packet called ``name``, and all before it, caused."""
        events = [event for piece in pieces for event in peer.says(piece)]
        if name == "SESSION_OPEN_ACK":
            core.close_session(core.sessions[2], 0.0)
        return [str(event) for event in events], peer.hears(), core.counters, core.state

    @pytest.mark.parametrize("role", ["server", "client"])
    def test_three_ways(self, role):
        table = TO_SERVER if role == "server" else TO_CLIENT
        packets = list(table.values())
        whole, single, trailing = (getattr(self, role)() for _ in range(3))
        rest = b""
        for place, (name, each) in enumerate(table.items()):
            expected = self.told(*whole, [each], name)
            assert self.told(*single, [bytes([byte]) for byte in each], name) == expected, name
            behind = packets[place + 1][:39] if place + 1 < len(packets) else b"NNRP"
            data = each[len(rest) :] + behind
            assert self.told(*trailing, [data], name) == expected, name
            rest = behind
        assert whole[0].state is ConnectionState.CLOSED

    @pytest.mark.parametrize(
        ("table", "core"), [(TO_SERVER, ServerConnection), (TO_CLIENT, ClientConnection)]
    )
    def test_the_tables_are_complete(self, table, core):
        covered = {packet[6] for packet in table.values()}
        unused = {
            kind
            for kind, handler in core.OPEN_HANDLERS.items()
            if handler.__name__ == "_on_unsupported"
        }
        assert covered >= set(core.OPEN_HANDLERS) - unused
        assert covered & unused


def test_the_core_has_no_input_no_output_and_no_clock():
    allowed = {
        "collections",
        "dataclasses",
        "enum",
        "itertools",
        "struct",
        "typing",
        "nnrp_backend",
    }
    for path in Path(protocol.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for name in names:
                ours = name.startswith("nnrp_backend.protocol")
                assert ours or name.split(".")[0] in allowed, f"{path.name} imports {name}"


class TestBrokenPeers:
    def test_a_broken_header_ends_the_connection_with_an_error(self):
        server, peer = raw_client()
        peer.says(raw.submit(1))
        events = peer.says(raw.submit(2), b"GET / HTTP/1.1\r\n\r\n" + bytes(40))
        assert kinds(events) == [
            "OperationSubmitted",
            "ProtocolViolation",
            "OperationCancelled",
            "OperationCancelled",
            "ConnectionClosed",
        ]
        [answer] = peer.hears()
        assert (answer.kind, answer.session) == (MessageType.ERROR, 0)
        code, scope, fatal, *_ = answer.unpack(raw.ERROR)
        assert (code, scope, fatal) == (ErrorCode.MALFORMED_HEADER, ErrorScope.CONNECTION, 1)
        assert answer.body == b"not an NNRP packet"
        closed = only(events, ConnectionClosed)
        assert isinstance(closed.error, RemoteProtocolError)
        assert server.state is ConnectionState.CLOSED
        assert list(server.errors) == [closed.error]

    def test_a_packet_over_the_limit_ends_the_connection(self):
        server, peer = raw_client(ServerConfig(max_packet_bytes=10_000))
        exact = raw.submit(1, b'{"p":"' + b"x" * (10_000 - 40 - 72 - 56 - 8) + b'"}')
        assert len(exact) == 10_000
        assert kinds(peer.says(exact)) == ["OperationSubmitted"]
        larger = raw.HEADER.pack(b"NNRP", 1, 0, 0x10, 40, 0, 72, 10_000 - 112 + 1, 1, 2, 0, 0, 0)
        closed = only(peer.says(larger), ConnectionClosed)
        assert closed.error.code is ErrorCode.LIMIT_EXCEEDED
        assert server.sessions == {}

    def test_a_stranger_cannot_make_us_wait_for_a_large_packet(self):
        server = ServerConnection()
        server.accept(0.0)
        header = raw.HEADER.pack(b"NNRP", 1, 0, 1, 40, 0, 64, 1 << 20, 0, 0, 0, 0, 0)
        assert only(server.receive_data(header, 0.0), ConnectionClosed).error.fatal

    def test_before_the_hello_any_violation_ends_it(self):
        server = ServerConnection()
        server.accept(0.0)
        closed = only(server.receive_data(raw.packet(0x20), 0.0), ConnectionClosed)
        assert closed.error.scope is ErrorScope.CONNECTION
        assert closed.error.message_type == MessageType.PING

    @pytest.mark.parametrize("kind", [0x00, 0x0F, 0x7F, 0xEE, MessageType.PARTIAL_RESULT])
    def test_an_unexpected_type_is_recorded_and_survived(self, kind):
        server, peer = raw_client()
        events = peer.says(raw.packet(kind, b"m" * 7, b"b" * 9, session=1), raw.submit(1))
        assert kinds(events) == ["ProtocolViolation", "OperationSubmitted"]
        assert events[0].error.message_type == kind
        assert events[0].error.code is ErrorCode.INVALID_STATE
        assert server.counters.protocol_errors == 1

    def test_a_violation_by_one_session_leaves_the_others_alone(self):
        server, peer = raw_client()
        peer.says(raw.open_session())
        mine = only(peer.says(raw.submit(1, session=2)), OperationSubmitted).operation
        peer.hears()
        peer.says(raw.packet(0x30, b"too short", session=1, frame=1))
        assert server.counters.protocol_errors == 1
        assert server.send_partial(mine, b"{}")
        assert [frame.session for frame in peer.hears()] == [2]

    def test_recorded_errors_are_bounded(self):
        server, peer = raw_client()
        peer.says(*[raw.packet(0xEE)] * (MAX_RECORDED_ERRORS + 5))
        assert len(server.errors) == MAX_RECORDED_ERRORS
        assert server.counters.protocol_errors == MAX_RECORDED_ERRORS + 5

    def test_who_floods_without_reading_loses_the_connection(self):
        server, peer = raw_client(tag=OUR_TAG)
        server.congested = True
        events = peer.says(*[raw.packet(PING)] * MAX_UNREAD_ANSWERS)
        assert events == []
        assert len(peer.hears()) == MAX_UNREAD_ANSWERS
        closed = only(peer.says(raw.packet(PING)), ConnectionClosed)
        assert closed.error.code is ErrorCode.LIMIT_EXCEEDED

    def test_answers_that_are_refused_for_violations_count_too(self):
        server, peer = raw_client(tag=OUR_TAG)
        server.congested = True
        closed = only(
            peer.says(*[raw.packet(0xEE, session=1)] * (MAX_UNREAD_ANSWERS + 1)), ConnectionClosed
        )
        assert closed.error.code is ErrorCode.LIMIT_EXCEEDED

    def test_who_reads_may_ask_for_ever(self):
        server, peer = raw_client(tag=OUR_TAG)
        for congested in (True, False, True):
            server.congested = congested
            assert peer.says(*[raw.packet(PING)] * (MAX_UNREAD_ANSWERS - 1)) == []
        assert server.state is ConnectionState.OPEN


class TestIdentity:
    def test_a_frame_that_names_another_operations_frame_is_a_violation(self):
        _, peer = raw_client()
        peer.says(raw.submit(1), raw.submit(2))
        [violation] = peer.says(raw.cancel(1, frame=2))
        assert violation.error.detail == "frame 2 does not belong to operation 1"
        assert violation.error.scope is ErrorScope.SESSION
        assert violation.error.code is ErrorCode.INVALID_STATE

    def test_flow_updates_are_stale_per_scope(self):
        server, peer = raw_client()
        session = server.sessions[1]
        peer.says(
            raw.flow_update(credits=(0, 5, 0), epoch=3),
            raw.flow_update(credits=(0, 6, 0), epoch=2),
            raw.flow_update(session=0, scope=0, credits=(7, 0, 0), epoch=1),
        )
        assert (session.credit, server.credit) == (5, 7)
        assert server.counters.stale_controls == 1
        # An equal epoch is not older, and the other two frames have none.
        peer.says(raw.flow_update(credits=(0, 6, 0), epoch=3))
        assert session.credit == 6
        peer.says(raw.pressure(0x3A, 1, 8))
        assert session.credit == 8


class TestTime:
    def test_nothing_happens_before_its_time_and_then_it_does(self):
        server = ServerConnection(ServerConfig(handshake_timeout=2.0))
        server.accept(10.0)
        assert server.next_deadline() == 12.0
        assert server.handle_deadline(11.9) == []
        [closed] = server.handle_deadline(12.0)
        assert isinstance(closed.error, PeerTimeout)
        assert server.next_deadline() is None
        assert server.handle_deadline(13.0) == []


class TestTheEnd:
    def test_eof_ends_everything_at_the_client(self):
        client, session, peer = raw_server()
        first, second = client.submit(session, b"{}"), client.submit(session, b"{}")
        client.cancel(second)
        events = client.receive_eof()
        assert kinds(events) == ["OperationEnded", "OperationEnded", "ConnectionClosed"]
        assert [event.operation for event in events[:2]] == [first, second]
        assert {event.outcome for event in events[:2]} == {Outcome.LOST}
        assert events[0].diagnostic == "the connection closed"
        assert events[-1] == ConnectionClosed(None)
        assert first.done
        assert second.done
        assert session.state is SessionState.CLOSED
        assert client.data_to_send() == []
        assert peer.core.receive_eof() == []

    def test_eof_ends_everything_at_the_server(self):
        server, peer = raw_client()
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        events = server.receive_eof()
        assert kinds(events) == ["OperationCancelled", "ConnectionClosed"]
        assert operation.done
        assert not server.send_partial(operation, b"{}")
        assert not server.complete(operation, b"{}")
        assert not server.drop(operation)
        assert server.data_to_send() == []

    def test_eof_in_the_handshake(self):
        client = ClientConnection()
        client.connect(0.0)
        assert client.receive_eof() == [ConnectionClosed(None)]

    def test_eof_before_the_start(self):
        assert ServerConnection().receive_eof() == [ConnectionClosed(None)]

    def test_our_close_keeps_what_is_queued(self):
        server, peer = raw_client()
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        server.complete(operation, b"{}")
        assert kinds(server.close()) == ["ConnectionClosed"]
        assert [frame.kind for frame in peer.hears()] == [MessageType.RESULT_PUSH]
        assert server.close() == []
        assert server.next_deadline() is None

    def test_close_from_the_peer_is_an_orderly_end(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        events = peer.says(raw.packet(0x05, b"anything"))
        assert only(events, OperationEnded).operation is operation
        assert events[-1] == ConnectionClosed(None)


class TestErrorPackets:
    def test_a_fatal_one_ends_the_connection(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        events = peer.says(error(7, 0, 1, diagnostic=b"too much"))
        assert kinds(events) == ["PeerErrorReceived", "OperationEnded", "ConnectionClosed"]
        assert events[0] == PeerErrorReceived(None, 7, 0, True, 0, "too much")
        reported = events[-1].error
        assert isinstance(reported, PeerReportedError)
        assert (reported.code, reported.diagnostic) == (7, "too much")
        assert events[1].outcome is Outcome.LOST
        assert operation.done
        assert peer.hears() == []

    def test_a_fatal_one_during_the_handshake(self):
        client = ClientConnection()
        client.connect(0.0)
        events = RawPeer(client).says(error(1, 0, 1))
        assert kinds(events) == ["PeerErrorReceived", "ConnectionClosed"]

    def test_one_about_a_frame_ends_its_operation(self):
        client, session, peer = raw_server()
        first, second = client.submit(session, b"{}"), client.submit(session, b"{}")
        events = peer.says(
            error(8, 2, 0, session=1, frame=first.frame_id, retry_after_ms=70, diagnostic=b"old")
        )
        assert events == [
            PeerErrorReceived(first, 8, 2, False, 70, "old"),
            OperationEnded(first, Outcome.FAILED, diagnostic="old", retry_after_ms=70),
        ]
        assert not second.done

    def test_one_about_an_unknown_frame_ends_nothing(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        assert kinds(peer.says(error(8, 2, 0, session=1, frame=99))) == ["PeerErrorReceived"]

    def test_a_fatal_one_about_a_session_ends_the_session(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        peer.says(error(3, 1, 0, session=1))
        assert session.is_open
        events = peer.says(error(3, 1, 1, session=1, diagnostic=b"bye"))
        assert kinds(events) == ["PeerErrorReceived", "OperationEnded", "SessionClosed"]
        assert events[1].diagnostic == "bye"
        assert client.state is ConnectionState.OPEN
        assert client.sessions == {}

    def test_one_that_is_not_fatal_changes_nothing(self):
        server, peer = raw_client()
        peer.says(raw.submit(1))
        events = peer.says(error(3, 0, 0), error(9, 2, 0, session=1, frame=1))
        assert kinds(events) == ["PeerErrorReceived", "PeerErrorReceived"]
        assert events[1].operation is server.sessions[1].operations[1]
        assert len(server.sessions[1].operations) == 1

    def test_a_broken_one_is_a_violation(self):
        client, _, peer = raw_server()
        meta = raw.ERROR.pack(3, 0, 1, 0, 0, 0, 0, 5)
        assert kinds(peer.says(raw.packet(0x06, meta, b"four"))) == ["ProtocolViolation"]
        assert client.state is ConnectionState.OPEN


class TestPing:
    def test_between_our_own_it_is_answered_both_ways(self):
        cores = pair()
        assert cores.client.ping()
        assert cores.server.ping()
        cores.roundtrip()
        assert cores.client_events == [PongReceived()]
        assert cores.server_events == [PongReceived()]

    def test_the_answer_has_the_ids_of_the_question(self):
        _, peer = raw_client(tag=OUR_TAG)
        peer.says(raw.packet(PING, session=1, frame=9))
        assert peer.hears() == [raw.Frame(PONG, 1, 9, b"", b"")]

    def test_one_for_an_unknown_session_gets_no_answer(self):
        _, peer = raw_client(tag=OUR_TAG)
        assert kinds(peer.says(raw.packet(PING, session=2))) == ["ProtocolViolation"]
        # ERROR_RECOVERABLE neither: the session it would go to is unknown.
        assert peer.hears() == []

    @pytest.mark.parametrize("kind", [PING, PONG])
    def test_a_foreign_one_is_never_pinged_nor_answered(self, kind):
        server, peer = raw_client()
        assert not server.ping()
        assert kinds(peer.says(raw.packet(kind))) == ["ProtocolViolation"]
        assert peer.hears() == []
        client, _, other = raw_server()
        assert not client.ping()
        assert kinds(other.says(raw.packet(kind))) == ["ProtocolViolation"]
        assert other.hears() == []

    def test_not_before_the_mark_was_shown_nor_after_the_end(self):
        cores = pair(opened=False)
        cores.roundtrip()
        assert not cores.client.ping()
        cores.client.open_session(0.0)
        cores.roundtrip()
        assert cores.client.ping()
        cores.client.close()
        assert not cores.client.ping()


class TestSessionClose:
    def close(self, session: int = 1) -> bytes:
        return raw.packet(0x09, raw.CLOSE.pack(1, 0, 0, 0, 17, 0, session), session=session)

    def test_nothing_but_the_acknowledgement_follows(self):
        server, peer = raw_client()
        operation = only(peer.says(raw.submit(17)), OperationSubmitted).operation
        events = peer.says(self.close())
        assert kinds(events) == ["OperationCancelled", "SessionClosed"]
        assert events[0].operation is operation
        assert operation.done
        assert not server.complete(operation, b"{}")
        [ack] = peer.hears()
        assert (ack.kind, ack.session) == (MessageType.SESSION_CLOSE_ACK, 1)
        assert ack.unpack(raw.CLOSE_ACK) == (2, 0, 0, 17, 0)

    def test_frames_for_the_closed_session_are_recorded_and_not_answered(self):
        server, peer = raw_client(grant=("control.recoverable_error",))
        peer.says(self.close())
        peer.hears()
        events = peer.says(raw.submit(1), self.close())
        assert kinds(events) == ["ProtocolViolation", "ProtocolViolation"]
        assert events[0].error.detail == "session 1 is not open"
        assert peer.hears() == []
        assert server.state is ConnectionState.OPEN

    def test_one_from_the_server_is_taken_by_our_client(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        events = peer.says(self.close())
        assert events == [
            OperationEnded(operation, Outcome.LOST, diagnostic="the peer closed the session"),
            SessionClosed(session),
        ]
        assert [frame.kind for frame in peer.hears()] == [MessageType.SESSION_CLOSE_ACK]

    def test_a_broken_one_closes_nothing(self):
        server, peer = raw_client()
        bad = raw.packet(0x09, raw.CLOSE.pack(1, 0, 1, 0, 0, 0, 1), session=1)
        assert kinds(peer.says(bad)) == ["ProtocolViolation"]
        assert server.sessions[1].is_open


class TestSending:
    def test_large_bodies_are_not_copied(self):
        server, peer = raw_client()
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        body = b"{" + b" " * 100_000 + b"}"
        server.complete(operation, body)
        head, piece = server.data_to_send()
        assert piece is body
        [frame] = raw.frames(head + piece)
        assert frame.body == raw.typed(body)

    def test_small_ones_are_one_piece(self):
        server, peer = raw_client()
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        server.complete(operation, b"{}")
        [piece] = server.data_to_send()
        assert raw.frames(piece)[0].body == raw.typed(b"{}")

    @pytest.mark.parametrize(
        ("config", "size"), [({"max_packet_bytes": 1000}, 1000 - 160), ({}, 64)]
    )
    def test_a_body_over_the_peers_limit_or_ours_is_not_sent(self, config, size):
        server, peer = raw_client(ServerConfig(**config))
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        if not config:
            server._peer_max_body_bytes = 56 + 64
        with pytest.raises(PacketTooLarge):
            server.complete(operation, bytes(size + 1))
        assert server.data_to_send() == []
        assert server.complete(operation, bytes(size))

    def test_control_sequences_are_never_repeated(self):
        server, peer = raw_client(tag=OUR_TAG)
        for number in (1, 2):
            operation = only(peer.says(raw.submit(number)), OperationSubmitted).operation
            server.retry_after(operation, 5)
        advice = [frame for frame in peer.hears() if frame.kind == MessageType.RETRY_AFTER]
        assert [frame.unpack(raw.RETRY)[1] for frame in advice] == [1, 2]

    def test_draining_the_output_empties_it(self):
        client = ClientConnection()
        client.connect(0.0)
        assert len(client.data_to_send()) == 1
        assert client.data_to_send() == []


def test_diagnostics_are_cut_between_characters():
    assert encode_diagnostic("short") == b"short"
    assert encode_diagnostic("x" * 1024) == b"x" * 1024
    cut = encode_diagnostic("ä" * 2000)
    assert len(cut) <= 1024
    assert cut.decode() == "ä" * (len(cut) // 2)
    assert encode_diagnostic("x" + "ä" * 2000).decode().endswith("ä")
    assert decode_diagnostic(b"\xff" + b"x" * 5000) == "\ufffd" + "x" * 1023


def test_repr_shows_role_state_and_counts():
    cores = pair()
    cores.submit()
    assert repr(cores.client) == (
        "<ClientConnection OPEN: 1 sessions, 1 operations, 0 protocol errors>"
    )
    cores.server.receive_data(raw.packet(0xEE), 0.0)
    assert repr(cores.server) == (
        "<ServerConnection OPEN: 1 sessions, 1 operations, 1 protocol errors>"
    )
    assert "CLOSED: 0 sessions, 0 operations" in repr(cores.client.close() and cores.client)


class TestFuzz:
    """Whatever a peer sends, nothing is raised, and only broken framing ends the connection."""

    KINDS = st.one_of(st.sampled_from(sorted(MessageType)), st.integers(0, 255))
    SIZES = (0, 16, 24, 32, 40, 48, 56, 64, 72, 80)
    # Small numbers in every field: session, frame and operation ids hit what exists.
    NUMBERS = st.lists(st.integers(0, 3), max_size=10).map(lambda n: struct.pack(f"<{len(n)}Q", *n))
    METADATA = st.one_of(
        NUMBERS,
        st.sampled_from(SIZES).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
        st.sampled_from(SIZES).map(bytes),
    )
    BODIES = st.one_of(
        st.just(b""), st.just(b"{}"), st.just(raw.typed(b"{}")), st.binary(max_size=60)
    )
    PACKETS = st.lists(
        st.builds(
            lambda kind, meta, body, session, frame: raw.packet(
                kind, meta, body, session=session, frame=frame
            ),
            KINDS,
            METADATA,
            BODIES,
            st.integers(0, 2),
            st.integers(0, 3),
        ),
        max_size=8,
    )

    @pytest.mark.parametrize("tag", [0, OUR_TAG])
    @settings(max_examples=100, deadline=None)
    @given(packets=PACKETS)
    def test_server(self, tag, packets):
        server, peer = raw_client(tag=tag, grant=() if tag else ("control.recoverable_error",))
        peer.says(raw.submit(1), raw.submit(2))
        self.survives(server, peer, packets)

    @pytest.mark.parametrize("tag", [1, OUR_TAG])
    @settings(max_examples=100, deadline=None)
    @given(packets=PACKETS)
    def test_client(self, tag, packets):
        client, session, peer = raw_server(tag=tag)
        client.submit(session, b"{}")
        client.cancel(client.submit(session, b"{}"))
        peer.hears()
        self.survives(client, peer, packets)

    def survives(self, core, peer, packets):
        known = {0, *core.sessions}
        operations = [
            operation for session in core.sessions.values() for operation in session.frames.values()
        ]
        events = []
        for each in packets:
            events += peer.says(each)
            if core.state is ConnectionState.CLOSED:
                break
        ended = [event.operation for event in events if isinstance(event, OperationEnded)]
        assert len(ended) == len(set(map(id, ended))), "one terminal each"
        if core.state is ConnectionState.CLOSED:
            # Only what says so ends a connection that others share: CLOSE and a fatal ERROR.
            final = events[-1]
            assert isinstance(final, ConnectionClosed)
            assert final.error is None or isinstance(final.error, PeerReportedError)
            assert all(operation.done for operation in operations)
        known |= {event.session.session_id for event in events if isinstance(event, SessionOpened)}
        assert {frame.session for frame in peer.hears()} <= known

    @settings(max_examples=100, deadline=None)
    @given(data=st.binary(max_size=200))
    def test_noise_ends_one_connection_politely(self, data):
        server = ServerConnection()
        server.accept(0.0)
        server.receive_data(data, 0.0)
        if server.state is ConnectionState.CLOSED:
            [answer] = raw.frames(b"".join(server.data_to_send()))
            assert answer.kind == MessageType.ERROR


def test_the_events_of_an_ordinary_life():
    """Hello, session, submit, partials, terminal, close: one sequence diagram for both ends."""
    cores = pair(opened=False)
    cores.client.open_session(0.0)
    cores.roundtrip()
    mine, theirs = cores.submit()
    cores.server.send_partial(theirs, b'{"n":1}')
    cores.server.complete(theirs, b'{"n":2}')
    cores.roundtrip()
    cores.client.close_session(cores.session, 0.0)
    cores.roundtrip()
    assert kinds(cores.client_events) == [
        "Connected",
        "SessionOpened",
        "PartialReceived",
        "OperationEnded",
        "SessionClosed",
    ]
    assert kinds(cores.server_events) == [
        "Connected",
        "SessionOpened",
        "OperationSubmitted",
        "SessionClosed",
    ]
    assert mine.done
    assert theirs.done
    assert isinstance(cores.client_events[0], Connected)
    assert isinstance(cores.server_events[1], SessionOpened)
    assert not any(
        isinstance(event, ProtocolViolation | OperationCancelled)
        for event in (cores.client_events + cores.server_events)
    )
