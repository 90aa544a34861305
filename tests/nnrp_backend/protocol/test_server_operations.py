"""What a server makes of submits and control frames."""

import pytest

from nnrp_backend.protocol import ServerConfig, Trace
from nnrp_backend.protocol.constants import CancelReason, DropReason, MessageType
from nnrp_backend.protocol.events import (
    DeadlineChanged,
    OperationCancelled,
    OperationSubmitted,
    PriorityChanged,
    ProtocolViolation,
    Refusal,
    SubmitRefused,
)
from nnrp_backend.protocol.states import ConnectionState, OperationState
from tests.support import protocol as raw
from tests.support.protocol import kinds, only, pair, raw_client

CANCEL, ABORT, FRAME_CANCEL, PRIORITY, DEADLINE, EXPIRE_AT, SUPERSEDE, TRACE = (
    0x30, 0x31, 0x11, 0x32, 0x33, 0x34, 0x35, 0x3F,
)  # fmt: skip
RESULT, DROP = 0x12, 0x40
FAR = 1_900_000_000_000


def running(*operations: int, **how):
    """A server with operations in flight, the peer, and those operations."""
    server, peer = raw_client(**how)
    events = peer.says(*[raw.submit(number) for number in operations])
    return server, peer, *[only([event], OperationSubmitted).operation for event in events]


class TestSubmit:
    @pytest.mark.parametrize(
        "body", [None, b'{"a":1}', raw.typed(b'{"a":1}', semantics=0)], ids=["typed", "bare", "sdk"]
    )
    def test_both_bodies_are_taken(self, body):
        _, peer = raw_client()
        [event] = peer.says(raw.submit(901, b'{"a":1}', frame=1, body=body))
        assert isinstance(event, OperationSubmitted)
        assert event.payload == b'{"a":1}'
        operation = event.operation
        assert (operation.operation_id, operation.frame_id) == (901, 1)
        assert operation.session.session_id == 1
        assert operation.priority_class == 1
        assert operation.deadline_unix_ms is None
        assert operation.trace is None
        assert operation.credit is None

    def test_a_large_one_over_many_reads(self):
        server, _ = raw_client()
        event = b'{"pad":"' + b"x" * (8 << 20) + b'"}'
        data = raw.submit(1, event)
        found = []
        for position in range(0, len(data), 65536):
            found += server.receive_data(data[position : position + 65536], 0.0)
        assert only(found, OperationSubmitted).payload == event

    def test_the_same_ids_on_two_sessions_are_two_operations(self):
        server, peer = raw_client()
        peer.says(raw.open_session())
        peer.hears()
        first, second = (
            event.operation for event in peer.says(raw.submit(1), raw.submit(1, session=2))
        )
        server.complete(second, b"{}")
        assert [frame.session for frame in peer.hears()] == [2]
        assert not first.done

    def test_the_header_carries_a_trace(self):
        _, peer = raw_client()
        operation = only(peer.says(raw.submit(1, trace=77)), OperationSubmitted).operation
        assert operation.trace == Trace(77)

    def test_ids_may_be_used_again_once_done(self):
        server, peer, first = running(1)
        server.complete(first, b"{}")
        assert kinds(peer.says(raw.submit(1))) == ["OperationSubmitted"]


