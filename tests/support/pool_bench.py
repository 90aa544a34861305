"""A real pool whose workers, clock and requests are in the test's hands."""

from __future__ import annotations

from typing import Any

from gateway.pool import Backend, Pool, PoolLimits, PoolRequest, Ticket, Worker, WorkerSpec
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.operations import CHAT
from tests.support.fake_worker import FakeClient, FakeClock, FakeOperation, FakeSink, record

UNIX_TIME = 2_000_000_000.0


class PoolBench:
    """`pool` with `workers` unattached workers called w0, w1, ..."""

    def __init__(self, workers: int = 2, **limits: Any) -> None:
        self.clock = FakeClock()
        self.pool = Pool(
            [WorkerSpec(endpoint=f"unix:///w{n}", name=f"w{n}") for n in range(workers)],
            limits=PoolLimits(**limits),
            connect=lambda spec, listener: FakeClient(listener),
            clock=self.clock,
            unix_time=lambda: UNIX_TIME + self.clock.now - 1000.0,
        )
        self.clients: dict[int, FakeClient] = {}

    def worker(self, number: int) -> Backend:
        return self.pool.workers[number]

    def attach(
        self,
        number: int = 0,
        capabilities: CapabilityRecord | None = None,
        *,
        granted: int = 4,
        ours: bool = True,
    ) -> FakeClient:
        """Connect a worker that serves the model `m`, or what `capabilities` says."""
        capabilities = capabilities or record("m")
        client = FakeClient(self.worker(number), granted=granted, ours=ours)
        client.connected = True
        self.clients[number] = client
        self.worker(number).attach(client, capabilities)
        return client

    def submit(self, model: str = "m", **fields: Any) -> tuple[Ticket, FakeSink]:
        sink = FakeSink()
        return self.submit_to(sink, model, **fields), sink

    def submit_to(self, sink: Any, model: str = "m", **fields: Any) -> Ticket:
        fields.setdefault("operation", CHAT)
        fields.setdefault("build", _build)
        return self.pool.submit(PoolRequest(model=model, **fields), sink)

    def running(self, number: int = 0) -> list[FakeOperation]:
        """What a worker has in flight."""
        return list(self.clients[number].operations)

    @property
    def is_at_rest(self) -> bool:
        """Nothing in flight, nothing queued, no timer left, and all counters add up."""
        counters = self.pool.counters
        return (
            self.pool.in_flight == 0
            and self.pool.queued == 0
            and all(worker.in_flight == 0 for worker in self.pool.workers)
            and self.clock.pending == 0
            and counters.submitted == counters.answered + counters.failed + counters.cancelled
        )


def _build(worker: Worker) -> bytes:
    return b"for " + worker.name.encode()
