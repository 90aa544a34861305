"""The server's hello, sessions, negotiation, flow and answers."""

from itertools import count

import pytest

from nnrp_backend.protocol import ServerConfig, ServerConnection
from nnrp_backend.protocol.constants import (
    CONTROL_CAPABILITIES,
    OUR_TAG,
    UNUSED_BY_SERVER,
    ErrorCode,
    MessageType,
    PressureLevel,
    PressureReason,
)
from nnrp_backend.protocol.errors import PeerTimeout
from nnrp_backend.protocol.events import (
    CapabilitiesGranted,
    Connected,
    ConnectionClosed,
    CreditGranted,
    OperationSubmitted,
    PeerDraining,
    PressureReported,
    Refusal,
    SessionOpened,
    SessionRejected,
    SubmitRefused,
)
from nnrp_backend.protocol.states import ConnectionState
from tests.support import protocol as raw
from tests.support.protocol import RawPeer, kinds, only, pair, raw_client

CREDIT, BACKPRESSURE, FLOW = 0x3A, 0x39, 0x17
NEGOTIATION, DEGRADE, RECOVERABLE = 0x3B, 0x3C, 0x48
LIMIT = 0x10007


def accepting(config: ServerConfig | None = None) -> tuple[ServerConnection, RawPeer]:
    """A server that waits for the hello."""
    server = ServerConnection(config)
    server.accept(0.0)
    return server, RawPeer(server)


class TestHello:
    def test_the_answer_is_a_subset_of_what_was_offered(self):
        _, peer = accepting(ServerConfig(max_in_flight=77, max_packet_bytes=5000))
        assert peer.says(raw.hello()) == [Connected()]
        [ack] = peer.hears()
        assert (ack.kind, ack.session, ack.frame, ack.body) == (0x02, 0, 0, b"")
        values = ack.unpack(raw.HELLO_ACK)
        assert values[:7] == (1, 0, 0, 0, 0, 2, 0x73)
        assert values[7:15] == (0,) * 8
        # lanes, concurrent frames, four hints, the largest body, ttl, retry, extensions, flags
        assert values[15:] == (1, 77, 0, 0, 0, 0, 5000, 0, 0, 0, 0)

    def test_only_what_was_offered_is_accepted(self):
        _, peer = accepting()
        peer.says(raw.hello(profiles=0b110, kinds=0x90))
        values = peer.hears()[0].unpack(raw.HELLO_ACK)
        assert (values[5], values[6]) == (0b10, 0x10)

    def test_extensions_of_the_hello_are_ignored(self):
        _, peer = accepting()
        fields = [1, 1, 1, 3, 0x73, *[0] * 7, 1, 0, 0, 0, 500, *[0] * 5]
        fields[-1] = 16
        extension = b"\x01\x00\x00\x00\x04\x00\x00\x00abcd\x00\x00\x00\x00"
        assert peer.says(raw.packet(1, raw.HELLO.pack(*fields), extension)) == [Connected()]

    def fields(self, **changes: int) -> bytes:
        values = [1, 1, 1, 3, 0x73, *[0] * 7, 1, 0, 0, 0, 500, *[0] * 5]
        for place, value in changes.items():
            values[int(place[1:])] = value
        return raw.packet(1, raw.HELLO.pack(*values))

    @pytest.mark.parametrize(
        ("packet", "code"),
        [
            ({"f0": 2, "f1": 3}, ErrorCode.UNSUPPORTED_VERSION),
            ({"f0": 2, "f1": 1}, ErrorCode.UNSUPPORTED_VERSION),
            ({"f0": 0, "f1": 0}, ErrorCode.UNSUPPORTED_VERSION),
            ({"f2": 2}, ErrorCode.UNSUPPORTED_VERSION),
            ({"f3": 1}, ErrorCode.UNSUPPORTED_CAPABILITY),
            ({"f4": 0x63}, ErrorCode.UNSUPPORTED_CAPABILITY),
            ({"f20": 8}, ErrorCode.AUTH_FAILED),
            ({"f21": 8}, ErrorCode.MALFORMED_BODY),  # no body of that length
        ],
    )
    def test_what_cannot_be_agreed_on_ends_the_connection(self, packet, code):
        server, peer = accepting()
        events = peer.says(self.fields(**packet))
        assert kinds(events) == ["ProtocolViolation", "ConnectionClosed"]
        assert events[-1].error.code is code
        [answer] = peer.hears()
        assert answer.kind == MessageType.ERROR
        assert answer.unpack(raw.ERROR)[:3] == (code, 0, 1)
        assert server.state is ConnectionState.CLOSED

    @pytest.mark.parametrize(
        "packet", [raw.packet(1, b"short"), raw.open_session(), raw.submit(1), raw.packet(0x20)]
    )
    def test_anything_else_ends_the_connection(self, packet):
        _, peer = accepting()
        assert kinds(peer.says(packet)) == ["ProtocolViolation", "ConnectionClosed"]

    def test_a_wide_range_of_versions(self):
        _, peer = accepting()
        assert peer.says(raw.hello(versions=(0, 9))) == [Connected()]

    def test_a_second_hello_is_survived(self):
        server, peer = raw_client()
        assert kinds(peer.says(raw.hello())) == ["ProtocolViolation"]
        assert server.state is ConnectionState.OPEN

    def test_silence_is_bounded(self):
        server, _ = accepting(ServerConfig(handshake_timeout=3.0))
        assert server.next_deadline() == 3.0
        assert server.handle_deadline(2.9) == []
        [closed] = server.handle_deadline(3.0)
        assert isinstance(closed, ConnectionClosed)
        assert isinstance(closed.error, PeerTimeout)

    def test_after_the_hello_a_session_may_take_its_time(self):
        server, peer = accepting()
        peer.says(raw.hello())
        assert server.next_deadline() is None


