import gc
import weakref

import pytest

from gateway.pool import OutcomeKind, TicketState
from nnrp_backend.profile import events
from nnrp_backend.protocol.constants import CancelReason, DropReason
from tests.support.fake_worker import FakeSink, answer, dropped
from tests.support.pool_bench import PoolBench

DELTA = events.text_delta(0, "hi")
DIAGNOSTICS = events.diagnostics({"queue_delay_ms": 1})


def test_a_ticket_on_its_way() -> None:
    bench = PoolBench(1)
    ticket, sink = bench.submit()
    assert repr(ticket) == "<Ticket m [queued, try 0]>"
    assert ticket.worker is None
    client = bench.attach()
    assert repr(ticket) == "<Ticket m [submitted on w0, try 1]>"
    assert ticket.worker is not None
    assert ticket.worker.name == "w0"
    (operation,) = client.operations
    operation.send(DELTA, DELTA)
    assert repr(ticket) == "<Ticket m [streaming on w0, try 1]>"
    assert sink.events == [DELTA, DELTA]
    operation.end(answer())
    assert repr(ticket) == "<Ticket m [done on w0, try 1]>"
    assert sink.outcome == (OutcomeKind.ANSWERED, None, answer())


def test_the_engine_has_not_spoken_while_there_are_only_diagnostics() -> None:
    bench = PoolBench(1)
    client = bench.attach()
    ticket, sink = bench.submit()
    client.operations[0].send(DIAGNOSTICS)
    assert ticket.state is TicketState.SUBMITTED
    assert sink.events == [DIAGNOSTICS], "but whoever asked for them gets them"
    client.operations[0].send(DIAGNOSTICS, DELTA)
    assert ticket.state is TicketState.STREAMING


def test_a_broken_event_is_an_event() -> None:
    bench = PoolBench(1)
    client = bench.attach()
    ticket, sink = bench.submit()
    client.operations[0].send(b"not json")
    assert ticket.state is TicketState.STREAMING
    assert sink.events == [b"not json"]


def test_progress_is_not_the_engine_speaking() -> None:
    bench = PoolBench(1)
    client = bench.attach()
    ticket, _ = bench.submit()
    client.operations[0].handler.on_progress(4, 0xFFFF)
    assert ticket.state is TicketState.SUBMITTED


def test_the_request_is_let_go_of_at_the_first_event() -> None:
    bench = PoolBench(1)
    client = bench.attach()
    ticket, _ = bench.submit()
    assert ticket.request is not None
    client.operations[0].send(DELTA)
    assert ticket.request is None


@pytest.mark.parametrize("end", ["answered", "refused", "cancelled"])
def test_sink_and_ticket_may_hold_each_other_until_the_end(end: str) -> None:
    class Holder(FakeSink):
        ticket: object = None

    gc.collect()
    gc.disable()
    try:
        bench = PoolBench(1)
        client = bench.attach()
        sink = Holder()
        ticket = sink.ticket = bench.submit_to(sink, "other" if end == "refused" else "m")
        if end == "cancelled":
            ticket.cancel()
        for operation in tuple(client.operations):
            operation.end(answer())
        client.submitted.clear()
        gone = weakref.ref(sink)
        del sink, ticket
        operation = None
        assert gone() is None
    finally:
        gc.enable()


def test_time_in_the_queue_is_counted() -> None:
    bench = PoolBench(1)
    bench.attach(granted=1)
    first, _ = bench.submit()
    second, _ = bench.submit()
    bench.clock.advance(1.5)
    bench.running()[0].end(answer())
    assert (first.queued_s, second.queued_s) == (0.0, 1.5)


