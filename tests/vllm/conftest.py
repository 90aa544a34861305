"""Workers with real models, started once for all tests that do not end them."""

from collections.abc import AsyncIterator, Iterator

import pytest

from nnrp_backend.client import NnrpClient
from tests.vllm.worker import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """Return a worker with the tiny random model."""
    with Worker() as worker:
        yield worker.wait_ready()
        assert worker.stop() == 0, worker.tail()
        assert worker.left_behind() == []


@pytest.fixture
async def client(worker: Worker) -> AsyncIterator[NnrpClient]:
    async with NnrpClient(worker.url) as client:
        yield client