class TestOpening:
    def test_the_answer(self):
        server, peer = accepting(ServerConfig(max_in_flight=100, lease_ttl_ms=1234))
        events = peer.says(raw.hello(), raw.open_session(max_in_flight=64))
        session = only(events, SessionOpened).session
        assert (session.session_id, session.max_in_flight) == (1, 64)
        assert not session.peer_is_ours
        assert session.tokens == frozenset()
        _, ack = peer.hears()
        assert (ack.kind, ack.session, ack.body) == (0x08, 1, b"")
        assert ack.unpack(raw.OPEN_ACK) == (
            1, 2, 1, 0, 0x1001, 3, 64, 64, 1234, 0, 0, 0, OUR_TAG, 0, 0, 0,
        )  # fmt: skip
        assert server.sessions == {1: session}

    @pytest.mark.parametrize("priority", [0, 1, 2])
    def test_every_priority_class_is_taken(self, priority):
        server, peer = accepting()
        peer.says(raw.hello(), raw.open_session(priority=priority))
        assert server.sessions[1].priority_class == priority
        assert peer.hears()[1].unpack(raw.OPEN_ACK)[2] == priority

    def test_asking_for_no_number_gets_ours(self):
        server, peer = accepting(ServerConfig(max_in_flight=100))
        peer.says(raw.hello(), raw.open_session(max_in_flight=0))
        assert server.sessions[1].max_in_flight == 100

    def test_our_own_clients_are_known_by_their_mark(self):
        server, peer = accepting()
        opened = only(peer.says(raw.hello(), raw.open_session(tag=OUR_TAG + 5)), SessionOpened)
        assert opened.session.peer_is_ours
        assert opened.session.tokens == CONTROL_CAPABILITIES
        assert server.peer_is_ours

    def test_session_ids_are_unique_per_server(self):
        ids = count(10).__next__
        config = ServerConfig(next_session_id=ids)
        for expected in (10, 11):
            server, peer = accepting(config)
            peer.says(raw.hello(), raw.open_session())
            assert list(server.sessions) == [expected]

    @pytest.mark.parametrize(
        ("asked", "status", "code"),
        [
            ({"auth": 8}, 1, 0x10001),
            ({"profile": 0}, 1, 0x10002),
            ({"profile": 1}, 1, 0x10002),
            ({"schema": 0x1002}, 1, 0x10003),
            ({"version": 2}, 1, 0x10003),
            ({"priority": 3}, 1, 0x10004),
            ({"resume": 16}, 1, 0x10006),
            ({"max_in_flight": 1025}, 1, LIMIT),
            ({"reserved": 1}, 1, ErrorCode.MALFORMED_BODY),
        ],
    )
    def test_a_refusal_says_why_and_carries_our_limits(self, asked, status, code):
        server, peer = accepting()
        events = peer.says(raw.hello(), raw.open_session(**asked))
        assert not any(isinstance(event, SessionOpened) for event in events)
        _, ack = peer.hears()
        assert (ack.kind, ack.session) == (0x08, 0)
        values = ack.unpack(raw.OPEN_ACK)
        assert (values[0], values[3], values[14]) == (0, status, code)
        assert values[6:8] == (1024, 1024)
        assert values[11] == len(ack.body) > 0
        assert server.sessions == {}
        # Another one may be asked for.
        assert kinds(peer.says(raw.open_session())) == ["SessionOpened"]

    def test_a_broken_one_is_refused_and_recorded(self):
        server, peer = accepting()
        events = peer.says(raw.hello(), raw.packet(0x07, b"short"))
        assert kinds(events) == ["Connected", "ProtocolViolation"]
        assert peer.hears()[1].unpack(raw.OPEN_ACK)[3] == 1
        assert server.state is ConnectionState.OPEN

    def test_sessions_are_bounded(self):
        server, peer = accepting(ServerConfig(max_sessions=2))
        peer.says(raw.hello(), *[raw.open_session()] * 3)
        assert list(server.sessions) == [1, 2]
        values = peer.hears()[-1].unpack(raw.OPEN_ACK)
        assert (values[3], values[14]) == (2, LIMIT)  # retry later
        peer.says(raw.packet(0x09, raw.CLOSE.pack(0, 0, 0, 0, 0, 0, 1), session=1))
        assert kinds(peer.says(raw.open_session())) == ["SessionOpened"]

    def test_our_own_client_does_not_ask_again_when_told_later(self):
        cores = pair(server=ServerConfig(max_sessions=1))
        cores.client.open_session(0.0)
        cores.roundtrip()
        rejected = only(cores.client_events, SessionRejected)
        assert rejected.retry_later
        assert rejected.diagnostic == "at most 1 sessions"
        assert len([frame for frame in cores.seen_by_server if frame.kind == 0x07]) == 1


