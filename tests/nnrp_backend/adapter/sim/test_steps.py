import asyncio
import gc
from collections.abc import Callable

import pytest

from nnrp_backend.adapter.sim.steps import StepClock, StepClocks
from tests.support.waiting import turns


class FakeLoop:
    """Time that moves when told to, in front of the running loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.create_future = asyncio.get_running_loop().create_future

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self.call_at(self.now, callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> object:
        self.due.append((when, callback))
        return object()

    def run_next(self, *, late: float = 0.0) -> float:
        """Run the one callback that is due next; return when that was planned to be."""
        ((when, callback),) = self.due
        self.due.clear()
        self.now = max(self.now, when) + late
        callback()
        return when


@pytest.fixture
async def loop() -> FakeLoop:
    return FakeLoop()


def make_clock(loop: FakeLoop) -> StepClock:
    return StepClock(0.02, loop)  # type: ignore[arg-type]


async def test_all_waiters_end_in_the_same_step(loop: FakeLoop) -> None:
    clock = make_clock(loop)
    waiters = [clock.step() for _ in range(3)]
    assert not any(waiter.done() for waiter in waiters)
    loop.run_next()
    assert all(waiter.done() for waiter in waiters)
    assert clock.steps == 1


async def test_an_idle_clock_steps_at_once_and_then_at_its_interval(loop: FakeLoop) -> None:
    clock = make_clock(loop)
    times = []
    for _ in range(3):
        clock.step()
        times.append(loop.run_next())
    assert times == pytest.approx([100.0, 100.02, 100.04])


async def test_who_joins_waits_for_the_next_step(loop: FakeLoop) -> None:
    clock = make_clock(loop)
    clock.step()
    loop.run_next()
    loop.now += 0.005
    joined = clock.step()
    assert loop.run_next() == pytest.approx(100.02)
    assert joined.done()


async def test_a_late_step_is_not_caught_up_with(loop: FakeLoop) -> None:
    clock = make_clock(loop)
    clock.step()
    loop.run_next()
    clock.step()
    loop.run_next(late=0.1)
    clock.step()
    assert loop.run_next() == pytest.approx(100.12)


async def test_a_clock_without_waiters_stops_and_starts_again(loop: FakeLoop) -> None:
    clock = make_clock(loop)
    clock.step()
    loop.run_next()
    loop.run_next()
    assert not loop.due
    assert repr(clock) == "<StepClock 20 ms [idle, 1 steps]>"
    loop.now = 200.0
    clock.step()
    assert repr(clock) == "<StepClock 20 ms [1 waiting, 1 steps]>"
    assert loop.run_next() == 200.0


async def test_a_cancelled_waiter_takes_nobody_along(loop: FakeLoop) -> None:
    clock = make_clock(loop)
    leaving, staying = clock.step(), clock.step()
    leaving.cancel()
    loop.run_next()
    assert leaving.cancelled()
    assert staying.result() is None


async def test_on_a_real_loop_waiters_wake_in_one_turn() -> None:
    clock = StepClock(0.001, asyncio.get_running_loop())
    woken: list[int] = []

    async def stream() -> None:
        for _ in range(5):
            await clock.step()
            woken.append(clock.steps)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stream())
    assert woken == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]


async def test_streams_of_one_delay_share_a_clock() -> None:
    clocks = StepClocks()
    assert clocks.get(0.02) is clocks.get(0.02)
    first, second = clocks.get(0.02), clocks.get(0.03)
    assert first is not second
    assert repr(clocks) == "<StepClocks [2 in use]>"


async def test_a_clock_that_nobody_uses_is_forgotten() -> None:
    clocks = StepClocks()
    clock = clocks.get(0.0)
    await clock.step()
    await turns()
    del clock
    gc.collect()
    assert repr(clocks) == "<StepClocks [0 in use]>"
