"""The pool in front of a worker of the published runtime, which knows nothing of this project."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.pool import OutcomeKind, Pool, PoolRequest, Ticket, WorkerSpec
from nnrp_backend.profile.operations import CHAT
from tests.support.fake_worker import FakeSink
from tests.support.native import native_server
from tests.support.waiting import until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/native.sock"


@pytest.fixture
async def pool(url: str) -> AsyncIterator[Pool]:
    pool = Pool([WorkerSpec(endpoint=url, name="native")])
    await pool.start()
    yield pool
    await pool.close()


def submit(pool: Pool, **orders: Any) -> tuple[Ticket, FakeSink]:
    sink = FakeSink()
    payload = json.dumps(orders).encode()
    request = PoolRequest(model="any", operation=CHAT, build=lambda worker: payload)
    return pool.submit(request, sink), sink


async def test_streams_cancels_and_a_crash(url: str, pool: Pool) -> None:
    async with native_server(url, max_in_flight=4, credit=4) as peer:
        await until(lambda: pool.ready, timeout=20)
        (worker,) = pool.workers
        assert worker.worker is not None
        assert not worker.worker.ours
        assert worker.client is not None
        assert worker.client.granted_in_flight == 4

        # It grants four; the pool keeps to that.
        asked = [submit(pool, n=3) for _ in range(8)]
        assert (pool.in_flight, pool.queued) == (4, 4)
        await until(lambda: all(sink.outcomes for _, sink in asked), timeout=20)
        for _, sink in asked:
            assert sink.outcome.kind is OutcomeKind.ANSWERED
            assert [json.loads(event)["i"] for event in sink.events] == [0, 1, 2]

        ticket, sink = submit(pool, hold=True)
        await peer.event("submit", body='{"hold": true}')
        ticket.cancel()
        await until(lambda: sink.outcomes)
        assert sink.outcome.kind is OutcomeKind.CANCELLED
        assert pool.counters.unanswered_cancels == 0

        ticket, sink = submit(pool, crash=True)
        await until(lambda: sink.outcomes, timeout=20)
        assert sink.outcome.error is not None
        assert sink.outcome.error.status == 503
        assert ticket.attempts == 1
    assert (pool.in_flight, pool.queued) == (0, 0)