class TestNegotiation:
    def test_what_is_served_is_granted(self):
        server, peer = raw_client()
        asked = ("control.cancel_abort", "control.progress_partial", "payload.typed")
        [event] = peer.says(raw.capabilities(*asked))
        assert event == CapabilitiesGranted(server.sessions[1], frozenset(asked))
        [answer] = peer.hears()
        assert (answer.kind, answer.session, answer.frame) == (NEGOTIATION, 1, 0)
        assert raw.tokens_in(answer.body) == list(asked)
        assert answer.unpack(raw.CAPABILITY) == (0, 3, 0, 0, 0, 0, len(answer.body), 2)

    @pytest.mark.parametrize(("flags", "kind"), [(2, DEGRADE), (0, NEGOTIATION), (1, NEGOTIATION)])
    def test_a_strict_subset_degrades_where_that_is_allowed(self, flags, kind):
        server, peer = raw_client()
        asked = ("cache.reference", "control.cancel_abort", "object.lifecycle")
        peer.says(raw.capabilities(*asked, flags=flags))
        [answer] = peer.hears()
        assert answer.kind == kind
        assert raw.tokens_in(answer.body) == ["control.cancel_abort"]
        assert server.sessions[1].tokens == {"control.cancel_abort"}

    def test_a_hard_requirement_that_cannot_be_met(self):
        server, peer = raw_client(ServerConfig(capabilities=frozenset({"control.supersede"})))
        peer.says(raw.capabilities("control.recoverable_error", "object.delta", flags=1))
        [answer] = peer.hears()
        assert (answer.kind, answer.session, answer.frame) == (RECOVERABLE, 1, 0)
        code, scope, *_ = answer.unpack(raw.RECOVERABLE)
        assert (code, scope) == (ErrorCode.UNSUPPORTED_CAPABILITY, 1)
        assert answer.body == b"capability_unsupported"
        assert server.sessions[1].tokens == frozenset()

    @pytest.mark.parametrize(("flags", "kind"), [(0, NEGOTIATION), (2, DEGRADE)])
    def test_a_soft_one_that_cannot_be_met(self, flags, kind):
        config = ServerConfig(capabilities=frozenset())
        _, peer = raw_client(config)
        peer.says(raw.capabilities("control.recoverable_error", flags=flags))
        [answer] = peer.hears()
        assert (answer.kind, answer.body) == (kind, b"")

    def test_one_from_a_peer_that_does_not_know_the_error_gets_an_empty_list(self):
        _, peer = raw_client()
        peer.says(raw.capabilities("object.delta", flags=1))
        [answer] = peer.hears()
        assert (answer.kind, answer.body) == (NEGOTIATION, b"")

    def test_negotiating_again_replaces(self):
        server, peer = raw_client(grant=("control.cancel_abort",))
        peer.says(raw.capabilities("control.supersede"))
        assert server.sessions[1].tokens == {"control.supersede"}

    def test_our_own_lose_nothing_by_asking(self):
        server, peer = raw_client(tag=OUR_TAG)
        peer.says(raw.capabilities("control.supersede"))
        assert server.sessions[1].tokens == CONTROL_CAPABILITIES
        assert raw.tokens_in(peer.hears()[0].body) == ["control.supersede"]

    def test_the_adapters_choice_narrows_it(self):
        config = ServerConfig(capabilities=frozenset({"control.cancel_abort"}))
        server, peer = raw_client(config)
        peer.says(raw.capabilities("control.cancel_abort", "control.priority_update"))
        assert server.sessions[1].tokens == {"control.cancel_abort"}

    def test_a_client_may_give_some_up(self):
        server, peer = raw_client(grant=("control.cancel_abort", "control.supersede"))
        [event] = peer.says(raw.capabilities("control.supersede", "zzz", kind=DEGRADE))
        assert event.tokens == server.sessions[1].tokens == {"control.supersede"}
        assert peer.hears() == []

    @pytest.mark.parametrize(
        "packet",
        [
            raw.capabilities("b", "a"),
            raw.capabilities("a", count=0),
            raw.capabilities("a", session=5),
            raw.capabilities("b", "a", kind=DEGRADE),
            raw.packet(NEGOTIATION, raw.CAPABILITY.pack(2, 0, 0, 0, 0, 0, 0, 0), session=1),
        ],
    )
    def test_a_broken_list_changes_nothing_and_the_session_lives(self, packet):
        server, peer = raw_client(grant=("control.cancel_abort",))
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]
        assert peer.hears() == []  # ERROR_RECOVERABLE was not negotiated
        assert server.sessions[1].tokens == {"control.cancel_abort"}
        assert kinds(peer.says(raw.submit(1))) == ["OperationSubmitted"]


