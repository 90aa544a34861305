"""The client's hello, sessions, negotiation and liveness."""

import pytest

from nnrp_backend.protocol import ClientConfig, ClientConnection, ServerConfig
from nnrp_backend.protocol.constants import CONTROL_CAPABILITIES, OUR_TAG, ErrorCode, MessageType
from nnrp_backend.protocol.errors import LocalProtocolError, PacketTooLarge, PeerTimeout
from nnrp_backend.protocol.events import (
    CapabilitiesGranted,
    Connected,
    ConnectionClosed,
    OperationEnded,
    Outcome,
    ProbeAcknowledged,
    ProbeMissed,
    SessionClosed,
    SessionOpened,
    SessionRejected,
)
from nnrp_backend.protocol.states import ConnectionState, SessionState
from tests.support import protocol as raw
from tests.support.protocol import RawPeer, kinds, only, pair, raw_server

NEGOTIATION, PROBE, PROBE_ACK = 0x3B, 0x19, 0x1A
LIMIT = 0x10007


def connecting(config: ClientConfig | None = None) -> tuple[ClientConnection, RawPeer]:
    """A client that has sent its hello."""
    client = ClientConnection(config or ClientConfig(probe_interval=0))
    client.connect(0.0)
    return client, RawPeer(client)


class TestHello:
    def test_it_is_what_the_published_server_accepts(self):
        _, peer = connecting()
        [hello] = peer.hears()
        assert hello == raw.Frame(0x01, 0, 0, hello.meta, b"")
        values = hello.unpack(raw.HELLO)
        assert values[:5] == (1, 1, 1, 3, 0x73)
        # One lane; no cadence, no cache, no requested session, no auth, no extensions.
        assert values[5:] == (*[0] * 7, 1, *[0] * 9)

    def test_the_answer_opens_the_connection(self):
        client, peer = connecting()
        assert peer.says(raw.hello_ack()) == [Connected()]
        assert client.state is ConnectionState.OPEN
        assert client.next_deadline() is None

    def test_connecting_twice_is_our_mistake(self):
        client, _ = connecting()
        with pytest.raises(LocalProtocolError):
            client.connect(0.0)

    def test_silence_is_bounded(self):
        client, _ = connecting(ClientConfig(handshake_timeout=5.0))
        assert client.next_deadline() == 5.0
        assert client.handle_deadline(4.9) == []
        [closed] = client.handle_deadline(5.0)
        assert isinstance(closed.error, PeerTimeout)
        assert str(closed.error) == "the peer sent no SERVER_HELLO_ACK within 5 s"

    def ack(self, **changes: int) -> bytes:
        values = [1, 0, 0, 0, 0, 2, 0x73, *[0] * 8, 1, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        for place, value in changes.items():
            values[int(place[1:])] = value
        return raw.packet(0x02, raw.HELLO_ACK.pack(*values))

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            ({"f0": 2}, ErrorCode.UNSUPPORTED_VERSION),
            ({"f1": 1}, ErrorCode.UNSUPPORTED_VERSION),
            ({"f3": 1}, ErrorCode.MALFORMED_BODY),  # a reserved field
            ({"f5": 0}, ErrorCode.UNSUPPORTED_CAPABILITY),
            ({"f5": 1}, ErrorCode.UNSUPPORTED_CAPABILITY),
            ({"f5": 7}, ErrorCode.MALFORMED_BODY),  # a profile that was not offered
            ({"f6": 0x63}, ErrorCode.UNSUPPORTED_CAPABILITY),
            ({"f6": 0xFF}, ErrorCode.MALFORMED_BODY),  # a payload kind that was not offered
        ],
    )
    def test_an_answer_that_cannot_be_ends_the_connection(self, answer, code):
        client, peer = connecting()
        peer.hears()
        events = peer.says(self.ack(**answer))
        assert kinds(events) == ["ProtocolViolation", "ConnectionClosed"]
        assert events[-1].error.code is code
        assert client.state is ConnectionState.CLOSED
        assert [frame.kind for frame in peer.hears()] == [MessageType.ERROR]

    @pytest.mark.parametrize("packet", [raw.open_ack(), raw.hello(), raw.packet(0x38)])
    def test_anything_else_ends_the_connection(self, packet):
        _, peer = connecting()
        assert kinds(peer.says(packet)) == ["ProtocolViolation", "ConnectionClosed"]

    def test_a_second_answer_is_survived(self):
        client, _, peer = raw_server()
        assert kinds(peer.says(raw.hello_ack())) == ["ProtocolViolation"]
        assert client.state is ConnectionState.OPEN

    @pytest.mark.parametrize(("said", "largest"), [(1000, 1000), (0, 5000 - 112)])
    def test_the_servers_body_limit_is_kept(self, said, largest):
        client, peer = connecting(ClientConfig(probe_interval=0, max_packet_bytes=5000))
        client.open_session(0.0)
        peer.says(raw.hello_ack(max_body=said), raw.open_ack())
        session = client.sessions[1]
        client.submit(session, bytes(largest - 56))
        with pytest.raises(PacketTooLarge):
            client.submit(session, bytes(largest - 56 + 1))
        assert len(session.operations) == 1


