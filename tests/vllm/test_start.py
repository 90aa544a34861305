"""Settings that cannot work are one line and exit status 2; those that do, take their time."""

import re
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.vllm.worker import MODELS, TINY, TINY_FLAGS, Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("model", "flags", "reason"),
    [
        (TINY, ["--headless"], "--headless: a worker is never headless"),
        (TINY, ["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (MODELS / "absent", TINY_FLAGS, "absent"),
    ],
    ids=["contradiction", "flag", "model"],
)
def test_they_are_refused(model: Path, flags: Sequence[str], reason: str) -> None:
    with Worker(model, flags) as worker:
        assert worker.process.wait(60) == 2, worker.tail()
        assert worker.process.stdout.read() == ""
        last = worker.tail(1)
        assert last.startswith("Error: vllm engine: ")
        assert reason in last


async def test_the_admin_port_answers_while_the_model_loads() -> None:
    """Loading blocks the worker's event loop."""
    with Worker() as worker:
        await worker.wait_for_engine()
        (url,) = re.findall(r"health and metrics are on (\S+)$", worker.log.read_text(), re.M)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            for path, status in (("/livez", 200), ("/startupz", 503), ("/readyz", 503)):
                assert (await http.get(path)).status_code == status
        assert worker.ready == {}
        assert worker.stop() == 0, worker.tail()