class TestCredit:
    def submitted(self, **how):
        server, peer = raw_client(**how)
        operation = only(peer.says(raw.submit(7)), OperationSubmitted).operation
        return server, peer, operation

    @pytest.mark.parametrize("kind", [CREDIT, BACKPRESSURE])
    def test_windows_replace_each_other(self, kind):
        server, peer, operation = self.submitted()
        for window in (5, 2, 9):
            packet = raw.pressure(kind, 7, window, frame=7, flags=2)
            assert peer.says(packet) == [CreditGranted(server.sessions[1], operation)]
            assert operation.credit == window

    def test_each_scope_has_its_own(self):
        server, peer, operation = self.submitted()
        session = server.sessions[1]
        assert peer.says(raw.pressure(CREDIT, 1, 4)) == [CreditGranted(session, None)]
        assert peer.says(raw.flow_update(session=0, scope=0, credits=(3, 0, 0))) == [
            CreditGranted(None, None)
        ]
        assert (operation.credit, session.credit, server.credit) == (None, 4, 3)

    def test_a_flow_update_grants_too_and_stale_ones_are_ignored(self):
        server, peer, operation = self.submitted()

        def update(epoch, window):
            return raw.flow_update(
                scope=2, credits=(0, 0, window), operation=7, frame=7, epoch=epoch
            )

        events = peer.says(update(4, 6), update(3, 100), update(4, 7))
        assert len(events) == 2
        assert operation.credit == 7
        assert server.counters.stale_controls == 1

    def test_one_without_a_window_grants_nothing(self):
        _, peer, operation = self.submitted()
        assert peer.says(raw.flow_update(flags=0, level=2)) == []
        assert operation.credit is None

    def test_one_for_a_done_operation_is_late(self):
        server, peer, operation = self.submitted()
        server.complete(operation, b"{}")
        assert peer.says(raw.pressure(CREDIT, 7, 5, frame=7, flags=2)) == []
        assert server.counters.late_events == 1

    @pytest.mark.parametrize(
        "packet",
        [
            raw.pressure(CREDIT, 7, 5, frame=8, flags=2),
            raw.pressure(CREDIT, 7, 5, session=2, frame=7, flags=2),
            raw.pressure(CREDIT, 7, 5, frame=7, flags=3),
        ],
    )
    def test_contradictions_grant_nothing(self, packet):
        _, peer, operation = self.submitted()
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]
        assert operation.credit is None


