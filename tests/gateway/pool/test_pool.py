import asyncio
from typing import Any

import pytest
from hypothesis import settings

from gateway.errors import ApiError
from gateway.pool import (
    BackendState,
    OutcomeKind,
    Pool,
    PoolRequest,
    Ticket,
    TicketState,
    WorkerSpec,
)
from gateway.pool.backoff import Backoff
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.profile.operations import CHAT, EMBEDDINGS
from nnrp_backend.protocol.constants import CancelReason, DropReason
from tests.support.fake_worker import (
    FakeClient,
    FakeSink,
    answer,
    dropped,
    record,
    refusal,
)
from tests.support.pool_bench import UNIX_TIME, PoolBench
from tests.support.pool_machine import PoolMachine
from tests.support.waiting import until


class FakeHandler(FakeSink):
    """What the client itself listens with."""

    def on_terminal(self, terminal: Any) -> None:
        pass


DELTA = events.text_delta(0, "hi")


def error_of(sink: FakeSink) -> ApiError:
    assert sink.outcome.kind is OutcomeKind.FAILED
    assert sink.outcome.error is not None
    return sink.outcome.error


class TestAssigning:
    def test_a_request_goes_to_a_worker(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        _, sink = bench.submit()
        assert repr(bench.pool) == "<Pool [Requests: 1 active, 0 queued | Workers: 1 ready]>"
        (operation,) = client.operations
        assert operation.payload == b"for w0"
        operation.send(DELTA)
        operation.end(answer())
        assert sink.events == [DELTA]
        assert sink.outcome.kind is OutcomeKind.ANSWERED
        assert repr(bench.pool) == "<Pool [Requests: 0 active, 0 queued | Workers: 1 ready]>"
        assert bench.is_at_rest

    def test_the_least_loaded_worker_gets_it(self) -> None:
        bench = PoolBench(2)
        bench.attach(0)
        bench.attach(1)
        for _ in range(6):
            bench.submit()
        assert [worker.in_flight for worker in bench.pool.workers] == [3, 3]
        for operation in bench.running(1):
            operation.end(answer())
        bench.submit()
        assert [worker.in_flight for worker in bench.pool.workers] == [3, 1]

    def test_only_a_worker_that_serves_the_model(self) -> None:
        bench = PoolBench(2)
        bench.attach(0, record("a"))
        bench.attach(1, record("b"))
        for _ in range(3):
            bench.submit("b")
        assert [worker.in_flight for worker in bench.pool.workers] == [0, 3]

    def test_the_granted_number_is_never_exceeded(self) -> None:
        bench = PoolBench(2)
        bench.attach(0, granted=1)
        bench.attach(1, granted=2)
        tickets = [bench.submit()[0] for _ in range(5)]
        assert repr(bench.pool) == "<Pool [Requests: 3 active, 2 queued | Workers: 2 ready]>"
        bench.running(0)[0].end(answer())
        assert [ticket.state for ticket in tickets[3:]] == ["submitted", "queued"]
        assert bench.worker(0).in_flight == 1

    def test_the_cap_of_the_process_holds_for_the_whole_stream(self) -> None:
        bench = PoolBench(1, max_in_flight=2)
        client = bench.attach()
        for _ in range(3):
            bench.submit()
        assert (bench.pool.in_flight, bench.pool.queued) == (2, 1)
        client.operations[0].send(DELTA)
        assert bench.pool.queued == 1, "a stream that has begun still counts"
        client.operations[0].end(answer())
        assert (bench.pool.in_flight, bench.pool.queued) == (2, 0)

    def test_first_come_first_served(self) -> None:
        bench = PoolBench(1)
        bench.attach(granted=1)
        tickets = [bench.submit()[0] for _ in range(4)]
        order = []
        while bench.running():
            order.append(next(t for t in tickets if t.state is TicketState.SUBMITTED))
            bench.running()[0].end(answer())
        assert order == tickets

    def test_a_busy_model_does_not_hold_up_another(self) -> None:
        bench = PoolBench(2)
        bench.attach(0, record("busy"), granted=1)
        bench.attach(1, record("idle"), granted=1)
        bench.submit("busy")
        waiting, _ = bench.submit("busy")
        passing, _ = bench.submit("idle")
        assert (waiting.state, passing.state) == ("queued", "submitted")

    def test_deadline_and_priority_reach_the_wire(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        bench.clock.advance(7)
        bench.submit(deadline=bench.clock.now + 2.5, priority=0)
        (operation,) = client.operations
        assert operation.deadline_unix_ms == int((UNIX_TIME + 7 + 2.5) * 1000)
        assert operation.priority == 0
        bench.submit()
        assert client.operations[1].deadline_unix_ms is None

    def test_a_worker_that_says_it_is_full_is_left_alone(self) -> None:
        bench = PoolBench(1)
        bench.attach()
        bench.worker(0).on_pressure(0, 2, 200)
        ticket, _ = bench.submit()
        assert ticket.state is TicketState.QUEUED
        bench.clock.advance(0.2)
        assert ticket.state is TicketState.SUBMITTED

    @pytest.mark.parametrize("state", ["draining", "degraded"])
    def test_no_new_work_for_a_worker_that_is(self, state: str) -> None:
        bench = PoolBench(2)
        bench.attach(0)
        bench.attach(1)
        running, sink = bench.submit()
        place = bench.worker(0) if bench.worker(0).in_flight else bench.worker(1)
        place.on_drain() if state == "draining" else place.on_probe(None)
        assert place.state == state
        for _ in range(3):
            bench.submit()
        assert place.in_flight == 1
        # What it has ends as usual.
        operation = next(
            op for number in (0, 1) for op in bench.running(number) if op.handler is running
        )
        operation.end(answer())
        assert sink.outcome.kind is OutcomeKind.ANSWERED


class TestRefusing:
    def test_an_unknown_model_is_404(self) -> None:
        bench = PoolBench(2)
        bench.attach(0)
        _, sink = bench.submit("other")
        error = error_of(sink)
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
        assert bench.is_at_rest

    def test_a_model_that_does_not_serve_the_operation(self) -> None:
        bench = PoolBench(1)
        bench.attach(0, record("e", operations=(EMBEDDINGS,)))
        _, sink = bench.submit("e", operation=CHAT)
        error = error_of(sink)
        assert (error.status, error.code) == (404, "unsupported_operation")

    def test_while_nobody_has_ever_said_what_it_serves_it_is_503(self) -> None:
        bench = PoolBench(2)
        _, sink = bench.submit("anything")
        assert sink.outcomes == []
        bench.clock.advance(0.5)
        error = error_of(sink)
        assert (error.status, error.code) == (503, "no_backend")
        assert error.headers["retry-after"] == "1"
        assert bench.is_at_rest

    def test_the_model_of_a_worker_that_is_away_is_503_in_less_than_a_second(self) -> None:
        bench = PoolBench(1)
        bench.attach().lose()
        _, sink = bench.submit()
        bench.clock.advance(0.999)
        assert error_of(sink).status == 503

    def test_a_worker_that_comes_within_the_patience_gets_the_request(self) -> None:
        bench = PoolBench(1)
        ticket, sink = bench.submit()
        bench.clock.advance(0.4)
        bench.attach()
        assert ticket.state is TicketState.SUBMITTED
        bench.clock.advance(100)
        assert sink.outcomes == [], "the patience was for the queue"

    def test_failed_attempts_to_connect_do_not_prolong_the_patience(self) -> None:
        bench = PoolBench(1)
        _, sink = bench.submit()
        for _ in range(5):
            bench.clock.advance(0.1)
            bench.worker(0)._failed("refused")
        assert error_of(sink).status == 503

    def test_nor_do_workers_of_other_models_that_come_and_go(self) -> None:
        bench = PoolBench(2)
        bench.attach(0).lose()
        _, sink = bench.submit()
        for _ in range(5):
            bench.attach(1, record("other"))
            bench.clock.advance(0.1)
            bench.clients[1].lose()
        assert error_of(sink).status == 503

    def test_workers_that_all_go_away_shorten_the_wait_of_the_queue(self) -> None:
        bench = PoolBench(1)
        client = bench.attach(granted=1)
        bench.submit()
        _, waiting = bench.submit()
        bench.clock.advance(5)
        assert waiting.outcomes == []
        client.lose()
        bench.clock.advance(0.5)
        assert error_of(waiting).code == "no_backend"

    def test_a_busy_fleet_is_503_after_the_queue_timeout(self) -> None:
        bench = PoolBench(1, queue_timeout=10)
        bench.attach(granted=1)
        bench.submit()
        _, waiting = bench.submit()
        bench.clock.advance(9.99)
        assert waiting.outcomes == []
        bench.clock.advance(0.01)
        error = error_of(waiting)
        assert (error.status, error.code) == (503, "overloaded")
        assert "retry-after" in error.headers

    def test_a_full_queue_is_429(self) -> None:
        bench = PoolBench(1, max_queue=2)
        bench.attach(granted=1)
        for _ in range(3):
            bench.submit()
        _, sink = bench.submit()
        error = error_of(sink)
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
        assert "retry-after" in error.headers
        assert bench.pool.queued == 2

    def test_a_payload_that_cannot_be_built(self) -> None:
        bench = PoolBench(1)
        bench.attach()

        def build(worker: object) -> bytes:
            raise ApiError(400, "no such thing", param="messages")

        _, sink = bench.submit(build=build)
        assert error_of(sink).param == "messages"
        assert bench.is_at_rest

    def test_a_payload_that_fits_no_packet(self) -> None:
        bench = PoolBench(1)
        bench.attach()
        _, sink = bench.submit(build=lambda worker: b"x" * 10_000)
        assert error_of(sink).status == 413
        assert bench.is_at_rest

    @pytest.mark.parametrize("gone", ["silently", "openly"])
    def test_a_connection_lost_while_the_payload_is_built(self, gone: str) -> None:
        bench = PoolBench(1)

        def build(worker: object) -> bytes:
            if gone == "silently":
                bench.clients[0].connected = False
            else:
                bench.clients[0].lose()
            return b"{}"

        first, first_sink = bench.submit(build=build)
        second, second_sink = bench.submit()
        bench.attach()
        assert (first.state, second.state) == ("queued", "queued")
        assert (first.attempts, second.attempts) == (0, 0), "neither got there"
        bench.clock.advance(0.5)
        assert error_of(first_sink).code == error_of(second_sink).code == "no_backend"
        assert bench.is_at_rest

    def test_room_that_the_client_took_for_itself(self) -> None:
        bench = PoolBench(1)
        client = bench.attach(granted=2)
        own = client.submit(b"models.list", FakeHandler())
        bench.worker(0).on_pressure(0, 2, 100)
        tickets = [bench.submit()[0] for _ in range(2)]
        bench.worker(0).on_pressure(2, 0, 0)  # both are assigned at once, but there is room for one
        assert [ticket.state for ticket in tickets] == ["submitted", "queued"]
        assert tickets[1].attempts == 0
        own.end(answer())
        bench.running()[0].end(answer())
        assert tickets[1].state is TicketState.SUBMITTED

    def test_a_bug_in_building_is_ours(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = PoolBench(1)
        bench.attach()
        _, sink = bench.submit(build=lambda worker: 1 / 0)
        assert error_of(sink).status == 500
        assert "ZeroDivisionError" in caplog.text
        assert bench.is_at_rest


class TestDeadlines:
    def test_while_queued(self) -> None:
        bench = PoolBench(1)
        bench.attach(granted=1)
        bench.submit()
        _, sink = bench.submit(deadline=bench.clock.now + 3)
        bench.clock.advance(3)
        error = error_of(sink)
        assert (error.status, error.code) == (504, "deadline_expired")
        assert error.headers["x-should-retry"] == "false"

    def test_in_flight_it_is_a_cancel(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        _, sink = bench.submit(deadline=bench.clock.now + 3)
        (operation,) = client.operations
        operation.send(DELTA)
        bench.clock.advance(3)
        assert operation.cancels == [CancelReason.DEADLINE_EXPIRED]
        operation.end(dropped(DropReason.PEER_CANCELLED))
        assert error_of(sink).code == "deadline_expired"
        assert bench.is_at_rest

    def test_the_workers_own_word_for_it(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        _, sink = bench.submit(deadline=bench.clock.now + 3)
        client.operations[0].end(dropped(DropReason.DEADLINE_EXPIRED))
        assert error_of(sink).code == "deadline_expired"
        assert bench.is_at_rest


class TestMoving:
    def test_a_worker_that_dies_before_the_first_event(self) -> None:
        bench = PoolBench(2)
        bench.attach(0)
        ticket, sink = bench.submit()
        bench.attach(1)
        bench.clients[0].lose()
        assert ticket.attempts == 2
        assert bench.pool.counters.retried == 1
        assert repr(bench.pool) == (
            "<Pool [Requests: 1 active, 0 queued | Workers: 1 down, 1 ready]>"
        )
        (operation,) = bench.running(1)
        assert operation.payload == b"for w1", "the payload is made for the new worker"
        operation.send(DELTA)
        operation.end(answer())
        assert sink.outcome.kind is OutcomeKind.ANSWERED
        assert bench.is_at_rest

    def test_it_may_be_the_same_worker_come_back(self) -> None:
        bench = PoolBench(1)
        bench.attach().lose()
        ticket, _ = bench.submit()
        bench.attach().lose()
        assert ticket.state is TicketState.QUEUED
        bench.clock.advance(0.3)
        client = bench.attach()
        assert ticket.attempts == 2
        client.operations[0].end(answer())
        assert bench.is_at_rest

    def test_if_nobody_comes_it_is_503(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        _, sink = bench.submit()
        client.lose()
        bench.clock.advance(0.5)
        assert error_of(sink).status == 503

    def test_a_second_death_is_refused(self) -> None:
        bench = PoolBench(3)
        for number in range(3):
            bench.attach(number)
        ticket, sink = bench.submit()
        for _ in range(2):
            place = ticket.place
            assert place is not None
            bench.clients[bench.pool.workers.index(place.backend)].lose()
        error = error_of(sink)
        assert (error.status, error.code) == (502, "backend_error")
        assert error.headers["x-should-retry"] == "false"
        assert bench.pool.counters.retried == 1
        assert bench.is_at_rest

    def test_after_the_first_event_it_stays(self) -> None:
        bench = PoolBench(2)
        client = bench.attach(0)
        ticket, sink = bench.submit()
        client.operations[0].send(DELTA)
        bench.attach(1)
        client.lose()
        assert error_of(sink).code == "backend_error"
        assert sink.events == [DELTA], "what was sent is not lost"
        assert ticket.attempts == 1
        assert bench.is_at_rest

    def test_diagnostics_are_no_event_in_this_sense(self) -> None:
        bench = PoolBench(2)
        client = bench.attach(0)
        ticket, _ = bench.submit()
        client.operations[0].send(events.diagnostics({}))
        bench.attach(1)
        client.lose()
        assert ticket.attempts == 2

    @pytest.mark.parametrize("reason", [DropReason.PEER_CANCELLED, DropReason.TRANSPORT_CLOSED])
    def test_a_worker_that_drops_it_unasked(self, reason: DropReason) -> None:
        bench = PoolBench(2)
        client = bench.attach(0)
        ticket, _ = bench.submit()
        client.operations[0].end(dropped(reason))
        assert ticket.state is TicketState.QUEUED, "the same connection is not asked again"
        bench.attach(1)
        assert bench.running(1)

    @pytest.mark.parametrize("code", ["scheduler_rejected", "backend_overload"])
    def test_a_full_worker_when_there_is_another(self, code: str) -> None:
        bench = PoolBench(2)
        bench.attach(0)
        ticket, _ = bench.submit()
        bench.attach(1)
        bench.running(0)[0].end(refusal(code))
        assert ticket.attempts == 2
        assert bench.running(1)

    def test_a_full_worker_when_there_is_no_other(self) -> None:
        bench = PoolBench(2)
        client = bench.attach(0)
        ticket, sink = bench.submit()
        client.operations[0].end(refusal("scheduler_rejected"))
        assert ticket.attempts == 1
        assert sink.outcome.kind is OutcomeKind.ANSWERED, "the user is told what the worker said"

    @pytest.mark.parametrize(
        "terminal",
        [
            answer(),
            refusal("backend_error"),
            refusal("invalid_body"),
            dropped(DropReason.DEADLINE_EXPIRED),
            Terminal(TerminalKind.FAILED),
        ],
    )
    def test_other_ends_are_final(self, terminal: Terminal) -> None:
        bench = PoolBench(2)
        bench.attach(0)
        bench.attach(1)
        ticket, sink = bench.submit()
        (operation,) = bench.running(0) + bench.running(1)
        operation.end(terminal)
        assert len(sink.outcomes) == 1
        assert ticket.attempts == 1

    def test_a_cancelled_request_does_not_move(self) -> None:
        bench = PoolBench(2)
        client = bench.attach(0)
        ticket, sink = bench.submit()
        bench.attach(1)
        ticket.cancel()
        client.lose()
        assert sink.outcome.kind is OutcomeKind.CANCELLED
        assert bench.running(1) == []
        assert bench.is_at_rest

    def test_those_that_move_go_before_those_that_wait(self) -> None:
        bench = PoolBench(2)
        client = bench.attach(0, granted=1)
        moving, _ = bench.submit()
        waiting, _ = bench.submit()
        client.lose()
        bench.attach(1, granted=1)
        assert (moving.state, waiting.state) == ("submitted", "queued")

    def test_one_that_waits_for_another_worker_holds_up_nobody(self) -> None:
        bench = PoolBench(2)
        client = bench.attach(0)
        moving, _ = bench.submit()
        client.operations[0].end(dropped(DropReason.PEER_CANCELLED))
        passing, _ = bench.submit()
        assert (moving.state, passing.state) == ("queued", "submitted")


class TestUnansweredCancels:
    def test_the_worker_is_degraded_and_the_event_counted(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, sink = bench.submit()
        ticket.cancel()
        client.operations[0].end(Terminal(TerminalKind.LOST, diagnostic="no answer to cancel"))
        assert sink.outcome.kind is OutcomeKind.CANCELLED
        assert bench.worker(0).state is BackendState.DEGRADED
        assert bench.pool.counters.unanswered_cancels == 1
        assert bench.is_at_rest
        bench.worker(0).on_probe(0.001)
        assert bench.pool.ready

    def test_a_connection_that_ends_has_answered(self) -> None:
        bench = PoolBench(1)
        client = bench.attach()
        ticket, _ = bench.submit()
        ticket.cancel()
        client.lose()
        assert bench.pool.counters.unanswered_cancels == 0
        assert bench.worker(0).state is BackendState.DOWN


class TestModels:
    def test_each_once_in_the_order_of_configuration(self) -> None:
        bench = PoolBench(3)
        bench.attach(1, record("b", "shared"))
        bench.attach(0, record("a", "shared"))
        assert [card["id"] for card in bench.pool.models()] == ["a", "shared", "b"]

    def test_the_models_of_a_worker_that_reconnects_stay_listed(self) -> None:
        bench = PoolBench(1)
        bench.attach().lose()
        assert [card["id"] for card in bench.pool.models()] == ["m"]
        assert not bench.pool.ready

    def test_nobody_there_nothing_listed(self) -> None:
        assert PoolBench(2).pool.models() == []
        assert repr(PoolBench(0).pool) == "<Pool [Requests: 0 active, 0 queued | Workers: none]>"


class TestSinksThatCallBack:
    def test_a_sink_may_submit_at_its_end(self) -> None:
        bench = PoolBench(1)
        bench.attach(granted=1)
        second = FakeSink()

        class Chained(FakeSink):
            def on_terminal(self, outcome: Any) -> None:
                super().on_terminal(outcome)
                bench.submit_to(second)

        first = Chained()
        bench.submit_to(first)
        bench.running()[0].end(answer())
        bench.running()[0].end(answer())
        assert (len(first.outcomes), len(second.outcomes)) == (1, 1)
        assert bench.is_at_rest

    def test_a_sink_may_cancel_another_that_was_just_assigned(self) -> None:
        bench = PoolBench(1)
        others: list[Ticket] = []

        class Canceller(FakeSink):
            def on_terminal(self, outcome: Any) -> None:
                super().on_terminal(outcome)
                for other in others:
                    other.cancel()

        def build(worker: object) -> bytes:
            raise ApiError(400, "no")

        bench.submit_to(Canceller(), build=build)
        ticket, sink = bench.submit()
        others.append(ticket)
        client = bench.attach()  # both are assigned at once; the first fails and cancels the second
        assert client.submitted == [], "it was never sent"
        assert sink.outcome.kind is OutcomeKind.CANCELLED
        assert bench.is_at_rest

    def test_a_bad_endpoint_is_told_at_once(self) -> None:
        with pytest.raises(ValueError, match="ftp"):
            Pool([WorkerSpec(endpoint="ftp://h:1")])


class TestLifecycle:
    @staticmethod
    def pool(clients: list[FakeClient]) -> Pool:
        def connect(spec: WorkerSpec, listener: Any) -> FakeClient:
            clients.append(FakeClient(listener, capabilities=record("m")))
            return clients[-1]

        return Pool([WorkerSpec(endpoint="unix:///w0", name="w0")], connect=connect)

    @staticmethod
    def request() -> PoolRequest:
        return PoolRequest(model="m", operation=CHAT, build=lambda worker: b"{}")

    async def test_start_connects_and_close_disconnects(self) -> None:
        clients: list[FakeClient] = []
        pool = self.pool(clients)
        assert not pool.ready
        await pool.start()
        await until(lambda: pool.ready)
        await pool.close()
        assert clients[0].closed
        assert not pool.ready

    async def test_a_wake_is_for_the_worker_of_that_name(self) -> None:
        clients: list[FakeClient] = []

        def connect(spec: WorkerSpec, listener: Any) -> FakeClient:
            clients.append(FakeClient(listener, refuses=True))
            return clients[-1]

        names = ("w0", "w1")
        pool = Pool([WorkerSpec(endpoint=f"unix:///{n}", name=n) for n in names], connect=connect)
        for worker in pool.workers:
            worker._refusals = Backoff(first=36_000.0, longest=36_000.0)
        await pool.start()
        await until(lambda: len(clients) == 2)
        pool.wake("w1")
        pool.wake("no such")
        await until(lambda: len(clients) == 3)
        assert clients[2].listener is pool.workers[1]
        await pool.close()

    async def test_a_closing_pool_refuses(self) -> None:
        pool = self.pool([])
        await pool.start()
        await until(lambda: pool.ready)
        await pool.close()
        sink = FakeSink()
        pool.submit(self.request(), sink)
        error = error_of(sink)
        assert (error.status, error.code) == (503, "shutting_down")

    async def test_what_is_in_flight_may_end(self) -> None:
        clients: list[FakeClient] = []
        pool = self.pool(clients)
        await pool.start()
        await until(lambda: pool.ready)
        sink = FakeSink()
        pool.submit(self.request(), sink)

        class Ending(FakeSink):
            def on_terminal(self, outcome: Any) -> None:
                super().on_terminal(outcome)
                (operation,) = clients[0].operations
                operation.end(answer())

        pool.submit(self.request(), Ending())
        # The second ends while the pool drains, and with it the first.
        asyncio.get_running_loop().call_soon(lambda: clients[0].operations[1].end(answer()))
        await pool.close(drain_timeout=5)
        assert sink.outcome.kind is OutcomeKind.ANSWERED

    async def test_the_rest_is_cancelled(self) -> None:
        clients: list[FakeClient] = []
        pool = self.pool(clients)
        await pool.start()
        await until(lambda: pool.ready)
        clients[0].granted_in_flight = 1
        running, queued = FakeSink(), FakeSink()
        pool.submit(self.request(), running)
        pool.submit(self.request(), queued)
        (operation,) = clients[0].operations

        def answering(reason: int = 1, *, hard: bool = False) -> None:
            operation.cancels.append(reason)
            operation.end(dropped(DropReason.PEER_CANCELLED))

        operation.cancel = answering  # type: ignore[method-assign]
        await pool.close(drain_timeout=0.01)
        assert operation.cancels == [CancelReason.SHUTDOWN]
        for sink in (running, queued):
            assert error_of(sink).code == "shutting_down"
        assert (pool.in_flight, pool.queued) == (0, 0)


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = PoolMachine.TestCase