class TestOpening:
    def test_it_asks_for_one_token_session_with_our_mark(self):
        config = ClientConfig(probe_interval=0, max_in_flight=200, default_deadline_ms=77)
        client, peer = connecting(config)
        client.open_session(0.0)
        assert [frame.kind for frame in peer.hears()] == [0x01]  # nothing before the answer
        peer.says(raw.hello_ack())
        [opening] = peer.hears()
        assert (opening.kind, opening.session, opening.body) == (0x07, 0, b"")
        assert opening.unpack(raw.OPEN) == (
            0, 2, 1, 0, 0x1001, 3, 77, 200, 0, 30_000, 0, 0, 0, OUR_TAG,
        )  # fmt: skip

    def test_the_answer_makes_the_session(self):
        client, session, _ = raw_server()
        assert session.is_open
        assert session.max_in_flight == 64
        assert not session.peer_is_ours
        assert client.sessions == {1: session}

    def test_the_smaller_of_asked_and_granted_counts(self):
        for asked, granted, expected in [(10, 64, 10), (64, 10, 10), (64, 0, 64)]:
            client, peer = connecting(ClientConfig(probe_interval=0, max_in_flight=asked))
            client.open_session(0.0)
            peer.says(raw.hello_ack())
            opened = only(peer.says(raw.open_ack(max_in_flight=granted)), SessionOpened)
            assert opened.session.max_in_flight == expected

    def test_opens_are_serialized(self):
        client, peer = connecting()
        for _ in range(3):
            client.open_session(0.0)
        peer.says(raw.hello_ack())
        opened = []
        for number in (1, 2, 3):
            frames = [frame for frame in peer.hears() if frame.kind == 0x07]
            assert len(frames) == 1
            opened += peer.says(raw.open_ack(number, tag=OUR_TAG))
        assert [event.session.session_id for event in opened] == [1, 2, 3]
        assert peer.hears() == []
        assert client.next_deadline() is None

    @pytest.mark.parametrize(
        ("asked", "offers", "tried"),
        [
            (64, [4], [64, 4]),  # the server's own limit
            (64, [32, 8], [64, 32, 8]),
            (5, [0, 0], [5, 2, 1]),  # it does not say: halve
        ],
    )
    def test_a_server_that_takes_fewer_is_asked_again_with_its_number(self, asked, offers, tried):
        client, peer = connecting(ClientConfig(probe_interval=0, max_in_flight=asked))
        client.open_session(0.0)
        peer.says(raw.hello_ack())
        for offer in offers:
            refusal = raw.open_ack(0, status=1, code=LIMIT, max_in_flight=offer)
            assert peer.says(refusal) == []
        opened = only(peer.says(raw.open_ack(max_in_flight=tried[-1])), SessionOpened)
        assert opened.session.max_in_flight == tried[-1]
        opens = [frame.unpack(raw.OPEN)[7] for frame in peer.hears() if frame.kind == 0x07]
        assert opens == tried

    @pytest.mark.parametrize(
        ("status", "code", "offered", "later"),
        [
            (1, 0x10001, 4, False),
            (1, 0x10002, 4, False),
            (1, LIMIT, 64, False),  # the limit is not what was asked for
            (1, LIMIT, 100, False),
            (2, LIMIT, 4, True),
        ],
    )
    def test_other_rejections_are_reported(self, status, code, offered, later):
        client, peer = connecting(ClientConfig(probe_interval=0, max_in_flight=64))
        client.open_session(0.0)
        peer.says(raw.hello_ack())
        peer.hears()
        answer = raw.open_ack(
            0, status=status, code=code, max_in_flight=offered, diagnostic=b"no way"
        )
        assert peer.says(answer) == [SessionRejected(code, later, "no way")]
        assert peer.hears() == []
        assert client.state is ConnectionState.OPEN
        # Another one may be tried.
        client.open_session(0.0)
        assert kinds(peer.says(raw.open_ack())) == ["SessionOpened"]

    def test_halving_ends_at_one(self):
        client, peer = connecting(ClientConfig(probe_interval=0, max_in_flight=1))
        client.open_session(0.0)
        refusal = raw.open_ack(0, status=1, code=LIMIT, max_in_flight=0)
        assert kinds(peer.says(raw.hello_ack(), refusal)) == ["Connected", "SessionRejected"]

    def test_silence_is_bounded(self):
        client, peer = connecting()
        peer.now = 3.0
        peer.says(raw.hello_ack())
        client.open_session(3.0)
        assert client.next_deadline() == 8.0
        [closed] = client.handle_deadline(8.0)
        assert str(closed.error) == "the peer sent no SESSION_OPEN_ACK within 5 s"

    def test_an_answer_nobody_asked_for_is_a_violation(self):
        client, _, peer = raw_server()
        assert kinds(peer.says(raw.open_ack(2))) == ["ProtocolViolation"]
        assert list(client.sessions) == [1]

    @pytest.mark.parametrize("session_id", [0, 1])
    def test_a_session_id_that_cannot_be_new_ends_the_connection(self, session_id):
        client, _, peer = raw_server()
        client.open_session(0.0)
        events = peer.says(raw.open_ack(session_id))
        assert kinds(events) == ["ProtocolViolation", "ConnectionClosed"]

    def test_a_broken_answer_is_a_violation_and_the_wait_goes_on(self):
        client, peer = connecting()
        client.open_session(0.0)
        peer.says(raw.hello_ack())
        assert kinds(peer.says(raw.packet(0x08, b"short"))) == ["ProtocolViolation"]
        assert client.next_deadline() == 5.0
        assert kinds(peer.says(raw.open_ack())) == ["SessionOpened"]

    def test_not_on_a_closed_connection(self):
        client, _ = connecting()
        client.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            client.open_session(0.0)

    def test_against_our_own_server_with_a_lower_limit(self):
        cores = pair(server=ServerConfig(max_in_flight=3))
        assert cores.session.max_in_flight == 3
        assert cores.session.peer_is_ours