class TestAdvertising:
    def test_free_slots_go_to_sessions_that_may_hear_it(self):
        server, peer = raw_client(grant=("control.credit_backpressure",))
        peer.says(raw.open_session(), raw.open_session(tag=OUR_TAG))
        peer.hears()
        server.advertise(12)
        frames = peer.hears()
        assert [(frame.kind, frame.session, frame.frame) for frame in frames] == [
            (CREDIT, 1, 0),
            (CREDIT, 3, 0),
        ]
        assert frames[0].unpack(raw.PRESSURE) == (1, 12, 0, 0, 0, 0, 0)

    def test_pressure_is_another_frame(self):
        server, peer = raw_client(tag=OUR_TAG)
        server.advertise(
            0,
            level=PressureLevel.HARD,
            reason=PressureReason.RECEIVER_QUEUE_FULL,
            retry_after_ms=100,
        )
        [frame] = peer.hears()
        assert frame.kind == BACKPRESSURE
        assert frame.unpack(raw.PRESSURE) == (1, 0, 2, 1, 100, 0, 0)

    def test_a_foreign_peer_that_granted_nothing_hears_nothing(self):
        server, peer = raw_client()
        server.advertise(12)
        server.advertise(0, level=2)
        assert peer.hears() == []

    def test_our_own_client_reports_it(self):
        cores = pair()
        cores.server.advertise(3)
        cores.roundtrip()
        assert only(cores.client_events, PressureReported).window == 3