class TestRefusals:
    """Every submit gets exactly one terminal, the broken ones too."""

    def refused(self, server, peer, packet) -> SubmitRefused:
        """Deliver a submit that is refused, answer it, and check that this is all."""
        peer.hears()
        refused = only(peer.says(packet), SubmitRefused)
        operation = refused.operation
        assert operation.state is OperationState.REFUSED
        assert not server.send_partial(operation, b"{}")
        assert not server.send_progress(operation, 1)
        assert server.complete(operation, b'{"type":"response.error"}', 400)
        assert not server.complete(operation, b"{}")
        assert not server.drop(operation)
        [frame] = peer.hears()
        assert (frame.kind, frame.frame) == (RESULT, operation.frame_id)
        return refused

    @pytest.mark.parametrize(
        "packet",
        [
            raw.submit(5, body=b""),
            raw.submit(5, body=b"", kinds=0, count=0),
            raw.submit(5, body=b"junk"),
            raw.submit(5, kinds=0x11, count=2),
            raw.submit(5, b""),
            raw.submit(0, frame=5),
            raw.packet(0x10, b"short", raw.typed(b"{}"), session=1, frame=5),
            raw.packet(0x10, b"\xff" * 72, raw.typed(b"{}"), session=1, frame=5),
        ],
    )
    def test_what_cannot_be_read(self, packet):
        server, peer = raw_client()
        refused = self.refused(server, peer, packet)
        assert refused.refusal is Refusal.MALFORMED
        assert refused.operation.frame_id == 5
        assert server.counters.protocol_errors == 1
        assert kinds(peer.says(raw.submit(5))) == ["OperationSubmitted"]

    def test_an_operation_id_in_use(self):
        server, peer, first = running(1)
        refused = self.refused(server, peer, raw.submit(1, frame=2))
        assert refused.refusal is Refusal.DUPLICATE_OPERATION
        assert server.counters.protocol_errors == 1
        # The first one lives.
        assert server.complete(first, b"{}")
        assert peer.hears()[0].frame == 1

    def test_more_than_were_granted(self):
        server, peer = raw_client(ServerConfig(max_in_flight=2))
        peer.says(raw.open_session(max_in_flight=2))
        peer.hears()
        [session] = server.sessions.values()
        first, _ = (event.operation for event in peer.says(*[raw.submit(n) for n in (1, 2)]))
        refused = self.refused(server, peer, raw.submit(3))
        assert refused.refusal is Refusal.TOO_MANY_OPERATIONS
        assert refused.detail == "2 are in flight"
        assert server.counters.refused_submits == 1
        assert server.counters.protocol_errors == 0
        server.complete(first, b"{}")
        assert kinds(peer.says(raw.submit(3))) == ["OperationSubmitted"]
        assert len(session.operations) == 2

    def test_while_draining(self):
        server, peer = raw_client()
        server.drain()
        assert self.refused(server, peer, raw.submit(1)).refusal is Refusal.DRAINING

    def test_a_frame_id_in_use_is_dropped_by_both_its_names(self):
        server, peer, first = running(1)
        assert kinds(peer.says(raw.submit(2, frame=1))) == ["ProtocolViolation"]
        [drop] = peer.hears()
        assert (drop.kind, drop.frame) == (DROP, 1)
        operation, sequence, code, *_ = drop.unpack(raw.CONTROL)
        assert (operation, sequence, code) == (2, 1, DropReason.DUPLICATE_FRAME)
        # RESULT_PUSH would have ended the first, which lives.
        assert server.complete(first, b"{}")

    def test_and_a_broken_one_on_it_gets_nothing(self):
        _, peer, first = running(1)
        broken = raw.packet(0x10, b"short", session=1, frame=1)
        assert kinds(peer.says(broken)) == ["ProtocolViolation"]
        assert peer.hears() == []
        assert not first.done

    def test_a_copy_of_both_ids_gets_the_one_terminal_of_its_original(self):
        server, peer, first = running(1)
        assert kinds(peer.says(raw.submit(1))) == ["ProtocolViolation"]
        assert peer.hears() == []
        server.complete(first, b"{}")
        assert [frame.kind for frame in peer.hears()] == [RESULT]

    def test_frame_0_cannot_be_answered(self):
        server, peer = raw_client()
        assert kinds(peer.says(raw.submit(1, frame=0))) == ["ProtocolViolation"]
        assert peer.hears() == []
        assert server.sessions[1].operations == {}

    def test_an_unknown_session_is_not_answered_and_nobody_suffers(self):
        server, peer, first = running(1)
        assert kinds(peer.says(raw.submit(2, session=9))) == ["ProtocolViolation"]
        assert peer.hears() == []
        assert server.state is ConnectionState.OPEN
        assert not first.done

    def test_a_session_that_closes_takes_the_owed_terminals_with_it(self):
        server, peer = raw_client()
        refused = only(peer.says(raw.submit(0, frame=5)), SubmitRefused)
        peer.says(raw.packet(0x09, raw.CLOSE.pack(0, 0, 0, 0, 0, 0, 1), session=1))
        peer.hears()
        assert not server.complete(refused.operation, b"{}")
        assert peer.hears() == []