class TestNegotiation:
    def test_a_foreign_server_is_asked_at_session_scope_after_the_open(self):
        client, peer = connecting()
        client.open_session(0.0)
        peer.says(raw.hello_ack())
        peer.hears()
        peer.says(raw.open_ack(7))
        [asked] = peer.hears()
        assert (asked.kind, asked.session, asked.frame) == (NEGOTIATION, 7, 0)
        tokens = raw.tokens_in(asked.body)
        assert tokens == sorted(set(tokens))
        assert set(tokens) == CONTROL_CAPABILITIES
        assert "payload.typed" not in tokens
        # profile 0, the count, no costs, the body's length, downgrade allowed.
        assert asked.unpack(raw.CAPABILITY) == (0, len(tokens), 0, 0, 0, 0, len(asked.body), 2)

    def test_every_foreign_session_is_asked(self):
        client, _, peer = raw_server()
        client.open_session(0.0)
        peer.says(raw.open_ack(9))
        asked = [frame.session for frame in peer.hears() if frame.kind == NEGOTIATION]
        assert asked == [9]

    def test_our_own_is_not_asked(self):
        cores = pair()
        assert cores.session.tokens == CONTROL_CAPABILITIES
        cores.client.open_session(0.0)
        cores.roundtrip()
        assert NEGOTIATION not in {frame.kind for frame in cores.seen_by_server}

    @pytest.mark.parametrize("kind", [0x3B, 0x3C])
    def test_what_is_granted(self, kind):
        client, session, peer = raw_server(grant=None)
        granted = ("control.cancel_abort", "control.progress_partial", "control.unheard_of")
        [event] = peer.says(raw.capabilities(*granted, kind=kind))
        assert event == CapabilitiesGranted(session, frozenset(granted[:2]))
        assert session.tokens == frozenset(granted[:2])
        assert client.next_deadline() is None

    def test_silence_grants_nothing(self):
        client, session, peer = raw_server(ClientConfig(probe_interval=0), grant=None)
        assert client.next_deadline() == 1.0
        assert client.handle_deadline(1.0) == [CapabilitiesGranted(session, frozenset())]
        assert client.next_deadline() is None
        # A late answer still counts.
        peer.says(raw.capabilities("control.supersede"))
        assert session.may("control.supersede")

    def test_submits_do_not_wait_for_it(self):
        client, session, peer = raw_server(grant=None)
        client.submit(session, b"{}")
        assert [frame.kind for frame in peer.hears()] == [0x10]

    @pytest.mark.parametrize(
        "answer",
        [
            raw.capabilities("b", "a"),
            raw.capabilities("a", count=2),
            raw.capabilities("a", session=9),
            raw.packet(NEGOTIATION, b"short", session=1),
        ],
    )
    def test_a_broken_answer_grants_nothing(self, answer):
        client, session, peer = raw_server(grant=None)
        assert kinds(peer.says(answer)) == ["ProtocolViolation"]
        assert session.tokens == frozenset()
        assert client.next_deadline() == 1.0

    def test_our_own_servers_cannot_take_the_mark_back(self):
        _, session, peer = raw_server(tag=OUR_TAG)
        assert kinds(peer.says(raw.capabilities("control.supersede"))) == ["ProtocolViolation"]
        assert session.tokens == CONTROL_CAPABILITIES


