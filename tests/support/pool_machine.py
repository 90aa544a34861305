"""A pool under any order of what callers, workers and time may do."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.pool import Ticket, TicketState
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.protocol.constants import DropReason
from tests.support.fake_worker import (
    LOST,
    FakeOperation,
    FakeSink,
    answer,
    dropped,
    record,
    refusal,
)
from tests.support.pool_bench import PoolBench

DELTA = events.text_delta(0, "hi")


class PoolMachine(RuleBasedStateMachine):
    """Any order of what callers, workers and time may do."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = PoolBench(3, max_in_flight=5, max_queue=4, queue_timeout=20, patience=0.5)
        self.requests: list[tuple[Ticket, FakeSink]] = []

    def operations(self) -> list[FakeOperation]:
        return [op for client in self.bench.clients.values() for op in client.operations]

    @rule(model=st.sampled_from("mmmx"), deadline=st.sampled_from([None, 0.3, 15]))
    def submit(self, model: str, deadline: float | None) -> None:
        due = None if deadline is None else self.bench.clock.now + deadline
        self.requests.append(self.bench.submit(model, deadline=due))

    @rule(number=st.integers(0, 2), granted=st.integers(0, 3))
    def connect(self, number: int, granted: int) -> None:
        if self.bench.worker(number).client is None:
            self.bench.attach(number, record("m", "x") if number else record("m"), granted=granted)

    @rule(number=st.integers(0, 2))
    def lose(self, number: int) -> None:
        if self.bench.worker(number).client is not None:
            self.bench.clients[number].lose()

    @rule(
        number=st.integers(0, 2), what=st.sampled_from(["drain", "miss", "probe", "full", "room"])
    )
    def report(self, number: int, what: str) -> None:
        worker = self.bench.worker(number)
        if worker.client is None:
            return
        match what:
            case "drain":
                worker.on_drain()
            case "miss":
                worker.on_probe(None)
            case "probe":
                worker.on_probe(0.001)
            case "full":
                worker.on_pressure(0, 2, 300)
            case "room":
                worker.on_pressure(2, 0, 0)

    @precondition(lambda self: self.operations())
    @rule(data=st.data(), diagnostics=st.booleans())
    def event(self, data: st.DataObject, diagnostics: bool) -> None:
        operation = data.draw(st.sampled_from(self.operations()))
        operation.send(events.diagnostics({}) if diagnostics else DELTA)

    @precondition(lambda self: self.operations())
    @rule(
        data=st.data(),
        terminal=st.sampled_from(
            [
                answer(),
                refusal("backend_overload"),
                refusal("backend_error"),
                dropped(DropReason.PEER_CANCELLED),
                dropped(DropReason.DEADLINE_EXPIRED),
                Terminal(TerminalKind.FAILED),
                LOST,
            ]
        ),
    )
    def end(self, data: st.DataObject, terminal: Terminal) -> None:
        data.draw(st.sampled_from(self.operations())).end(terminal)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.requests))[0].cancel()

    @rule(seconds=st.sampled_from([0.1, 0.5, 5, 25]))
    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    @invariant()
    def counts_are_right(self) -> None:
        pool = self.bench.pool
        running = self.operations()
        assert pool.in_flight == len(running) == sum(worker.in_flight for worker in pool.workers)
        assert pool.in_flight <= 5
        assert pool.queued <= 4 + pool.counters.retried  # the moved do not lose their place
        for client in self.bench.clients.values():
            assert len(client.operations) <= client.granted_in_flight

    @invariant()
    def each_request_ends_at_most_once(self) -> None:
        for ticket, sink in self.requests:
            assert len(sink.outcomes) == (ticket.state is TicketState.DONE)
            assert ticket.attempts <= 2

    @invariant()
    def nobody_waits_beside_a_free_worker(self) -> None:
        pool = self.bench.pool
        if pool.in_flight == 5:
            return
        for ticket, _ in self.requests:
            if ticket.state is TicketState.QUEUED:
                assert not any(
                    worker.is_usable()
                    and worker.has_room()
                    and worker.serves(*ticket.lane)
                    and ticket.avoid != (worker, worker.epoch)
                    for worker in pool.workers
                )

    def teardown(self) -> None:
        for operation in self.operations():
            operation.end(answer())
        for number in tuple(self.bench.clients):
            self.lose(number)
        self.bench.clock.advance(100)
        assert all(len(sink.outcomes) == 1 for _, sink in self.requests)
        assert self.bench.is_at_rest