class TestReservations:
    """DEADLINE, EXPIRE_AT and PRIORITY_UPDATE may precede the submit they are about."""

    @pytest.mark.parametrize("kind", [DEADLINE, EXPIRE_AT])
    def test_a_deadline_before_its_submit(self, kind):
        server, peer = raw_client()
        assert peer.says(raw.schedule(kind, 901, frame=1, deadline=FAR)) == []
        operation = only(peer.says(raw.submit(901, frame=1)), OperationSubmitted).operation
        assert operation.deadline_unix_ms == FAR
        assert server.sessions[1].reservations == {}
        # Its sequence counts for what follows.
        assert peer.says(raw.schedule(kind, 901, frame=1, sequence=0, deadline=5)) == []
        assert server.counters.stale_controls == 1

    def test_a_priority_before_its_submit(self):
        _, peer = raw_client()
        peer.says(
            raw.schedule(PRIORITY, 1, priority=2, delta=-4),
            raw.schedule(DEADLINE, 1, sequence=2, deadline=FAR),
        )
        operation = only(peer.says(raw.submit(1)), OperationSubmitted).operation
        assert (operation.priority_class, operation.priority_delta) == (2, -4)
        assert operation.deadline_unix_ms == FAR

    def test_our_own_client_uses_it(self):
        cores = pair()
        _, theirs = cores.submit(deadline_unix_ms=FAR, priority=(0, 7))
        assert theirs.deadline_unix_ms == FAR
        assert (theirs.priority_class, theirs.priority_delta) == (0, 7)

    def test_the_newer_one_counts(self):
        server, peer = raw_client()
        peer.says(
            raw.schedule(DEADLINE, 1, sequence=5, deadline=FAR),
            raw.schedule(DEADLINE, 1, sequence=4, deadline=7),
            raw.schedule(DEADLINE, 1, sequence=5, deadline=FAR + 1),
        )
        assert only(peer.says(raw.submit(1)), OperationSubmitted).operation.deadline_unix_ms == (
            FAR + 1
        )
        assert server.counters.stale_controls == 1

    def test_another_frame_is_another_operation(self):
        _, peer = raw_client()
        peer.says(raw.schedule(DEADLINE, 1, frame=8, deadline=FAR))
        operation = only(peer.says(raw.submit(1, frame=9)), OperationSubmitted).operation
        assert operation.deadline_unix_ms is None
        peer.says(
            raw.schedule(DEADLINE, 2, frame=8, sequence=9, deadline=FAR),
            raw.schedule(DEADLINE, 2, frame=10, sequence=1, deadline=5),
        )
        later = only(peer.says(raw.submit(2, frame=10)), OperationSubmitted).operation
        assert later.deadline_unix_ms == 5

    def test_they_are_bounded_and_the_oldest_makes_room(self):
        server, peer = raw_client(ServerConfig(max_reservations=3))
        peer.says(*[raw.schedule(DEADLINE, n, deadline=FAR) for n in range(1, 6)])
        assert list(server.sessions[1].reservations) == [3, 4, 5]
        operations = [event.operation for event in peer.says(raw.submit(2), raw.submit(3))]
        assert [operation.deadline_unix_ms for operation in operations] == [None, FAR]

    def test_a_refused_submit_uses_its_own_up(self):
        server, peer = raw_client()
        peer.says(raw.schedule(DEADLINE, 1, deadline=FAR), raw.submit(1, body=b"junk"))
        assert server.sessions[1].reservations == {}

    @pytest.mark.parametrize(
        "packet",
        [
            raw.schedule(DEADLINE, 2, frame=0, deadline=FAR),
            raw.schedule(DEADLINE, 2, frame=1, deadline=FAR),  # operation 1 has that frame
            raw.schedule(DEADLINE, 2, deadline=0),
            raw.schedule(DEADLINE, 0, frame=2, deadline=FAR),
            raw.schedule(DEADLINE, 2, session=3, deadline=FAR),
            raw.schedule(DEADLINE, 2, deadline=FAR, flags=4),
        ],
    )
    def test_contradictions_reserve_nothing(self, packet):
        server, peer, _ = running(1)
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]
        assert server.sessions[1].reservations == {}


