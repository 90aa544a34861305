"""The pool with the real client, and servers on unix sockets."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.pool import OutcomeKind, Pool, PoolRequest, Ticket, TicketState, WorkerSpec
from nnrp_backend.client import NnrpClient
from nnrp_backend.profile import events
from nnrp_backend.profile.envelope import encode_envelope
from nnrp_backend.profile.operations import CHAT
from nnrp_backend.protocol.constants import CancelReason, DropReason
from tests.support.fake_worker import FakeSink, answer, record
from tests.support.nnrp_worker import NnrpWorker
from tests.support.waiting import until

DELTA = events.text_delta(0, "hi")


def error_of(sink: FakeSink) -> ApiError:
    assert sink.outcome.kind is OutcomeKind.FAILED
    assert sink.outcome.error is not None
    return sink.outcome.error


def urls(tmp_path: Path) -> list[str]:
    return [f"unix://{tmp_path}/w{number}.sock" for number in range(2)]


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[list[NnrpWorker]]:
    workers = [await NnrpWorker().listen(url) for url in urls(tmp_path)]
    yield workers
    for worker in workers:
        await worker.close()


@pytest.fixture
async def pool(workers: list[NnrpWorker], tmp_path: Path) -> AsyncIterator[Pool]:
    def connect(spec: WorkerSpec, listener: Any) -> NnrpClient:
        return NnrpClient(spec.endpoint, listener=listener, cancel_grace=0.1)

    pool = Pool([WorkerSpec(endpoint=url) for url in urls(tmp_path)], connect=connect)
    await pool.start()
    await until(lambda: all(worker.is_usable() for worker in pool.workers))
    yield pool
    await pool.close()


def submit(pool: Pool) -> tuple[Ticket, FakeSink]:
    sink = FakeSink()
    payload = encode_envelope(CHAT, b'{"model":"m","messages":[{}]}')
    request = PoolRequest(model="m", operation=CHAT, build=lambda worker: payload)
    return pool.submit(request, sink), sink


async def arrived(workers: list[NnrpWorker], count: int = 1) -> list[Any]:
    await until(lambda: sum(len(worker.operations) for worker in workers) >= count)
    return [operation for worker in workers for operation in worker.operations]


async def test_events_and_an_answer(workers: list[NnrpWorker], pool: Pool) -> None:
    ticket, sink = submit(pool)
    (operation,) = await arrived(workers)
    operation.send_event(DELTA)
    operation.send_event(DELTA)
    operation.complete(answer().body)
    await until(lambda: sink.outcomes)
    assert sink.events == [DELTA, DELTA]
    assert sink.outcome.terminal is not None
    assert sink.outcome.terminal.body == answer().body
    assert ticket.worker is not None
    assert ticket.worker.ours
    assert ticket.worker.final_chunks
    assert pool.in_flight == 0


async def test_a_killed_connection_before_the_first_event(
    workers: list[NnrpWorker], pool: Pool
) -> None:
    ticket, sink = submit(pool)
    (first,) = await arrived(workers)
    first.abort_connection()
    second = next(op for op in await arrived(workers, 2) if op is not first)
    assert ticket.attempts == 2
    second.complete(answer().body)
    await until(lambda: sink.outcomes)
    assert sink.outcome.kind is OutcomeKind.ANSWERED
    await until(lambda: all(worker.is_usable() for worker in pool.workers))
    assert sorted(worker.connects for worker in pool.workers) == [1, 2]
    assert pool.counters.unanswered_cancels == 0


async def test_a_killed_connection_mid_stream_keeps_every_token(
    workers: list[NnrpWorker], pool: Pool
) -> None:
    ticket, sink = submit(pool)
    (operation,) = await arrived(workers)
    operation.send_event(DELTA)
    await until(lambda: ticket.state is TicketState.STREAMING)
    operation.abort_connection()
    await until(lambda: sink.outcomes)
    assert sink.events == [DELTA]
    assert error_of(sink).code == "backend_error"
    assert pool.counters.retried == 0


async def test_cancel_is_confirmed(workers: list[NnrpWorker], pool: Pool) -> None:
    ticket, sink = submit(pool)
    await arrived(workers)
    ticket.cancel()
    await until(lambda: sink.outcomes)
    assert sink.outcome.kind is OutcomeKind.CANCELLED
    assert sink.outcome.terminal is not None
    assert sink.outcome.terminal.drop_reason == DropReason.PEER_CANCELLED
    cancelled = [reason for worker in workers for reason in worker.cancelled]
    assert cancelled == [CancelReason.USER_CANCELLED]
    assert pool.in_flight == 0


async def test_a_worker_that_does_not_answer_a_cancel(
    workers: list[NnrpWorker], pool: Pool
) -> None:
    ticket, sink = submit(pool)
    await arrived(workers)
    for worker in workers:
        worker.stubborn = True
    ticket.cancel()
    await until(lambda: sink.outcomes)
    assert sink.outcome.kind is OutcomeKind.CANCELLED
    assert pool.counters.unanswered_cancels == 1
    assert sorted(worker.state for worker in pool.workers) == ["degraded", "ready"]
    assert pool.in_flight == 0


async def test_a_draining_worker_gets_no_more(workers: list[NnrpWorker], pool: Pool) -> None:
    _, sink = submit(pool)
    (operation,) = await arrived(workers)
    busy = next(worker for worker in workers if worker.operations)
    closing = asyncio.ensure_future(busy.close(drain_timeout=5))
    await until(lambda: any(worker.state == "draining" for worker in pool.workers))
    for _ in range(3):
        submit(pool)
    await arrived(workers, 4)
    assert len(busy.operations) == 1
    operation.complete(answer().body)
    await until(lambda: sink.outcomes)
    assert sink.outcome.kind is OutcomeKind.ANSWERED
    await closing


async def test_a_restarted_worker_is_found_again(
    workers: list[NnrpWorker], pool: Pool, tmp_path: Path
) -> None:
    for worker in workers:
        await worker.close()
    await until(lambda: not pool.ready)
    restarted = await NnrpWorker(record("m", "new")).listen(urls(tmp_path)[0])
    workers.append(restarted)
    await until(lambda: pool.ready)
    assert [card["id"] for card in pool.models()] == ["m", "new"]
    _, sink = submit(pool)
    (operation,) = await arrived([restarted])
    operation.complete(answer().body)
    await until(lambda: sink.outcomes)


async def test_an_absent_worker_is_503_in_less_than_a_second(tmp_path: Path) -> None:
    pool = Pool([WorkerSpec(endpoint=f"unix://{tmp_path}/nobody.sock")])
    await pool.start()
    started = asyncio.get_running_loop().time()
    _, sink = submit(pool)
    await until(lambda: sink.outcomes)
    assert asyncio.get_running_loop().time() - started < 1
    assert error_of(sink).headers["retry-after"] == "1"
    await pool.close()


async def test_closing_the_pool_cancels_at_the_worker(
    workers: list[NnrpWorker], pool: Pool
) -> None:
    _, sink = submit(pool)
    await arrived(workers)
    await pool.close()
    assert error_of(sink).code == "shutting_down"
    assert [reason for worker in workers for reason in worker.cancelled] == [CancelReason.SHUTDOWN]


async def test_a_slow_reader_is_granted_what_its_ticket_grants(
    workers: list[NnrpWorker], pool: Pool
) -> None:
    ticket, sink = submit(pool)
    (operation,) = await arrived(workers)
    operation.set_credit(2)
    operation.send_event(DELTA)
    operation.send_event(DELTA)
    assert not operation.ready
    ticket.grant(4)
    await until(lambda: operation.ready)
    operation.complete(answer().body)
    await until(lambda: sink.outcomes)


async def test_many_requests_and_a_killed_worker(workers: list[NnrpWorker], pool: Pool) -> None:
    asked = [submit(pool) for _ in range(200)]
    operations = await arrived(workers, 200)
    for operation in operations[::2]:
        operation.send_event(DELTA)
    await until(lambda: sum(t.state is TicketState.STREAMING for t, _ in asked) == 100)
    dying = workers[0]
    dying.operations[0].abort_connection()
    await until(lambda: sum(len(sink.outcomes) for _, sink in asked) == 50)
    await until(lambda: sum(ticket.attempts == 2 for ticket, _ in asked) == 50)
    for operation in await arrived(workers, 250):
        operation.complete(answer().body)
    await until(lambda: pool.in_flight == 0)
    kinds = [sink.outcome.kind for _, sink in asked]
    assert kinds.count(OutcomeKind.FAILED) == 50, "those that had begun at the dead worker"
    assert kinds.count(OutcomeKind.ANSWERED) == 150
    assert pool.counters.retried == 50
