"""Every way for a request to end early reaches the engine within a second."""

import asyncio
import time

import pytest

from nnrp_backend.client import NnrpClient, TerminalKind
from nnrp_backend.profile.envelope import NnrpOptions
from tests.support.waiting import until
from tests.vllm.answers import chat
from tests.vllm.worker import Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

LONG = {"max_tokens": 2000, "ignore_eos": True}
PEER_CANCELLED, DEADLINE_EXPIRED = 3, 1


async def idle(worker: Worker) -> None:
    await until(lambda: worker.running() == 0, timeout=1.0)


async def test_a_cancelled_stream(worker: Worker, client: NnrpClient) -> None:
    async with client.stream(chat(stream=True, **LONG)) as stream:
        await anext(stream)
        await until(lambda: worker.running() == 1)
        stream.operation.cancel()
        async for _ in stream:
            pass
        assert stream.terminal.kind is TerminalKind.DROPPED
        assert stream.terminal.drop_reason == PEER_CANCELLED
    await idle(worker)


async def test_a_cancelled_request_that_is_not_streamed(worker: Worker, client: NnrpClient) -> None:
    task = asyncio.create_task(client.request(chat(**LONG)))
    await until(lambda: worker.running() == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(worker)


async def test_a_request_stalled_for_want_of_credit(worker: Worker, client: NnrpClient) -> None:
    payload = chat(stream=True, nnrp=NnrpOptions(credit=1), **LONG)
    async with client.stream(payload) as stream:
        await anext(stream)
        await until(lambda: worker.running() == 1)
    await idle(worker)


async def test_a_lost_connection(worker: Worker) -> None:
    client = NnrpClient(worker.url)
    await client.connect()
    async with client.stream(chat(stream=True, **LONG)) as stream:
        await anext(stream)
        await until(lambda: worker.running() == 1)
        await client.close()
    await idle(worker)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline(worker: Worker, client: NnrpClient, stream: bool) -> None:
    payload = chat(stream=stream, nnrp=NnrpOptions(deadline_ms=150), **LONG)
    started = time.monotonic()
    terminal = await client.request(payload)
    assert (terminal.kind, terminal.drop_reason) == (TerminalKind.DROPPED, DEADLINE_EXPIRED)
    assert time.monotonic() - started >= 0.15
    await idle(worker)