class TestCancel:
    @pytest.mark.parametrize(("kind", "hard"), [(CANCEL, False), (ABORT, True)])
    def test_it_is_reported_and_a_terminal_is_owed(self, kind, hard):
        _, peer, operation = running(1)
        [event] = peer.says(raw.cancel(1, kind=kind, reason=4))
        assert event == OperationCancelled(operation, CancelReason.BUDGET, hard)
        assert operation.state is OperationState.CANCELLING
        assert not operation.done

    def test_again_only_when_it_becomes_hard(self):
        _, peer, operation = running(1)
        events = peer.says(
            raw.cancel(1, sequence=1, reason=4),
            raw.cancel(1, sequence=2, reason=1),
            raw.cancel(1, sequence=3, reason=1, kind=ABORT),
            raw.cancel(1, sequence=4, reason=1, kind=ABORT),
            raw.cancel(1, sequence=5, reason=1),
        )
        assert events == [
            OperationCancelled(operation, 4, False),
            OperationCancelled(operation, 4, True),  # why it was cancelled is what came first
        ]

    def test_a_frame_cancel_is_understood(self):
        server, peer, operation = running(901)
        frame = raw.packet(FRAME_CANCEL, session=1, frame=901)
        [event] = peer.says(frame, frame)
        assert event == OperationCancelled(operation, CancelReason.USER_CANCELLED, False)
        server.drop(operation)
        assert peer.says(frame) == []
        assert server.counters.late_events == 1

    def test_operation_0_is_all_of_the_session(self):
        _, peer = raw_client()
        peer.says(raw.open_session())
        one, two, other = (
            event.operation
            for event in peer.says(raw.submit(1), raw.submit(2), raw.submit(1, session=2))
        )
        events = peer.says(raw.cancel(0, frame=0, reason=7))
        assert events == [
            OperationCancelled(one, CancelReason.SHUTDOWN, False),
            OperationCancelled(two, CancelReason.SHUTDOWN, False),
        ]
        assert other.state is OperationState.ACTIVE

    def test_one_for_a_done_operation_is_late(self):
        server, peer, operation = running(1)
        server.complete(operation, b"{}")
        peer.hears()
        assert peer.says(raw.cancel(1), raw.cancel(99)) == []
        assert server.counters.late_events == 2
        assert peer.hears() == []

    @pytest.mark.parametrize(
        "packet",
        [
            raw.cancel(1, frame=2),
            raw.cancel(1, frame=0),
            raw.cancel(0, frame=1),
            raw.cancel(1, session=4),
            raw.packet(CANCEL, raw.CONTROL.pack(1, 1, 1, 1, 4, 0, 0), session=1, frame=1),
            raw.packet(CANCEL, raw.CONTROL.pack(1, 1, 1, 1, 1, 0, 1), session=1, frame=1),
            raw.packet(CANCEL, raw.CONTROL.pack(1, 1, 1, 1, 1, 3, 0), b"xy", session=1, frame=1),
        ],
    )
    def test_contradictions_cancel_nothing(self, packet):
        _, peer, operation, _ = running(1, 2)
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]
        assert operation.state is OperationState.ACTIVE

    def test_stale_ones_are_ignored(self):
        server, peer, operation = running(1)
        peer.says(raw.schedule(DEADLINE, 1, sequence=5, deadline=FAR))
        assert peer.says(raw.cancel(1, sequence=4)) == []
        assert server.counters.stale_controls == 1
        assert operation.state is OperationState.ACTIVE
        # Equal is not older: some peers number every frame 1.
        assert kinds(peer.says(raw.cancel(1, sequence=5))) == ["OperationCancelled"]

    def test_sequences_are_counted_per_operation(self):
        _, peer, _, _ = running(1, 2)
        assert len(peer.says(raw.cancel(1, sequence=9), raw.cancel(2, sequence=1))) == 2

    def test_losing_the_connection_cancels_for_that_reason(self):
        server, _, operation = running(1)
        [event, _] = server.receive_eof()
        assert event == OperationCancelled(operation, CancelReason.TRANSPORT_CLOSING, True)
        assert operation.done


class TestSupersede:
    def supersede(self, old=1, new=2, *, frame=1, sequence=1, code=2, session=1) -> bytes:
        meta = raw.SUPERSEDE.pack(old, new, sequence, code, 1, 3)
        return raw.packet(SUPERSEDE, meta, b"new", session=session, frame=frame)

    @pytest.mark.parametrize("frame", [1, 2, 3])
    def test_the_old_one_is_cancelled(self, frame):
        # The frame id of the old, of the new, or of one that is still to come.
        _, peer, old, new = running(1, 2)
        [event] = peer.says(self.supersede(frame=frame))
        assert event == OperationCancelled(old, CancelReason.SUPERSEDED, False)
        assert old.drop_reason == DropReason.SUPERSEDED
        assert new.state is OperationState.ACTIVE

    def test_the_reason_is_the_clients(self):
        for code, expected in [(0, 2), (0x8001, 0x8001)]:
            _, peer, old = running(1)
            peer.says(self.supersede(code=code))
            assert old.drop_reason == expected

    def test_after_a_cancel_it_changes_nothing(self):
        _, peer, old = running(1)
        peer.says(raw.cancel(1))
        assert peer.says(self.supersede()) == []
        assert old.drop_reason == DropReason.PEER_CANCELLED

    def test_late_and_stale_ones_are_counted(self):
        server, peer, old = running(1)
        peer.says(raw.schedule(DEADLINE, 1, sequence=5, deadline=FAR))
        assert peer.says(self.supersede(sequence=4), self.supersede(old=9, frame=9)) == []
        assert (server.counters.stale_controls, server.counters.late_events) == (1, 1)
        assert old.state is OperationState.ACTIVE

    def test_contradictions_supersede_nothing(self):
        _, peer, old, _, _ = running(1, 2, 3)
        events = peer.says(
            self.supersede(frame=3),
            self.supersede(old=0),
            self.supersede(new=0),
            self.supersede(session=2),
        )
        assert {type(event) for event in events} == {ProtocolViolation}
        assert len(events) == 4
        assert old.state is OperationState.ACTIVE


