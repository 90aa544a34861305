"""The client's operations: what it sends, and what it makes of what comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.protocol import ClientConfig, Trace
from nnrp_backend.protocol.constants import (
    OUR_TAG,
    CancelReason,
    DropReason,
    MessageType,
    PressureLevel,
    Stage,
)
from nnrp_backend.protocol.errors import (
    LocalProtocolError,
    OperationLimitReached,
    PacketTooLarge,
)
from nnrp_backend.protocol.events import (
    OperationEnded,
    Outcome,
    PartialReceived,
    PeerDraining,
    PeerErrorReceived,
    PressureReported,
    ProgressReceived,
    ProtocolViolation,
    RetryAdvised,
)
from nnrp_backend.protocol.states import ConnectionState, OperationState
from tests.support import protocol as raw
from tests.support.protocol import kinds, only, pair, raw_server

SUBMIT, CANCEL, ABORT, PRIORITY, DEADLINE, SUPERSEDE = 0x10, 0x30, 0x31, 0x32, 0x33, 0x35
BACKPRESSURE, CREDIT, TRACE = 0x39, 0x3A, 0x3F
EVENT = b'{"type":"response.output_text.delta","index":0,"delta":"x"}'


def types(frames: list[raw.Frame]) -> list[int]:
    return [frame.kind for frame in frames]


class TestSubmit:
    def test_the_packet(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b'{"operation":"x"}')
        [frame] = peer.hears()
        assert frame == raw.frames(raw.submit(1, b'{"operation":"x"}'))[0]
        assert (operation.operation_id, operation.frame_id) == (1, 1)
        assert operation.session is session
        assert operation.state is OperationState.ACTIVE

    def test_ids_are_never_zero_and_never_reused(self):
        client, session, peer = raw_server()
        first = client.submit(session, b"{}")
        peer.says(raw.result(first.frame_id))
        second = client.submit(session, b"{}")
        assert (first.operation_id, second.operation_id) == (1, 2)
        assert (first.frame_id, second.frame_id) == (1, 2)

    def test_frame_ids_wrap_around_past_those_in_flight(self):
        client, session, peer = raw_server()
        first = client.submit(session, b"{}")
        client._last_operation_id = 0xFFFFFFFE
        last = client.submit(session, b"{}")
        assert (last.operation_id, last.frame_id) == (0xFFFFFFFF, 0xFFFFFFFF)
        wrapped = client.submit(session, b"{}")
        assert (wrapped.operation_id, wrapped.frame_id) == (0x100000001, 2)
        assert first.frame_id == 1
        [*_, frame] = peer.hears()
        assert (frame.frame, frame.unpack(raw.SUBMIT)[17]) == (2, 0x100000001)
        events = peer.says(raw.partial(0x100000001, frame=2), raw.result(2))
        assert [event.operation for event in events] == [wrapped, wrapped]

    def test_the_granted_number_is_enforced(self):
        client, session, peer = raw_server(ClientConfig(probe_interval=0, max_in_flight=2))
        first, _ = client.submit(session, b"{}"), client.submit(session, b"{}")
        peer.hears()
        with pytest.raises(OperationLimitReached) as caught:
            client.submit(session, b"{}")
        assert caught.value.granted == 2
        assert peer.hears() == []
        # A cancelled operation counts until its terminal.
        client.cancel(first)
        with pytest.raises(OperationLimitReached):
            client.submit(session, b"{}")
        peer.says(raw.dropped(1))
        assert client.submit(session, b"{}").operation_id == 3

    def test_a_payload_that_does_not_fit_leaves_nothing_behind(self):
        config = ClientConfig(probe_interval=0, max_packet_bytes=1000)
        client, session, peer = raw_server(config, tag=OUR_TAG)
        room = 1000 - 40 - 72 - 56
        client.submit(session, bytes(room))
        peer.hears()
        with pytest.raises(PacketTooLarge) as caught:
            client.submit(session, bytes(room + 1), deadline_unix_ms=5)
        assert (caught.value.size, caught.value.limit) == (1001, 1000)
        assert peer.hears() == []
        assert len(session.operations) == 1

    @pytest.mark.parametrize(
        "options",
        [
            {"deadline_unix_ms": 0},
            {"deadline_unix_ms": -1},
            {"deadline_unix_ms": 2**64},
            {"priority": (-1, 0)},
            {"priority": (0, 2**15)},
        ],
    )
    def test_values_that_do_not_fit_leave_nothing_behind(self, options):
        client, session, peer = raw_server()
        with pytest.raises(LocalProtocolError):
            client.submit(session, b"{}", **options)
        assert peer.hears() == []
        assert session.operations == {}

    def test_a_closed_connection_takes_nothing(self):
        client, session, _ = raw_server()
        client.receive_eof()
        with pytest.raises(LocalProtocolError, match="CLOSED"):
            client.submit(session, b"{}")


class TestWhatGoesWithASubmit:
    def test_our_own_server_hears_deadline_and_priority_first(self):
        client, session, peer = raw_server(tag=OUR_TAG)
        client.submit(session, b"{}", deadline_unix_ms=1_900_000_000_000, priority=(0, -3))
        priority, deadline, submit = peer.hears()
        assert types([priority, deadline, submit]) == [PRIORITY, DEADLINE, SUBMIT]
        assert {frame.frame for frame in (priority, deadline, submit)} == {1}
        assert priority.unpack(raw.SCHEDULING) == (1, 1, 0, -3, 0, 0)
        assert deadline.unpack(raw.SCHEDULING) == (1, 2, 0, -3, 1_900_000_000_000, 3)

    def test_a_foreign_one_hears_them_after_it(self):
        client, session, peer = raw_server(grant=("control.priority_update",))
        client.submit(session, b"{}", deadline_unix_ms=5, priority=(2, 0))
        assert types(peer.hears()) == [SUBMIT, PRIORITY, DEADLINE]

    def test_a_priority_goes_only_where_it_is_granted(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}", deadline_unix_ms=5, priority=(2, 0))
        assert types(peer.hears()) == [SUBMIT, DEADLINE]

    def test_a_trace_for_a_foreign_server_is_the_sessions_and_right_before_the_submit(self):
        client, session, peer = raw_server(grant=("control.trace_context",))
        client.submit(session, b"{}", trace=Trace(0xAAAA_0000_0000_0001, 7))
        trace, submit = peer.hears()
        assert (trace.kind, trace.session, trace.frame) == (TRACE, 1, 0)
        assert trace.unpack(raw.TRACE) == (0xAAAA_0000_0000_0001, 7, 0, 0, 1, 0)
        assert (submit.kind, submit.trace) == (SUBMIT, 0xAAAA_0000_0000_0001)
        # The same one is not repeated.
        client.submit(session, b"{}", trace=Trace(0xAAAA_0000_0000_0001, 7))
        assert types(peer.hears()) == [SUBMIT]

    def test_an_operation_without_a_trace_does_not_fall_into_its_predecessors(self):
        client, session, peer = raw_server(grant=("control.trace_context",))
        client.submit(session, b"{}")
        assert types(peer.hears()) == [SUBMIT]
        client.submit(session, b"{}", trace=Trace(5, 7, sampled=True))
        peer.hears()
        client.submit(session, b"{}")
        trace, submit = peer.hears()
        trace_id, span_id, _, _, flags, _ = trace.unpack(raw.TRACE)
        assert (trace_id, span_id) == (3, 3)  # unsampled, and not 0: that is refused natively
        assert flags == 0
        assert submit.trace == 0

    @given(trace_id=st.integers(0, 2**128 - 1), span_id=st.integers(0, 2**64 - 1))
    def test_a_foreign_server_never_hears_an_id_of_0(self, trace_id, span_id):
        client, session, peer = raw_server(grant=("control.trace_context",))
        client.submit(session, b"{}", trace=Trace(trace_id, span_id))
        frame = peer.hears()[0]
        sent_trace, sent_span, *_ = frame.unpack(raw.TRACE)
        assert sent_trace in (trace_id & (2**64 - 1), 1)
        assert sent_trace
        assert sent_span

    def test_where_it_is_not_granted_it_rides_in_the_header_alone(self):
        for tag in (1, OUR_TAG):
            client, session, peer = raw_server(tag=tag)
            client.submit(session, b"{}", trace=Trace(5, 7))
            [submit] = peer.hears()
            assert (submit.kind, submit.trace) == (SUBMIT, 5)


class TestCancel:
    def test_a_cancel_names_both_ids(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        assert client.cancel(operation, CancelReason.DEADLINE_EXPIRED)
        [frame] = peer.hears()
        assert (frame.kind, frame.session, frame.frame) == (CANCEL, 1, 1)
        # operation, sequence, reason, role client, cooperative, no diagnostic, reserved
        assert frame.unpack(raw.CONTROL) == (1, 1, 3, 1, 1, 0, 0)
        assert operation.state is OperationState.CANCELLING

    def test_an_abort_is_hard(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        client.cancel(operation, hard=True)
        [frame] = peer.hears()
        assert frame.kind == ABORT
        assert frame.unpack(raw.CONTROL) == (1, 1, 1, 1, 2, 0, 0)

    def test_again_only_to_make_it_hard(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        assert client.cancel(operation)
        assert not client.cancel(operation)
        assert client.cancel(operation, hard=True)
        assert not client.cancel(operation, hard=True)
        assert not client.cancel(operation)
        assert types(peer.hears()) == [SUBMIT, CANCEL, ABORT]

    def test_a_reason_that_does_not_fit_cancels_nothing(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        with pytest.raises(LocalProtocolError):
            client.cancel(operation, 0x10000)
        assert operation.state is OperationState.ACTIVE
        assert peer.hears() == []

    @pytest.mark.parametrize(
        "answer", [raw.dropped(1), raw.result(1), raw.packet(0x13, session=1, frame=1)]
    )
    def test_any_terminal_answers_it_exactly_once(self, answer):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        client.cancel(operation)
        in_flight = raw.partial(1) + raw.packet(
            0x37, raw.PROGRESS.pack(1, 1, 5, 0xFFFF, 0, 0), session=1, frame=1
        )
        [ended] = peer.says(in_flight, answer, answer, in_flight)
        assert isinstance(ended, OperationEnded)
        assert ended.operation is operation
        assert client.counters.late_events == 5
        assert client.counters.protocol_errors == 0

    def test_the_answer_as_our_own_server_gives_it(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.client.cancel(mine)
        cores.to_server()
        cores.server.drop(theirs, diagnostic="stopped")
        cores.to_client()
        assert types(cores.seen_by_client) == [TRACE, 0x40]
        assert cores.client_events == [
            OperationEnded(
                mine, Outcome.DROPPED, drop_reason=DropReason.PEER_CANCELLED, diagnostic="stopped"
            )
        ]

    def test_a_cancel_that_crosses_the_terminal(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.server.complete(theirs, b'{"done":1}')
        cores.client.cancel(mine)
        assert cores.to_server() == []
        assert cores.server.counters.late_events == 1
        assert only(cores.to_client(), OperationEnded).outcome is Outcome.RESULT
        # Nothing answers the cancel: the terminal has been given.
        assert cores.server.data_to_send() == []

    def test_nothing_is_sent_for_a_done_operation(self):
        client, session, peer = raw_server(
            grant=(
                "control.credit_backpressure",
                "control.priority_update",
                "control.supersede",
            )
        )
        done, other = client.submit(session, b"{}"), client.submit(session, b"{}")
        peer.says(raw.result(1))
        peer.hears()
        assert not client.cancel(done)
        assert not client.cancel(done, hard=True)
        assert not client.set_deadline(done, 5)
        assert not client.set_priority(done, 0)
        assert not client.grant(done, 5)
        assert not client.supersede(done, other)
        client.abandon(done)
        assert peer.hears() == []

    def test_nor_for_a_cancelled_one_but_an_abort(self):
        client, session, peer = raw_server(tag=OUR_TAG)
        operation, other = client.submit(session, b"{}"), client.submit(session, b"{}")
        client.cancel(operation)
        peer.hears()
        assert not client.set_deadline(operation, 5)
        assert not client.set_priority(operation, 0)
        assert not client.grant(operation, 5)
        assert not client.supersede(operation, other)
        assert peer.hears() == []

    def test_abandoned_operations_free_their_slot_and_what_comes_is_late(self):
        client, session, peer = raw_server(ClientConfig(probe_interval=0, max_in_flight=1))
        operation = client.submit(session, b"{}")
        client.cancel(operation)
        client.abandon(operation)
        assert operation.done
        assert session.available == 1
        assert peer.says(raw.dropped(1), raw.result(1)) == []
        assert client.counters.late_events == 2


class TestSteering:
    def test_control_sequences_rise_over_all_operations(self):
        client, session, peer = raw_server(tag=OUR_TAG)
        first, second = client.submit(session, b"{}"), client.submit(session, b"{}")
        peer.hears()
        client.set_deadline(first, 5)
        client.set_priority(second, 0, 2)
        client.set_deadline(second, 6, discard=False)
        client.supersede(first, second)
        client.cancel(second)
        sequences = [
            int.from_bytes(
                frame.meta[16:24] if frame.kind == SUPERSEDE else frame.meta[8:16], "little"
            )
            for frame in peer.hears()
        ]
        assert sequences == [1, 2, 3, 4, 5]

    def test_a_deadline(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        assert client.set_deadline(operation, 1_900_000_000_000, discard=False)
        [frame] = peer.hears()
        assert (frame.kind, frame.session, frame.frame) == (DEADLINE, 1, 1)
        assert frame.unpack(raw.SCHEDULING) == (1, 1, 1, 0, 1_900_000_000_000, 2)
        assert operation.deadline_unix_ms == 1_900_000_000_000
        with pytest.raises(LocalProtocolError, match="a deadline of 0"):
            client.set_deadline(operation, 0)

    def test_a_priority_only_where_granted(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        peer.hears()
        assert not client.set_priority(operation, 0)
        assert peer.hears() == []
        peer.says(raw.capabilities("control.priority_update"))
        assert client.set_priority(operation, 0, -1)
        [frame] = peer.hears()
        assert frame.kind == PRIORITY
        assert frame.unpack(raw.SCHEDULING) == (1, 1, 0, -1, 0, 0)

    def test_superseding_where_granted(self):
        client, session, peer = raw_server(grant=("control.supersede",))
        old, new = client.submit(session, b"{}"), client.submit(session, b"{}")
        peer.hears()
        assert client.supersede(old, new)
        assert not client.supersede(old, new)
        [frame] = peer.hears()
        assert (frame.kind, frame.frame) == (SUPERSEDE, old.frame_id)
        assert frame.unpack(raw.SUPERSEDE) == (1, 2, 1, 2, 1, 0)
        assert old.state is OperationState.CANCELLING
        assert only(peer.says(raw.dropped(1, 2)), OperationEnded).drop_reason == 2

    def test_superseding_elsewhere_is_a_cancel(self):
        client, session, peer = raw_server()
        old, new = client.submit(session, b"{}"), client.submit(session, b"{}")
        peer.hears()
        assert client.supersede(old, new)
        [frame] = peer.hears()
        assert frame.kind == CANCEL
        assert frame.unpack(raw.CONTROL)[2] == CancelReason.SUPERSEDED

    def test_superseding_over_sessions_is_our_mistake(self):
        client, session, peer = raw_server()
        client.open_session(0.0)
        peer.says(raw.open_ack(2))
        old, new = client.submit(session, b"{}"), client.submit(client.sessions[2], b"{}")
        with pytest.raises(LocalProtocolError, match="different sessions"):
            client.supersede(old, new)


class TestGrant:
    def grant(self, **how):
        client, session, peer = raw_server(**how)
        operation = client.submit(session, b"{}")
        peer.hears()
        sent = client.grant(operation, 8)
        return sent, peer.hears()

    def test_to_our_own_the_window_is_the_window(self):
        sent, [frame] = self.grant(tag=OUR_TAG)
        assert sent
        assert (frame.kind, frame.session, frame.frame) == (CREDIT, 1, 1)
        assert frame.unpack(raw.PRESSURE) == (1, 8, 0, 0, 0, 2, 0)

    def test_to_a_foreign_one_it_is_one_more_for_the_terminal(self):
        sent, [frame] = self.grant(grant=("control.credit_backpressure",))
        assert sent
        assert frame.unpack(raw.PRESSURE) == (1, 9, 0, 0, 0, 2, 0)

    def test_without_a_grant_of_credit_nothing_is_sent(self):
        assert self.grant() == (False, [])
        assert self.grant(grant=("control.cancel_abort",)) == (False, [])


def by_hand(*values: int) -> bytes:
    """A PARTIAL_RESULT of frame 1 with a body of two bytes and any metadata."""
    return raw.packet(0x38, raw.PARTIAL.pack(*values), b"{}", session=1, frame=1)


class TestPartials:
    def test_each_is_an_event_in_order(self):
        client, session, peer = raw_server()
        first, second = client.submit(session, b"{}"), client.submit(session, b"{}")
        events = peer.says(
            raw.partial(1, b'{"a":1}'),
            raw.partial(2, b'{"b":1}'),
            raw.partial(1, b'{"a":2}', sequence=2),
        )
        assert events == [
            PartialReceived(first, b'{"a":1}'),
            PartialReceived(second, b'{"b":1}'),
            PartialReceived(first, b'{"a":2}'),
        ]
        assert {type(event) for event in events} == {PartialReceived}

    def test_a_typed_body_is_taken_apart(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        [event] = peer.says(raw.partial(1, raw.typed(EVENT)))
        assert event.body == EVENT

    def test_any_other_body_is_handed_on(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        [event] = peer.says(raw.partial(1, b"[1,2]"))
        assert event.body == b"[1,2]"

    def test_sequences_that_fall_are_late(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        events = peer.says(*[raw.partial(1, sequence=n) for n in (1, 5, 4, 5, 6)])
        assert len(events) == 4
        assert client.counters.late_events == 1

    def test_after_the_terminal_they_are_counted_and_dropped(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        events = peer.says(raw.result(1), raw.partial(1), raw.partial(1), raw.result(1))
        assert kinds(events) == ["OperationEnded"]
        assert client.counters.late_events == 3
        assert client.counters.protocol_errors == 0

    @pytest.mark.parametrize(
        "packet",
        [
            raw.packet(0x38, raw.PARTIAL.pack(1, 1, 0, 0, 3, 0), b"{}", session=1, frame=1),
            raw.packet(0x38, raw.PARTIAL.pack(1, 1, 0, 0, 2, 4), b"{}", session=1, frame=1),
        ],
    )
    def test_an_unreadable_one_fails_its_operation_alone(self, packet):
        client, session, peer = raw_server()
        broken, whole = client.submit(session, b"{}"), client.submit(session, b"{}")
        ended, violation, event = peer.says(packet, raw.partial(2, frame=2))
        assert (ended.operation, ended.outcome) == (broken, Outcome.FAILED)
        assert "contradict" in violation.error.detail
        assert (event.operation, event.body) == (whole, b"{}")
        # The server hears that nobody listens any more, and its terminal is late.
        assert [frame.kind for frame in peer.hears()][-1] == MessageType.CANCEL
        assert peer.says(raw.result(1)) == []

    @pytest.mark.parametrize(
        ("packet", "detail"),
        [
            (raw.partial(1, frame=2), "frame 2 does not belong to operation 1"),
            (raw.partial(9), "operation 9 was never submitted"),
            (by_hand(0, 1, 0, 0, 2, 0), "operation 0 was never"),
            (raw.partial(1, session=2), "session 2 is not open"),
            (raw.partial(1, b""), "without a body"),
            (raw.packet(0x38, b"m" * 39, b"{}", session=1, frame=1), "metadata is 39 bytes"),
            (raw.packet(0x38, b"", b"", session=1, frame=1), "metadata is 0 bytes"),
        ],
    )
    def test_contradictions_are_recorded_and_the_stream_goes_on(self, packet, detail):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        client.submit(session, b"{}")
        violation, event = peer.says(packet, raw.partial(1, EVENT))
        assert isinstance(violation, ProtocolViolation)
        assert detail in violation.error.detail
        assert violation.error.message_type == MessageType.PARTIAL_RESULT
        assert event == PartialReceived(operation, EVENT)
        assert client.counters.protocol_errors == 1
        assert client.state is ConnectionState.OPEN
        assert peer.hears()[2:] == []  # a client has nothing to answer with

    def test_the_same_id_on_another_session_is_another_operation(self):
        client, session, peer = raw_server()
        client.open_session(0.0)
        peer.says(raw.open_ack(2))
        first, second = client.submit(session, b"{}"), client.submit(client.sessions[2], b"{}")
        events = peer.says(raw.partial(2, session=1), raw.partial(2, session=2), raw.partial(1))
        assert [event.operation for event in events] == [second, first]
        assert client.counters.late_events == 1


class TestProgress:
    def progress(self, sequence: int, stage: int = 5, percent: int = 0xFFFF, **where: int) -> bytes:
        meta = raw.PROGRESS.pack(where.get("operation", 1), sequence, stage, percent, 0, 0)
        return raw.packet(0x37, meta, session=1, frame=where.get("frame", 1))

    def test_stages_are_reported_in_order(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        events = peer.says(
            self.progress(1, Stage.QUEUED),
            self.progress(2, 5, 5000),
            self.progress(1, 9),
            self.progress(2, 9, 10_000),
        )
        assert events == [
            ProgressReceived(operation, Stage.QUEUED, 0xFFFF),
            ProgressReceived(operation, 5, 5000),
            ProgressReceived(operation, 9, 10_000),
        ]
        assert client.counters.late_events == 1

    def test_after_the_terminal_it_is_late(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        assert kinds(peer.says(raw.result(1), self.progress(1))) == ["OperationEnded"]
        assert client.counters.late_events == 1

    @pytest.mark.parametrize(
        "wrong", [{"percent": 10_001}, {"percent": 0xFFFE}, {"operation": 2}, {"frame": 2}]
    )
    def test_contradictions_are_recorded(self, wrong):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        assert kinds(peer.says(self.progress(1, **wrong))) == ["ProtocolViolation"]


class TestTerminals:
    def test_a_result(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        assert peer.says(raw.result(1, EVENT, status=503)) == [
            OperationEnded(operation, Outcome.RESULT, body=EVENT, status_code=503)
        ]
        assert operation.done
        assert session.operations == {}

    def test_a_result_of_bare_json(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        assert only(peer.says(raw.result(1, body=EVENT)), OperationEnded).body == EVENT

    def test_an_empty_success(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        [ended] = peer.says(raw.result(1, body=b"", kinds=0, count=0))
        assert (ended.outcome, ended.body) == (Outcome.RESULT, b"")

    @pytest.mark.parametrize(
        "packet",
        [
            raw.result(1, body=b"not a typed frame"),
            raw.result(1, kinds=0x40),
            raw.packet(0x12, b"short", raw.typed(EVENT), session=1, frame=1),
        ],
    )
    def test_one_that_cannot_be_read_is_a_terminal_all_the_same(self, packet):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        ended, violation = peer.says(packet)
        assert (ended.operation, ended.outcome) == (operation, Outcome.FAILED)
        assert ended.diagnostic.startswith("unreadable result: ")
        assert isinstance(violation, ProtocolViolation)
        assert operation.done

    def test_a_drop_with_reason(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        assert peer.says(raw.dropped(1, 0x8123)) == [
            OperationEnded(operation, Outcome.DROPPED, drop_reason=0x8123, diagnostic="gone")
        ]

    def test_a_plain_drop_is_understood(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        assert peer.says(raw.packet(0x13, session=1, frame=1)) == [
            OperationEnded(operation, Outcome.DROPPED)
        ]

    @pytest.mark.parametrize(("retry", "kept"), [(0, 30), (70, 70)])
    def test_an_error_about_the_frame_is_one(self, retry, kept):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        operation.retry_after_ms = 30  # advised before
        meta = raw.ERROR.pack(8, 2, 0, retry, 1, 1, 0, 3)
        assert peer.says(raw.packet(0x06, meta, b"old")) == [
            PeerErrorReceived(operation, 8, 2, False, retry, "old"),
            OperationEnded(operation, Outcome.FAILED, diagnostic="old", retry_after_ms=kept),
        ]

    def test_a_lost_connection_is_one(self):
        client, session, _ = raw_server()
        operation = client.submit(session, b"{}")
        ended, _ = client.receive_eof()
        assert ended == OperationEnded(operation, Outcome.LOST, diagnostic="the connection closed")

    @pytest.mark.parametrize(
        "packet",
        [
            raw.result(2),
            raw.result(0),
            raw.result(1, session=2),
            raw.packet(0x13, session=1, frame=2),
            raw.dropped(2),
            raw.dropped(1, frame=3),
            raw.dropped(1, 0),  # there is no drop without a reason
        ],
    )
    def test_a_terminal_of_nothing_ends_nothing(self, packet):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]
        assert not operation.done


class TestRetryGuidance:
    def recoverable(self, frame: int, retry: int = 100, session: int = 1, **more: int) -> bytes:
        meta = raw.RECOVERABLE.pack(
            11, more.get("scope", 2), 0, 2, 2, retry, session, more.get("related", frame), 0, 4
        )
        return raw.packet(0x48, meta, b"busy", session=session, frame=frame)

    def retry(self, scope: int, retry: int = 100, frame: int = 1) -> bytes:
        meta = raw.RETRY.pack(scope, 1, retry, 7, 1, 2, 2, 0)
        return raw.packet(0x49, meta, session=1, frame=frame)

    def test_it_comes_before_the_terminal_and_stays_with_it(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        events = peer.says(self.recoverable(1, 50), self.retry(1, 80), raw.result(1, EVENT))
        assert events == [
            PeerErrorReceived(operation, 11, 2, False, 50, "busy"),
            RetryAdvised(operation, 80, 7),
            OperationEnded(
                operation, Outcome.RESULT, body=EVENT, status_code=200, retry_after_ms=80
            ),
        ]

    def test_an_error_may_name_its_frame_in_the_metadata(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        [event] = peer.says(self.recoverable(0, 0, related=1))
        assert event.operation is operation
        assert operation.retry_after_ms == 0

    def test_one_about_the_session(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        events = peer.says(self.recoverable(0, scope=1), self.retry(1, frame=0))
        assert events == [
            PeerErrorReceived(None, 11, 1, False, 100, "busy"),
            RetryAdvised(None, 100, 7),
        ]

    def test_advice_for_a_done_operation_is_late(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        peer.says(raw.result(1))
        assert peer.says(self.retry(1)) == []
        assert client.counters.late_events == 1

    @pytest.mark.parametrize("wrong", ["session", "operation", "tail"])
    def test_contradictions_are_recorded(self, wrong):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        packet = {
            "session": self.recoverable(1, session=5),
            "operation": self.retry(9),
            "tail": raw.packet(0x48, bytes(28) + b"\x01\0\0\0", session=1),
        }[wrong]
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]


class TestPressure:
    def test_free_slots(self):
        _, session, peer = raw_server()
        assert peer.says(raw.pressure(CREDIT, 1, 12)) == [PressureReported(session, 12, 0, 0, 0)]

    def test_pressure(self):
        _, session, peer = raw_server()
        events = peer.says(raw.pressure(BACKPRESSURE, 1, 0, level=2, retry_after_ms=100))
        assert events == [PressureReported(session, 0, PressureLevel.HARD, 1, 100)]

    def test_of_the_whole_connection(self):
        _, _, peer = raw_server()
        events = peer.says(raw.flow_update(session=0, scope=0, credits=(9, 0, 0)))
        assert events == [PressureReported(None, 9, 0, 0, 0)]

    def test_stale_flow_updates_are_ignored(self):
        client, _, peer = raw_server()
        events = peer.says(
            raw.flow_update(credits=(0, 5, 0), epoch=3),
            raw.flow_update(credits=(0, 9, 0), epoch=2),
            raw.flow_update(credits=(0, 6, 0), epoch=3),
            raw.flow_update(session=0, scope=0, credits=(1, 0, 0), epoch=1),
        )
        assert [event.window for event in events] == [5, 6, 1]
        assert client.counters.stale_controls == 1

    def test_draining_stops_submits_and_lets_the_rest_end(self):
        client, session, peer = raw_server()
        operation = client.submit(session, b"{}")
        events = peer.says(raw.flow_update(reason=2, level=2, flags=10, retry_after_ms=500))
        assert events == [
            PeerDraining(session, 500),
            PressureReported(session, None, PressureLevel.PAUSED, 0, 500),
        ]
        assert session.available == 0
        with pytest.raises(LocalProtocolError, match="takes no operations"):
            client.submit(session, b"{}")
        assert only(peer.says(raw.result(1)), OperationEnded).operation is operation

    def test_a_draining_connection_drains_every_session(self):
        client, _, peer = raw_server()
        client.open_session(0.0)
        peer.says(raw.open_ack(2))
        events = peer.says(raw.flow_update(session=0, scope=0, flags=8))
        assert events[0] == PeerDraining(None, 0)
        assert all(each.draining for each in client.sessions.values())

    @pytest.mark.parametrize(
        "packet",
        [raw.pressure(CREDIT, 1, 5, session=9), raw.pressure(CREDIT, 1, 5, flags=3)],
    )
    def test_contradictions_are_recorded(self, packet):
        _, _, peer = raw_server()
        assert kinds(peer.says(packet)) == ["ProtocolViolation"]


class TestWhatIsNotUsed:
    @pytest.mark.parametrize("kind", [0x18, 0x15, 0x16, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47])
    def test_objects_caches_and_hints_are_counted_and_not_answered(self, kind):
        client, _, peer = raw_server(tag=OUR_TAG)
        assert peer.says(raw.packet(kind, b"whatever", b"it is", session=1)) == []
        assert client.counters.unsupported == 1
        assert peer.hears() == []

    def test_a_trace_says_nothing_new(self):
        client, session, peer = raw_server()
        client.submit(session, b"{}")
        trace = raw.packet(TRACE, raw.TRACE.pack(1, 1, 0, 10, 0, 0), session=1)
        assert peer.says(trace) == []
        wrong = raw.packet(TRACE, raw.TRACE.pack(1, 1, 0, 10, 0, 5), session=1)
        unknown = raw.packet(TRACE, raw.TRACE.pack(1, 1, 0, 10, 0, 0), session=2)
        assert kinds(peer.says(wrong, unknown)) == ["ProtocolViolation", "ProtocolViolation"]

    def test_objects_of_an_unknown_session_are_a_violation(self):
        client, _, peer = raw_server()
        assert kinds(peer.says(raw.packet(0x41, session=2))) == ["ProtocolViolation"]
        assert client.counters.unsupported == 0