class TestDraining:
    def test_our_own_are_told(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.server.drain(retry_after_ms=250)
        cores.roundtrip()
        flow, pressure = cores.seen_by_client
        assert (flow.kind, flow.session) == (FLOW, 1)
        # session scope, pause, level 2 (it has no 3), no credit, retry valid and drain in flight
        assert flow.unpack(raw.FLOW) == (1, 2, 2, 0, 0, 0, 0, 0, 0, 250, 0, 10)
        assert (pressure.kind, pressure.session) == (BACKPRESSURE, 1)
        assert pressure.unpack(raw.PRESSURE) == (1, 0, 3, 0, 250, 0, 0)
        assert only(cores.client_events, PeerDraining).retry_after_ms == 250
        assert cores.session.available == 0
        # What is in flight ends normally.
        cores.server.complete(theirs, b"{}")
        cores.roundtrip()
        assert mine.done

    def test_without_advice_the_field_is_not_valid(self):
        cores = pair()
        cores.server.drain()
        cores.roundtrip()
        assert cores.seen_by_client[0].unpack(raw.FLOW)[-1] == 8

    def test_strangers_hear_nothing_and_are_refused_one_by_one(self):
        server, peer = raw_client(grant=("control.credit_backpressure",))
        server.drain()
        assert peer.hears() == []
        [refused] = peer.says(raw.submit(1))
        assert isinstance(refused, SubmitRefused)
        assert refused.refusal is Refusal.DRAINING
        assert server.counters.refused_submits == 1
        assert server.counters.protocol_errors == 0
        server.complete(refused.operation, b"{}", 503)
        assert [frame.kind for frame in peer.hears()] == [MessageType.RESULT_PUSH]

    def test_new_sessions_are_told_later(self):
        server, peer = raw_client()
        server.drain()
        assert peer.says(raw.open_session()) == []
        values = peer.hears()[-1].unpack(raw.OPEN_ACK)
        assert (values[3], values[14]) == (2, LIMIT)


class TestAnswers:
    @pytest.mark.parametrize("body", [b"", b"payload"])
    def test_probes(self, body):
        _, peer = raw_client()
        peer.now = 2.5
        probe = raw.packet(0x19, raw.PROBE.pack(9, len(body), 123), body)
        assert peer.says(probe) == []
        [ack] = peer.hears()
        assert (ack.kind, ack.session, ack.frame, ack.body) == (0x1A, 0, 0, b"")
        assert ack.unpack(raw.PROBE) == (9, 0, 2_500_000)

    def test_a_broken_probe_is_recorded(self):
        _, peer = raw_client()
        probe = raw.packet(0x19, raw.PROBE.pack(9, 3, 123))
        assert kinds(peer.says(probe)) == ["ProtocolViolation"]
        assert peer.hears() == []

    @pytest.mark.parametrize("kind", sorted(UNUSED_BY_SERVER))
    def test_what_is_not_offered_is_said_to_be_unsupported_where_that_may_be_said(self, kind):
        server, peer = raw_client(grant=("control.recoverable_error",))
        peer.says(raw.submit(1))
        assert peer.says(raw.packet(kind, b"any", b"thing", session=1, frame=1)) == []
        [answer] = peer.hears()
        assert (answer.kind, answer.session, answer.frame) == (RECOVERABLE, 1, 1)
        code, scope, _, role, *_, session, frame, _, size = answer.unpack(raw.RECOVERABLE)
        assert (code, scope, role) == (ErrorCode.UNSUPPORTED_CAPABILITY, 2, 2)
        assert (session, frame, size) == (1, 1, len(answer.body))
        assert answer.body.decode() == f"{MessageType(kind).name.lower()}_unsupported"
        assert server.counters.unsupported == 1
        assert server.counters.protocol_errors == 0

    @pytest.mark.parametrize("kind", sorted(UNUSED_BY_SERVER))
    def test_elsewhere_with_silence(self, kind):
        server, peer = raw_client()
        assert peer.says(raw.packet(kind, b"any", b"thing", session=1)) == []
        assert peer.hears() == []
        assert server.counters.unsupported == 1

    def test_objects_of_an_unknown_session_are_a_violation(self):
        _, peer = raw_client(grant=("control.recoverable_error",))
        assert kinds(peer.says(raw.packet(0x41, session=2))) == ["ProtocolViolation"]
        assert peer.hears() == []

    def reference(self, frame: int = 0, size: int = 0) -> bytes:
        meta = raw.CACHE_REFERENCE.pack(3, 1, 0, 11, 12, 0, 0, 0, size, 0, 0)
        return raw.packet(0x46, meta, session=1, frame=frame)

    def test_cache_references_miss(self):
        server, peer = raw_client()
        assert peer.says(self.reference()) == []
        [miss] = peer.hears()
        assert (miss.kind, miss.session, miss.frame) == (0x47, 1, 0)
        # namespace, profile, not found, the key, no diagnostic
        assert miss.unpack(raw.CACHE_MISS) == (3, 1, 1, 11, 12, 0, 0)
        assert server.counters.unsupported == 1

    def test_a_miss_names_a_frame_only_while_it_is_in_flight(self):
        server, peer = raw_client()
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        peer.says(self.reference(frame=1))
        server.complete(operation, b"{}")
        peer.says(self.reference(frame=1))
        assert [frame.frame for frame in peer.hears()] == [1, 1, 0]

    def test_a_broken_reference_is_recorded(self):
        _, peer = raw_client()
        assert kinds(peer.says(self.reference(size=5))) == ["ProtocolViolation"]
        assert peer.hears() == []


class TestViolations:
    """A violation is answered by ERROR_RECOVERABLE, where the peer may hear it."""

    BROKEN_CANCEL = raw.packet(0x30, b"short", session=1, frame=1)

    def test_about_the_frame(self):
        _, peer = raw_client(grant=("control.recoverable_error",))
        peer.says(raw.submit(1), self.BROKEN_CANCEL)
        [answer] = peer.hears()
        assert (answer.kind, answer.frame) == (RECOVERABLE, 1)
        code, scope, *_ = answer.unpack(raw.RECOVERABLE)
        assert (code, scope) == (ErrorCode.MALFORMED_BODY, 2)
        assert answer.body == b"metadata is 5 bytes, must be 32"

    def test_about_the_session_when_the_frame_is_not_in_flight(self):
        _, peer = raw_client(grant=("control.recoverable_error",))
        peer.says(self.BROKEN_CANCEL)
        [answer] = peer.hears()
        assert (answer.frame, answer.unpack(raw.RECOVERABLE)[1]) == (0, 1)

    def test_about_the_session_when_the_frame_is_the_wrong_one(self):
        _, peer = raw_client(grant=("control.recoverable_error",))
        peer.says(raw.submit(1), raw.submit(2), raw.cancel(1, frame=2))
        [answer] = peer.hears()
        assert (answer.frame, answer.unpack(raw.RECOVERABLE)[:2]) == (0, (3, 1))

    def test_after_a_cancel_nothing_but_the_terminal_is_sent_for_an_operation(self):
        _, peer = raw_client(grant=("control.recoverable_error",))
        peer.says(raw.submit(1), raw.cancel(1), self.BROKEN_CANCEL)
        assert [frame.frame for frame in peer.hears()] == [0]

    def test_without_a_grant_there_is_silence(self):
        server, peer = raw_client()
        peer.says(raw.submit(1), self.BROKEN_CANCEL)
        assert peer.hears() == []
        assert server.counters.protocol_errors == 1
