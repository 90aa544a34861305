"""Settings that cannot work are one line and exit status 2."""

from collections.abc import Sequence
from pathlib import Path

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
