"""The engine's death ends the worker, and no death of the worker leaves an engine behind."""

import signal

import pytest

from nnrp_backend.client import NnrpClient
from nnrp_backend.profile.errors import ProfileError
from tests.vllm.answers import chat, finished
from tests.vllm.worker import STOP_SECONDS, Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

LONG = {"stream": True, "max_tokens": 2000, "ignore_eos": True}


async def test_a_killed_engine_is_a_typed_error_and_ends_the_worker() -> None:
    with Worker() as worker:
        worker.wait_ready()
        (engine,) = worker.engines()
        async with NnrpClient(worker.url) as client, client.stream(chat(**LONG)) as stream:
            await anext(stream)
            engine.kill()
            async for _ in stream:
                pass
        with pytest.raises(ProfileError) as failed:
            finished(stream.terminal.body)
        assert failed.value.code == "backend_error"
        assert "EngineCore" not in failed.value.message
        assert worker.process.wait(STOP_SECONDS) == 1
        assert worker.left_behind() == []


async def test_a_killed_worker_takes_its_engine_along() -> None:
    with Worker() as worker:
        worker.wait_ready()
        assert len(worker.engines()) == 1
        async with NnrpClient(worker.url) as client, client.stream(chat(**LONG)) as stream:
            await anext(stream)
            assert worker.stop(signal.SIGKILL) == -signal.SIGKILL
        assert worker.left_behind() == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)], ids=str
)
async def test_a_worker_that_ends_while_its_model_loads_leaves_nothing(
    number: signal.Signals, status: int
) -> None:
    with Worker() as worker:
        await worker.wait_for_engine()
        assert worker.stop(number) == status
        assert worker.process.stdout.read() == "", "it got ready all the same"
        assert worker.left_behind() == []