class TestClosing:
    def test_what_is_in_flight_is_lost_at_once(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        client.close_session(session, 1.0)
        assert session.state is SessionState.CLOSING
        [closing] = peer.hears()
        assert (closing.kind, closing.session, closing.body) == (0x09, 1, b"")
        # client shutdown, abort, no drain, the last operation, no error, the session as tag.
        assert closing.unpack(raw.CLOSE) == (1, 1, 0, 0, operation.operation_id, 0, 1)
        ack = raw.packet(0x0A, raw.CLOSE_ACK.pack(2, 0, 0, 0, 0), session=1)
        late = raw.partial(operation.operation_id) + raw.result(operation.frame_id)
        events = peer.says(late, ack)
        assert events == [
            OperationEnded(operation, Outcome.LOST, diagnostic="the session was closed"),
            SessionClosed(session),
        ]
        assert client.counters.late_events == 2
        assert client.sessions == {}
        assert client.next_deadline() is None

    def test_an_idle_session_drains(self):
        client, session, peer = raw_server()
        client.close_session(session, 0.0)
        assert peer.hears()[0].unpack(raw.CLOSE)[1] == 0

    def test_draining_is_waited_for(self):
        client, session, peer = raw_server()
        client.close_session(session, 0.0)
        draining = raw.packet(0x0A, raw.CLOSE_ACK.pack(1, 0, 0, 0, 0), session=1)
        assert peer.says(draining) == []
        closed = raw.packet(0x0A, raw.CLOSE_ACK.pack(2, 0, 0, 0, 0), session=1)
        assert peer.says(closed) == [SessionClosed(session)]
        assert session.state is SessionState.CLOSED

    def test_silence_closes_it_on_our_side_alone(self):
        client, session, _ = raw_server(grant=None)
        client.close_session(session, 2.0)
        assert client.next_deadline() == 7.0
        assert client.handle_deadline(7.0) == [SessionClosed(session)]
        assert client.state is ConnectionState.OPEN

    def test_an_answer_to_nothing_is_a_violation(self):
        _, session, peer = raw_server()
        ack = raw.packet(0x0A, raw.CLOSE_ACK.pack(2, 0, 0, 0, 0), session=1)
        assert kinds(peer.says(ack)) == ["ProtocolViolation"]
        assert session.is_open

    def test_twice_is_our_mistake_and_so_is_a_submit_after_it(self):
        client, session, peer = raw_server()
        client.close_session(session, 0.0)
        peer.hears()
        with pytest.raises(LocalProtocolError):
            client.close_session(session, 0.0)
        with pytest.raises(LocalProtocolError, match="takes no operations"):
            client.submit(session, b"{}")
        assert peer.hears() == []

    def test_eof_while_closing(self):
        client, session, _ = raw_server()
        client.close_session(session, 0.0)
        assert client.receive_eof() == [ConnectionClosed(None)]
        assert session.state is SessionState.CLOSED


class TestLiveness:
    CONFIG = ClientConfig(probe_interval=5.0, dead_after=60.0)

    def connected(self):
        client, _, peer = raw_server(self.CONFIG)
        return client, peer

    def ack(self, number: int) -> bytes:
        return raw.packet(PROBE_ACK, raw.PROBE.pack(number, 0, 99))

    def test_probes_go_out_by_themselves(self):
        client, peer = self.connected()
        assert client.next_deadline() == 5.0
        assert client.handle_deadline(5.0) == []
        [probe] = peer.hears()
        assert (probe.kind, probe.session, probe.frame, probe.body) == (PROBE, 0, 0, b"")
        assert probe.unpack(raw.PROBE) == (1, 0, 5_000_000)
        assert client.next_deadline() == 10.0

    def test_the_answer_tells_the_round_trip(self):
        client, peer = self.connected()
        client.handle_deadline(5.0)
        peer.now = 5.25
        assert peer.says(self.ack(1)) == [ProbeAcknowledged(0.25)]
        peer.hears()
        client.handle_deadline(10.0)
        assert peer.hears()[0].unpack(raw.PROBE)[0] == 2

    def test_a_probe_without_any_answer_is_missed(self):
        client, peer = self.connected()
        client.handle_deadline(5.0)
        assert client.handle_deadline(10.0) == [ProbeMissed(10.0)]
        assert client.handle_deadline(15.0) == [ProbeMissed(15.0)]
        # One is enough: it waits in the peer's buffers.
        assert len(peer.hears()) == 1
        peer.now = 17.0
        assert kinds(peer.says(self.ack(1))) == ["ProbeAcknowledged"]
        assert client.handle_deadline(20.0) == []

    def test_any_byte_is_a_sign_of_life(self):
        client, peer = self.connected()
        client.handle_deadline(5.0)
        peer.now = 10.0
        peer.says(raw.packet(0x38, b"")[:10])
        assert client.handle_deadline(10.0) == []
        assert client.handle_deadline(15.0) == [ProbeMissed(5.0)]

    def test_long_silence_ends_the_connection(self):
        client, _ = self.connected()
        operation = client.submit(client.sessions[1], b"{}")
        now, missed = 0.0, 0
        while client.state is ConnectionState.OPEN:
            now = client.next_deadline()
            events = client.handle_deadline(now)
            missed += sum(isinstance(event, ProbeMissed) for event in events)
        assert now == 60.0
        assert missed == 10
        assert [type(event) for event in events] == [OperationEnded, ConnectionClosed]
        assert operation.done
        assert str(events[-1].error) == "the peer sent no bytes within 60 s"

    def test_the_end_comes_on_time_between_two_probes(self):
        client, peer = self.connected()
        client.handle_deadline(5.0)
        peer.now = 7.0
        peer.says(self.ack(1))
        now = 7.0
        while client.state is ConnectionState.OPEN:
            now = client.next_deadline()
            client.handle_deadline(now)
        assert now == 67.0

    @pytest.mark.parametrize(("dribble", "lives"), [(100, False), (8 * 1024, True)])
    def test_a_packet_that_is_never_complete_is_no_sign_of_life(self, dribble, lives):
        client, peer = self.connected()
        operation = client.submit(client.sessions[1], b"{}")
        whole = raw.packet(0x38, bytes(64), bytes(50_000_000))
        peer.says(whole[:40])
        for second in range(1, 130):
            peer.now = float(second)
            peer.says(whole[40 : 40 + dribble])
            while client.next_deadline() is not None and client.next_deadline() <= second:
                events = client.handle_deadline(float(second))
        assert (client.state is ConnectionState.OPEN) is lives
        assert operation.done is not lives
        if not lives:
            assert str(events[-1].error) == "the peer sent no whole packet within 60 s"

    def test_asking_at_once(self):
        client, peer = self.connected()
        assert client.probe(1.0)
        assert not client.probe(2.0)
        assert len(peer.hears()) == 1
        client.close()
        assert not client.probe(3.0)

    def test_an_answer_to_no_probe_is_a_violation(self):
        client, peer = self.connected()
        assert kinds(peer.says(self.ack(1))) == ["ProtocolViolation"]
        client.probe(1.0)
        assert kinds(peer.says(self.ack(7))) == ["ProtocolViolation"]

    def test_it_can_be_switched_off(self):
        client, _, _ = raw_server(ClientConfig(probe_interval=0))
        assert client.next_deadline() is None

    def test_our_own_server_answers(self):
        cores = pair()
        cores.client.probe(1.0)
        cores.now = 1.5
        cores.roundtrip()
        assert only(cores.client_events, ProbeAcknowledged).rtt == 0.5