class TestCancel:
    def test_while_queued_it_ends_at_once(self) -> None:
        bench = PoolBench(1)
        ticket, sink = bench.submit()
        ticket.cancel()
        assert sink.outcome.kind is OutcomeKind.CANCELLED
        assert sink.outcome.terminal is None
        assert ticket.state is TicketState.DONE
        assert bench.is_at_rest

    @pytest.mark.parametrize("spoken", [False, True])
    def test_in_flight_it_sends_cancel_and_waits_for_the_drop(self, spoken: bool) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, sink = bench.submit()
        (operation,) = client.operations
        if spoken:
            operation.send(DELTA)
        ticket.cancel()
        assert operation.cancels == [CancelReason.USER_CANCELLED]
        assert "cancelled" in repr(ticket)
        assert sink.outcomes == []
        assert bench.pool.in_flight == 1, "the worker still has it"
        operation.end(dropped(DropReason.PEER_CANCELLED))
        assert sink.outcome == (
            OutcomeKind.CANCELLED,
            None,
            dropped(DropReason.PEER_CANCELLED),
        )
        assert bench.is_at_rest

    def test_no_event_is_passed_on_after_it(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, sink = bench.submit()
        client.operations[0].send(DELTA)
        ticket.cancel()
        client.operations[0].send(DELTA)
        assert sink.events == [DELTA]

    def test_an_answer_that_crossed_it_is_kept(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, sink = bench.submit()
        ticket.cancel()
        client.operations[0].end(answer())
        assert sink.outcome == (OutcomeKind.CANCELLED, None, answer())
        assert bench.is_at_rest

    def test_only_the_first_counts(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, sink = bench.submit()
        ticket.cancel()
        ticket.cancel()
        (operation,) = client.operations
        assert len(operation.cancels) == 1
        operation.end(dropped(DropReason.PEER_CANCELLED))
        ticket.cancel()
        assert len(sink.outcomes) == 1
        assert bench.is_at_rest

    def test_after_the_end_it_means_nothing(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, sink = bench.submit()
        client.operations[0].end(answer())
        ticket.cancel()
        assert sink.outcome.kind is OutcomeKind.ANSWERED
        assert not ticket.cancelled

    def test_while_the_payload_is_built(self) -> None:
        bench = PoolBench(1)
        sink = FakeSink()
        tickets = []

        def build(worker: object) -> bytes:
            tickets[0].cancel()
            return b"{}"

        tickets.append(bench.submit_to(sink, build=build))
        client = bench.attach()
        (operation,) = client.operations
        assert operation.cancels == [CancelReason.USER_CANCELLED]
        operation.end(dropped(DropReason.PEER_CANCELLED))
        assert sink.outcome.kind is OutcomeKind.CANCELLED
        assert bench.is_at_rest


class TestGrant:
    def test_it_goes_to_the_operation(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, _ = bench.submit()
        ticket.grant(16)
        assert client.operations[0].grants == [16]

    def test_without_an_operation_it_means_nothing(self) -> None:
        bench = PoolBench(1)
        ticket, _ = bench.submit()
        ticket.grant(16)
        client = bench.attach()
        assert client.operations[0].grants == []

    def test_nothing_is_granted_to_what_is_cancelled_or_done(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, _ = bench.submit()
        (operation,) = client.operations
        ticket.cancel()
        ticket.grant(16)
        operation.end(dropped(DropReason.PEER_CANCELLED))
        ticket.grant(16)
        assert operation.grants == []


class TestSinksThatRaise:
    class Sink(FakeSink):
        def on_events(self, bodies: list[bytes]) -> None:
            super().on_events(bodies)
            raise ZeroDivisionError

        def on_terminal(self, outcome: object) -> None:
            super().on_terminal(outcome)  # type: ignore[arg-type]
            raise ZeroDivisionError

    def test_in_an_event_their_request_is_cancelled(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        sink = self.Sink()
        bench.submit_to(sink)
        _, other = bench.submit()
        broken, healthy = client.operations
        broken.send(DELTA)
        broken.send(DELTA)
        assert sink.events == [DELTA]
        assert broken.cancels == [CancelReason.UNSPECIFIED]
        broken.end(dropped(DropReason.PEER_CANCELLED))
        assert sink.outcome.kind is OutcomeKind.FAILED
        assert sink.outcome.error is not None
        assert sink.outcome.error.status == 500
        assert "failed in on_events" in caplog.text
        healthy.send(DELTA)
        healthy.end(answer())
        assert other.outcome.kind is OutcomeKind.ANSWERED
        assert bench.is_at_rest

    def test_at_the_end_everything_is_released_all_the_same(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        bench.submit_to(self.Sink())
        client.operations[0].end(answer())
        assert "failed in on_terminal" in caplog.text
        assert bench.is_at_rest
