"""The server's verbs: events, credit, and exactly one terminal for each operation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnrp_backend.protocol import ServerConfig
from nnrp_backend.protocol.constants import (
    OUR_TAG,
    CancelReason,
    DropReason,
    ErrorCode,
    MessageType,
    Stage,
)
from nnrp_backend.protocol.errors import LocalProtocolError, PacketTooLarge
from nnrp_backend.protocol.events import (
    OperationEnded,
    OperationSubmitted,
    Outcome,
    PartialReceived,
    ProgressReceived,
    RetryAdvised,
)
from nnrp_backend.protocol.states import OperationState
from tests.support import protocol as raw
from tests.support.protocol import kinds, only, pair, raw_client

EVENT = b'{"type":"response.output_text.delta","index":0,"delta":"x"}'
RESULT, PROGRESS, PARTIAL, TRACE, DROP, RECOVERABLE, RETRY = (
    0x12,
    0x37,
    0x38,
    0x3F,
    0x40,
    0x48,
    0x49,
)


def types(frames: list[raw.Frame]) -> list[int]:
    return [frame.kind for frame in frames]


def running(number: int = 901, frame: int = 7, **how):
    """A server with one operation in flight, the peer, and that operation."""
    server, peer = raw_client(**how)
    submitted = only(peer.says(raw.submit(number, frame=frame)), OperationSubmitted)
    return server, peer, submitted.operation


class TestPartials:
    def test_the_captured_packet(self):
        # Captured from the published runtime: operation 1, frame 1, sequence 1, 349 bytes of body.
        server, _, operation = running(1, 1)
        body = b"{" + b" " * 347 + b"}"
        server.send_partial(operation, body)
        [piece] = server.data_to_send()
        assert piece[:80].hex() == (
            "4e4e52500100382800000000280000005d010000010000000100000000000000"
            "0000000000000000"
            "0100000000000000010000000000000000000000000000000000000000000000"
            "5d01000000000000"
        )  # fmt: skip
        assert piece[80:] == body

    def test_each_names_both_ids_and_counts_up(self):
        server, peer, operation = running()
        for _ in range(3):
            assert server.send_partial(operation, EVENT)
        frames = peer.hears()
        assert frames == [
            raw.frames(raw.partial(901, EVENT, frame=7, sequence=n))[0] for n in (1, 2, 3)
        ]

    def test_a_large_event_is_not_copied(self):
        server, _, operation = running()
        body = b"{" + b" " * 100_000 + b"}"
        server.send_partial(operation, body)
        head, piece = server.data_to_send()
        assert piece is body
        assert raw.frames(head + piece) == raw.frames(raw.partial(901, body, frame=7))

    def test_one_that_does_not_fit_is_refused_and_the_operation_lives(self):
        server, peer, operation = running(config=ServerConfig(max_packet_bytes=1000))
        assert server.send_partial(operation, bytes(920))
        with pytest.raises(PacketTooLarge) as caught:
            server.send_partial(operation, bytes(921))
        assert (caught.value.size, caught.value.limit) == (1001, 1000)
        assert server.complete(operation, b"{}")
        assert [frame.kind for frame in peer.hears()] == [PARTIAL, RESULT]

    @given(bodies=st.lists(st.binary(min_size=0, max_size=300).map(lambda b: b"{" + b), max_size=6))
    def test_our_own_client_gets_every_one_in_order(self, bodies):
        cores = pair()
        mine, theirs = cores.submit()
        for body in bodies:
            cores.server.send_partial(theirs, body)
        assert cores.to_client() == [PartialReceived(mine, body) for body in bodies]


class TestCredit:
    def test_each_event_takes_one_of_every_window(self):
        server, peer, operation = running()
        server.set_credit(operation, 3)
        peer.says(raw.pressure(0x3A, 1, 2), raw.pressure(0x3A, 0, 5, session=0, flags=1))
        assert server.may_send(operation)
        server.send_partial(operation, EVENT)
        server.send_partial(operation, EVENT)
        assert (operation.credit, operation.session.credit, server.credit) == (1, 0, 3)
        assert not server.may_send(operation)
        peer.says(raw.pressure(0x3A, 1, 9))
        assert server.may_send(operation)

    @pytest.mark.parametrize("scope", ["operation", "session", "connection"])
    def test_any_empty_window_stops_it(self, scope):
        server, peer, operation = running()
        assert server.may_send(operation)
        packet = {
            "operation": raw.pressure(0x3A, 901, 0, frame=7, flags=2),
            "session": raw.pressure(0x3A, 1, 0),
            "connection": raw.pressure(0x3A, 0, 0, session=0, flags=1),
        }[scope]
        peer.says(packet)
        assert not server.may_send(operation)

    def test_what_was_already_pulled_goes_out_and_the_debt_counts(self):
        server, _, operation = running()
        server.set_credit(operation, 1)
        for _ in range(3):
            assert server.send_partial(operation, EVENT)
        assert operation.credit == -2
        assert not server.may_send(operation)
        server.set_credit(operation, None)
        assert server.may_send(operation)

    def test_terminals_cost_nothing(self):
        for end in ("complete", "drop"):
            server, peer, operation = running()
            server.set_credit(operation, 0)
            assert (
                server.complete(operation, b"{}") if end == "complete" else server.drop(operation)
            )
            assert len(peer.hears()) == 1

    def test_a_grant_of_our_own_client_is_exact(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.client.grant(mine, 4)
        cores.to_server()
        assert theirs.credit == 4


class TestProgress:
    @pytest.mark.parametrize(
        ("how", "sent"),
        [
            ({}, False),
            ({"grant": ("control.cancel_abort",)}, False),
            ({"grant": ("control.progress_partial",)}, True),
            ({"tag": OUR_TAG}, True),
        ],
    )
    def test_it_goes_only_where_it_is_granted(self, how, sent):
        server, peer, operation = running(**how)
        assert server.send_progress(operation, Stage.EXECUTING) is sent
        assert types(peer.hears()) == [PROGRESS] * sent

    def test_it_counts_up_on_its_own(self):
        server, peer, operation = running(tag=OUR_TAG)
        server.send_partial(operation, EVENT)
        server.send_progress(operation, Stage.QUEUED)
        server.send_progress(operation, Stage.EXECUTING, 5000)
        _, first, second = peer.hears()
        assert first.unpack(raw.PROGRESS) == (901, 1, 1, 0xFFFF, 0, 0)
        assert second.unpack(raw.PROGRESS) == (901, 2, 5, 5000, 0, 0)
        assert (first.session, first.frame) == (1, 7)

    def test_our_own_client_reports_it(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.server.send_progress(theirs, Stage.ADMITTED)
        assert cores.to_client() == [ProgressReceived(mine, Stage.ADMITTED, 0xFFFF)]


class TestComplete:
    def test_the_packet(self):
        server, peer, operation = running()
        assert server.complete(operation, EVENT, 503)
        assert peer.hears() == raw.frames(raw.result(7, EVENT, status=503))
        assert operation.done
        assert operation.session.operations == {}

    def test_an_empty_success(self):
        server, peer, operation = running()
        assert server.complete(operation, b"")
        assert peer.hears() == raw.frames(raw.result(7, body=b"", kinds=0, count=0))

    def test_one_that_does_not_fit_is_still_owed(self):
        server, peer, operation = running(config=ServerConfig(max_packet_bytes=1000))
        with pytest.raises(PacketTooLarge):
            server.complete(operation, bytes(1000 - 40 - 64 - 56 + 1))
        assert not operation.done
        assert peer.hears() == []
        assert server.complete(operation, bytes(1000 - 40 - 64 - 56))

    def test_a_status_that_does_not_fit_is_our_mistake_and_it_is_still_owed(self):
        server, peer, operation = running()
        with pytest.raises(LocalProtocolError):
            server.complete(operation, b"{}", 70_000)
        assert server.complete(operation, b"{}", 500)
        assert len(peer.hears()) == 1

    def test_the_largest_packet(self):
        cores = pair()
        mine, theirs = cores.submit()
        body = b"{" + bytes((64 << 20) - 40 - 64 - 56 - 2) + b"}"
        cores.server.complete(theirs, body)
        data = b"".join(cores.server.data_to_send())
        assert len(data) == 64 << 20
        events = []
        for position in range(0, len(data), 1 << 20):
            events += cores.client.receive_data(data[position : position + (1 << 20)], 0.0)
        [ended] = events
        assert ended.operation is mine
        assert ended.body == body


class TestDrop:
    def test_the_packet(self):
        server, peer, operation = running()
        server.send_partial(operation, EVENT)
        peer.hears()
        assert server.drop(operation, DropReason.DEADLINE_EXPIRED, "too late")
        [frame] = peer.hears()
        assert (frame.kind, frame.session, frame.frame) == (DROP, 1, 7)
        # operation, the next sequence, reason, role server, final, length, reserved
        assert frame.unpack(raw.CONTROL) == (901, 2, 1, 2, 1, 8, 0)
        assert frame.body == b"too late"

    def test_a_drop_has_a_reason(self):
        server, peer, operation = running()
        with pytest.raises(LocalProtocolError, match="reason"):
            server.drop(operation, 0)
        assert not operation.done
        assert peer.hears() == []

    def test_long_diagnostics_are_cut(self):
        server, peer, operation = running()
        server.drop(operation, 1, "ä" * 5000)
        [frame] = peer.hears()
        assert len(frame.body) <= 1024
        frame.body.decode()


class TestAfterACancel:
    """A CANCEL is answered by a session TRACE_CONTEXT, then RESULT_DROP_REASON."""

    def cancelled(self, packet: bytes | None = None, **how):
        server, peer, operation = running(**how)
        peer.says(packet or raw.cancel(901, frame=7))
        return server, peer, operation

    def check(self, peer, reason: int, *, trace=(901, 901, 0)):
        trace_frame, drop = peer.hears()
        assert (trace_frame.kind, trace_frame.session, trace_frame.frame) == (TRACE, 1, 0)
        trace_id, span_id, _, stage, flags, size = trace_frame.unpack(raw.TRACE)
        assert trace_id
        assert span_id
        assert (trace_id, flags) == (trace[0], trace[2])
        assert (stage, size) == (Stage.DROPPED, 0)
        assert (drop.kind, drop.frame) == (DROP, 7)
        assert drop.unpack(raw.CONTROL)[2] == reason

    def test_the_drop_says_that_the_peer_cancelled_whatever_we_say(self):
        server, peer, operation = self.cancelled()
        assert server.drop(operation, DropReason.DEADLINE_EXPIRED)
        self.check(peer, DropReason.PEER_CANCELLED)

    def test_a_result_becomes_a_drop(self):
        server, peer, operation = self.cancelled()
        assert server.complete(operation, EVENT)
        self.check(peer, DropReason.PEER_CANCELLED)
        assert operation.done

    def test_an_abort(self):
        server, peer, operation = self.cancelled(raw.cancel(901, frame=7, kind=0x31))
        server.drop(operation)
        self.check(peer, DropReason.PEER_CANCELLED)

    def test_a_supersede(self):
        packet = raw.packet(0x35, raw.SUPERSEDE.pack(901, 902, 1, 2, 0, 0), session=1, frame=7)
        server, peer, operation = self.cancelled(packet)
        server.drop(operation)
        self.check(peer, DropReason.SUPERSEDED)

    def test_the_trace_is_the_operations_own(self):
        server, peer = raw_client()
        peer.says(raw.packet(TRACE, raw.TRACE.pack(5, 6, 0, 0, 1, 0), session=1))
        operation = only(peer.says(raw.submit(901, frame=7)), OperationSubmitted).operation
        peer.says(raw.cancel(901, frame=7))
        server.drop(operation)
        trace = peer.hears()[0].unpack(raw.TRACE)
        assert (trace[0], trace[1], trace[4]) == (5, 6, 1)

    def test_nothing_else_is_sent_for_it(self):
        server, peer, operation = self.cancelled(tag=OUR_TAG)
        assert not server.send_partial(operation, EVENT)
        assert not server.send_progress(operation, Stage.EXECUTING)
        assert not server.retry_after(operation, 100)
        assert not server.recoverable_error(operation, ErrorCode.SERVER_BUSY)
        assert peer.hears() == []
        assert operation.state is OperationState.CANCELLING

    def test_a_drop_that_no_cancel_asked_for_has_no_trace(self):
        server, peer, operation = running()
        server.drop(operation, DropReason.DEADLINE_EXPIRED)
        assert types(peer.hears()) == [DROP]


class TestNothingAfterTheTerminal:
    @pytest.mark.parametrize("end", ["complete", "drop", "eof", "session"])
    def test_every_verb_is_silent(self, end):
        server, peer, operation = running(tag=OUR_TAG)
        if end == "complete":
            server.complete(operation, b"{}")
        elif end == "drop":
            server.drop(operation)
        elif end == "session":
            peer.says(raw.packet(0x09, raw.CLOSE.pack(0, 0, 0, 0, 0, 0, 1), session=1))
        else:
            server.receive_eof()
        peer.hears()
        assert not server.send_partial(operation, EVENT)
        assert not server.send_progress(operation, Stage.EXECUTING)
        assert not server.complete(operation, b"{}")
        assert not server.drop(operation, DropReason.BACKPRESSURE)
        assert not server.retry_after(operation, 100)
        assert not server.recoverable_error(operation, ErrorCode.SERVER_BUSY)
        assert peer.hears() == []


class TestRetryGuidance:
    def test_error_and_advice_precede_the_terminal(self):
        server, peer, operation = running(grant=("control.recoverable_error",))
        assert server.retry_after(operation, 250, jitter_ms=20, diagnostic="full")
        server.complete(operation, EVENT, 503)
        error, advice, result = peer.hears()
        assert types([error, advice, result]) == [RECOVERABLE, RETRY, RESULT]
        assert {frame.frame for frame in (error, advice, result)} == {7}
        # busy, scope frame, no action, role server, retryable, delay, session, frame, view, length
        assert error.unpack(raw.RECOVERABLE) == (0x0B, 2, 0, 2, 2, 250, 1, 7, 0, 4)
        assert error.body == b"full"
        # operation, sequence, delay, jitter, reason, role server, retryable, length
        assert advice.unpack(raw.RETRY) == (901, 1, 250, 20, 1, 2, 2, 0)

    def test_not_where_it_is_not_granted(self):
        server, peer, operation = running(grant=("control.cancel_abort",))
        assert not server.retry_after(operation, 250)
        assert not server.recoverable_error(operation, ErrorCode.SERVER_BUSY, "full")
        assert peer.hears() == []

    def test_an_error_alone(self):
        server, peer, operation = running(tag=OUR_TAG)
        assert server.recoverable_error(operation, ErrorCode.UNSUPPORTED_CAPABILITY, "no_such")
        [error] = peer.hears()
        assert error.unpack(raw.RECOVERABLE) == (6, 2, 0, 2, 0, 0, 1, 7, 0, 7)

    def test_a_refused_submit_gets_it_too(self):
        server, peer = raw_client(tag=OUR_TAG)
        server.drain()
        peer.hears()
        [refused] = peer.says(raw.submit(1))
        assert server.retry_after(refused.operation, 100)
        server.complete(refused.operation, EVENT, 503)
        assert types(peer.hears()) == [RECOVERABLE, RETRY, RESULT]

    def test_our_own_client_keeps_it_with_the_terminal(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.server.retry_after(theirs, 250)
        cores.server.complete(theirs, EVENT, 503)
        events = cores.to_client()
        assert kinds(events) == ["PeerErrorReceived", "RetryAdvised", "OperationEnded"]
        assert events[1] == RetryAdvised(mine, 250, 0)
        assert events[2].retry_after_ms == 250


class TestForeignClients:
    """What a foreign client that negotiated nothing must never be sent."""

    FORBIDDEN = frozenset({0x39, 0x3A, 0x17, 0x37, 0x48, 0x49, 0x20, 0x21, 0x06})

    VERBS = (
        *("submit", "partial", "progress", "complete", "drop", "cancel", "retry", "error"),
        *("advertise", "pressure", "drain", "ping", "object", "violation"),
    )

    @settings(max_examples=60, deadline=None)
    @given(verbs=st.lists(st.sampled_from(VERBS), max_size=12))
    def test_whatever_happens(self, verbs):
        server, peer = raw_client()
        operations, number, ended = [], 0, set()
        for verb in ["submit", *verbs]:
            if verb == "submit":
                number += 1
                operations += [
                    event.operation
                    for event in peer.says(raw.submit(number))
                    if not event.operation.done
                ]
            operation = operations[-1]
            self.act(server, peer, verb, operation)
            for frame in peer.hears():
                assert frame.kind not in self.FORBIDDEN
                assert frame.session == 1
                assert frame.frame not in ended or not frame.frame, "after the terminal"
                if frame.kind in (RESULT, DROP):
                    ended.add(frame.frame)

    def act(self, server, peer, verb, operation):
        match verb:
            case "partial":
                server.send_partial(operation, EVENT)
            case "progress":
                server.send_progress(operation, Stage.EXECUTING)
            case "complete":
                server.complete(operation, EVENT)
            case "drop":
                server.drop(operation, DropReason.BACKPRESSURE)
            case "retry":
                server.retry_after(operation, 100)
            case "error":
                server.recoverable_error(operation, ErrorCode.SERVER_BUSY)
            case "advertise":
                server.advertise(3)
            case "pressure":
                server.advertise(0, level=2, retry_after_ms=10)
            case "drain":
                server.drain()
            case "ping":
                server.ping()
            case "cancel":
                peer.says(raw.cancel(operation.operation_id))
            case "object":
                peer.says(raw.packet(0x41, session=1, frame=operation.frame_id))
            case "violation":
                peer.says(raw.packet(0x30, session=1, frame=operation.frame_id))


class TestCrossing:
    """Two packets that meet on the wire, both ends ours."""

    def test_a_grant_crosses_the_terminal(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.server.complete(theirs, EVENT)
        cores.client.grant(mine, 5)
        assert cores.to_server() == []
        assert cores.server.counters.late_events == 1
        assert only(cores.to_client(), OperationEnded).outcome is Outcome.RESULT

    def test_a_deadline_crosses_the_terminal_and_does_not_haunt_a_later_operation(self):
        cores = pair()
        mine, theirs = cores.submit()
        cores.server.complete(theirs, EVENT)
        cores.client.set_deadline(mine, 5)
        cores.roundtrip()
        _, later = cores.submit()
        assert later.deadline_unix_ms is None

    def test_a_supersede_crosses_the_old_ones_terminal(self):
        cores = pair()
        old, theirs = cores.submit()
        new, _ = cores.submit()
        cores.server.complete(theirs, EVENT)
        cores.client.supersede(old, new)
        cores.roundtrip()
        ended = only(cores.client_events, OperationEnded)
        assert (ended.operation, ended.outcome) == (old, Outcome.RESULT)
        assert not new.done

    def test_partials_on_the_way_when_it_is_cancelled_are_late(self):
        cores = pair()
        mine, theirs = cores.submit()
        for _ in range(3):
            cores.server.send_partial(theirs, EVENT)
        cores.client.cancel(mine, CancelReason.USER_CANCELLED)
        assert cores.to_client() == []
        assert cores.client.counters.late_events == 3
        cores.to_server()
        cores.server.drop(theirs)
        ended = only(cores.to_client(), OperationEnded)
        assert ended.drop_reason == DropReason.PEER_CANCELLED

    def test_both_ends_are_clean_afterwards(self):
        cores = pair()
        for _ in range(20):
            mine, theirs = cores.submit()
            cores.server.send_partial(theirs, EVENT)
            cores.server.complete(theirs, EVENT)
            cores.roundtrip()
            assert mine.done
        assert cores.session.operations == cores.session.frames == {}
        [session] = cores.server.sessions.values()
        assert session.operations == session.frames == session.reservations == {}
        assert cores.client.counters.protocol_errors == cores.server.counters.protocol_errors == 0
        assert {frame.kind for frame in cores.seen_by_client} == {
            MessageType.PARTIAL_RESULT,
            MessageType.RESULT_PUSH,
        }
