import asyncio
from typing import Any

import pytest

from nnrp_backend.adapter.engine import DropConnection
from nnrp_backend.adapter.sim.answers import scripted_answer
from nnrp_backend.adapter.sim.directives import Script
from nnrp_backend.adapter.sim.request import read_request
from nnrp_backend.adapter.sim.run import BURST, Run, scripted_error
from nnrp_backend.adapter.sim.steps import StepClocks
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from tests.support.waiting import turns, until


def run_of(script: Script, clocks: StepClocks | None = None, **fields: Any) -> Run:
    body = {"model": "sim", "messages": [{"role": "user", "content": "three short words"}]}
    request = read_request({**body, **fields})
    return Run(request, script, scripted_answer(script), clocks or StepClocks())


async def collect(run: Run) -> list[list[str]]:
    await run.begin()
    steps = []
    for pieces in run.steps():
        steps.append([f"{index}:{piece.text}" for index, piece in pieces])
        await run.pace()
    return steps


async def test_choices_advance_together() -> None:
    run = run_of(Script(tokens=2), n=2)
    assert await collect(run) == [["0:tok0", "1:tok0"], ["0: tok1", "1: tok1"]]
    assert repr(run) == "<Run [2 choices, 2 steps]>"


async def test_usage_counts_all_choices() -> None:
    run = run_of(Script(tokens=2, reasoning=1), n=2)
    await collect(run)
    assert run.usage() == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


async def test_usage_without_reasoning_does_not_speak_of_it() -> None:
    run = run_of(Script(tokens=1))
    await collect(run)
    assert "completion_tokens_details" not in run.usage()


async def test_no_content_is_no_step() -> None:
    assert await collect(run_of(Script())) == []


async def test_without_delay_others_still_run() -> None:
    turns_seen = 0

    async def other() -> None:
        nonlocal turns_seen
        while True:
            turns_seen += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(other())
    await collect(run_of(Script(tokens=10 * BURST)))
    task.cancel()
    assert turns_seen >= 10


async def test_runs_of_one_delay_share_their_steps() -> None:
    clocks = StepClocks()
    runs = [run_of(Script(tokens=3, delay_ms=1), clocks) for _ in range(3)]
    await asyncio.gather(*(collect(run) for run in runs))
    assert repr(clocks) == "<StepClocks [1 in use]>"
    # One step before each token and one at the end, for all three together.
    assert clocks.get(0.001).steps == 4


async def test_first_ms_comes_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await run_of(Script(tokens=1, first_ms=250)).begin()
    assert slept == [0.25]


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("delay_ms", [0, 1])
async def test_an_error_comes_after_its_tokens(after: int, delay_ms: int) -> None:
    script = Script(
        tokens=3, delay_ms=delay_ms, error=ErrorCode.BACKEND_OVERLOAD, error_after=after
    )
    run = run_of(script)
    with pytest.raises(ProfileError) as caught:
        await collect(run)
    assert caught.value.code == "backend_overload"
    assert run.steps_taken == after


async def test_an_error_after_more_tokens_than_there_are_never_comes() -> None:
    script = Script(tokens=3, error=ErrorCode.BACKEND_ERROR, error_after=4)
    assert len(await collect(run_of(script))) == 3


@pytest.mark.parametrize("after", [0, 2])
async def test_the_connection_is_dropped_after_its_tokens(after: int) -> None:
    run = run_of(Script(tokens=3, die_after=after))
    with pytest.raises(DropConnection):
        await collect(run)
    assert run.steps_taken == after


async def test_tokens_leave_before_the_connection_is_dropped() -> None:
    run = run_of(Script(tokens=3, die_after=1))
    flushed = []
    await run.begin()
    asyncio.get_running_loop().call_soon(flushed.append, "first token")
    with pytest.raises(DropConnection):
        await run.pace()
    assert flushed == ["first token"]


async def test_a_hanging_run_ends_when_cancelled() -> None:
    task = asyncio.get_running_loop().create_task(run_of(Script(hang=True)).begin())
    await turns()
    assert not task.done()
    task.cancel()
    await until(task.done)
    assert task.cancelled()


@pytest.mark.parametrize(
    ("code", "retry_after_ms"),
    [(ErrorCode.BACKEND_OVERLOAD, 1000), (ErrorCode.RATE_LIMIT_EXCEEDED, 1000),
     (ErrorCode.BACKEND_ERROR, None), (ErrorCode.INVALID_API_KEY, None)],
)  # fmt: skip
def test_what_a_retry_can_help_says_when(code: ErrorCode, retry_after_ms: int | None) -> None:
    error = scripted_error(code)
    assert (error.code, error.retry_after_ms) == (code, retry_after_ms)