class TestScheduling:
    @pytest.mark.parametrize("kind", [DEADLINE, EXPIRE_AT])
    @pytest.mark.parametrize(("flags", "discard"), [(0, False), (1, True), (2, False), (3, True)])
    def test_a_deadline_is_reported(self, kind, flags, discard):
        _, peer, operation = running(1)
        [event] = peer.says(raw.schedule(kind, 1, deadline=FAR, flags=flags))
        assert event == DeadlineChanged(operation, FAR, discard)
        assert operation.deadline_unix_ms == FAR

    def test_a_priority_is_reported(self):
        _, peer, operation = running(1)
        [event] = peer.says(raw.schedule(PRIORITY, 1, priority=2, delta=-3))
        assert event == PriorityChanged(operation, 2, -3)
        assert (operation.priority_class, operation.priority_delta) == (2, -3)

    def test_stale_ones_are_ignored(self):
        server, peer, operation = running(1)
        events = peer.says(
            raw.schedule(DEADLINE, 1, sequence=3, deadline=FAR),
            raw.schedule(DEADLINE, 1, sequence=2, deadline=5),
            raw.schedule(PRIORITY, 1, sequence=1, priority=0),
            raw.schedule(PRIORITY, 1, sequence=3, priority=0),
        )
        assert kinds(events) == ["DeadlineChanged", "PriorityChanged"]
        assert operation.deadline_unix_ms == FAR
        assert server.counters.stale_controls == 2

    @pytest.mark.parametrize(
        "packet",
        [
            raw.schedule(DEADLINE, 1, frame=2, deadline=FAR),
            raw.schedule(DEADLINE, 1, deadline=0),
            raw.schedule(PRIORITY, 1, frame=0),
            raw.packet(PRIORITY, b"short", session=1, frame=1),
        ],
    )
    def test_contradictions_change_nothing(self, packet):
        _, peer, operation, _ = running(1, 2)
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]
        assert operation.deadline_unix_ms is None
        assert operation.priority_class == 1


class TestTrace:
    def trace(self, trace_id=5, span_id=6, *, frame=0, flags=1, session=1) -> bytes:
        meta = raw.TRACE.pack(trace_id, span_id, 0, 0, flags, 0)
        return raw.packet(TRACE, meta, session=session, frame=frame)

    def submit(self, peer, number):
        return only(peer.says(raw.submit(number, trace=99)), OperationSubmitted).operation

    def test_the_sessions_is_for_the_submits_that_follow(self):
        _, peer = raw_client()
        before = self.submit(peer, 1)
        assert peer.says(self.trace()) == []
        after = self.submit(peer, 2)
        assert before.trace == Trace(99)
        assert after.trace == Trace(5, 6, sampled=True)
        peer.says(self.trace(7, 8, flags=0))
        assert self.submit(peer, 3).trace == Trace(7, 8, sampled=False)

    def test_ids_of_0_take_it_back(self):
        _, peer = raw_client()
        peer.says(self.trace(), self.trace(0, 0))
        assert self.submit(peer, 1).trace == Trace(99)

    def test_one_of_an_operation_is_its_own(self):
        server, peer = raw_client()
        first, second = self.submit(peer, 1), self.submit(peer, 2)
        peer.says(self.trace(frame=1))
        assert first.trace == Trace(5, 6)
        assert second.trace == Trace(99)
        server.complete(first, b"{}")
        assert peer.says(self.trace(frame=1)) == []
        assert server.counters.late_events == 1

    def test_broken_ones_are_recorded(self):
        _, peer = raw_client()
        assert kinds(peer.says(self.trace(flags=4), self.trace(session=2))) == [
            "ProtocolViolation",
            "ProtocolViolation",
        ]


def test_nothing_of_a_foreign_client_reaches_another_connection():
    """Two clients use the same ids; one misbehaves; the other one's stream is untouched."""
    server, peer, operation = running(1)
    other_server, other = raw_client()
    other.says(raw.cancel(1), raw.submit(1, session=7), b"garbage" * 10)
    assert other_server.state is ConnectionState.CLOSED
    assert server.send_partial(operation, b"{}")
    assert [frame.kind for frame in peer.hears()] == [MessageType.PARTIAL_RESULT]
