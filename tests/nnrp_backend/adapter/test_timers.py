import asyncio
import time
from collections.abc import Callable

import pytest

from nnrp_backend.adapter.timers import MAX_MS, Deadline, StallTimer, to_seconds
from tests.support.waiting import turns


class FakeLoop:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 50.0
        self._timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> "FakeTimer":
        timer = FakeTimer(self.now + delay, callback)
        self._timers.append(timer)
        return timer

    @property
    def due(self) -> list[float]:
        """When the timers that were not cancelled will fire."""
        return [timer.when for timer in self._timers if not timer.cancelled]

    def advance(self, seconds: float) -> None:
        """Move on, and fire what becomes due on the way."""
        until = self.now + seconds
        while due := [t for t in self._timers if t.when <= until and not t.cancelled]:
            timer = min(due, key=lambda timer: timer.when)
            self._timers.remove(timer)
            self.now = timer.when
            timer.callback()
        self.now = until


class FakeTimer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def fired() -> list[str]:
    return []


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)


@pytest.fixture
def deadline(loop: FakeLoop, fired: list[str], clocks: None) -> Deadline:
    return Deadline(loop, lambda: fired.append("expired"))  # type: ignore[arg-type]


def test_a_duration_may_be_any_whole_number() -> None:
    assert to_seconds(0) == 0
    assert to_seconds(1500) == 1.5
    assert to_seconds(10**400) == MAX_MS / 1000


def test_without_a_deadline_nothing_expires(deadline: Deadline, loop: FakeLoop) -> None:
    assert deadline.left is None
    assert loop.due == []


def test_an_absolute_deadline(deadline: Deadline, loop: FakeLoop, fired: list[str]) -> None:
    deadline.set_unix_ms(1_700_000_002_500)
    assert deadline.left == pytest.approx(2.5)
    loop.advance(2.4)
    assert fired == []
    loop.advance(0.2)
    assert fired == ["expired"]


def test_a_duration_counts_from_the_arrival(deadline: Deadline, loop: FakeLoop) -> None:
    deadline.set_left(2000, since=49.5)
    assert deadline.left == pytest.approx(1.5)
    assert loop.due == [pytest.approx(51.5)]


def test_an_absolute_deadline_may_fill_its_field(deadline: Deadline, loop: FakeLoop) -> None:
    deadline.set_unix_ms(2**64 - 1)
    assert loop.due == [pytest.approx(50 + (2**64 - 1) / 1000 - 1.7e9)]


@pytest.mark.parametrize(
    ("unix_ms", "milliseconds"), [(1_700_000_001_000, 3000), (1_700_000_003_000, 1000)]
)
def test_the_earlier_one_counts(
    deadline: Deadline, loop: FakeLoop, unix_ms: int, milliseconds: int
) -> None:
    deadline.set_unix_ms(unix_ms)
    deadline.set_left(milliseconds, since=50.0)
    assert loop.due == [pytest.approx(51.0)]


def test_a_new_absolute_deadline_replaces_the_old_one_only(
    deadline: Deadline, loop: FakeLoop
) -> None:
    deadline.set_left(3000, since=50.0)
    deadline.set_unix_ms(1_700_000_001_000)
    deadline.set_unix_ms(1_700_000_009_000)
    assert loop.due == [pytest.approx(53.0)]


def test_a_deadline_in_the_past_expires_at_once(
    deadline: Deadline, loop: FakeLoop, fired: list[str]
) -> None:
    deadline.set_unix_ms(1)
    assert deadline.left is not None
    assert deadline.left < 0
    loop.advance(0)
    assert fired == ["expired"]


def test_a_cancelled_deadline_never_expires(
    deadline: Deadline, loop: FakeLoop, fired: list[str]
) -> None:
    deadline.set_left(1000, since=50.0)
    deadline.cancel()
    deadline.cancel()
    loop.advance(10)
    assert fired == []


async def test_a_deadline_on_a_real_loop() -> None:
    expired = asyncio.Event()
    deadline = Deadline(asyncio.get_running_loop(), expired.set)
    deadline.set_left(0, since=time.monotonic())
    await asyncio.wait_for(expired.wait(), 5)


@pytest.fixture
def stall(loop: FakeLoop, fired: list[str]) -> StallTimer:
    return StallTimer(loop, 2.0, lambda: fired.append("stalled"))  # type: ignore[arg-type]


def test_silence_stalls(stall: StallTimer, loop: FakeLoop, fired: list[str]) -> None:
    loop.advance(1.9)
    assert fired == []
    loop.advance(0.2)
    assert fired == ["stalled"]
    assert loop.due == []


def test_beats_keep_it_from_stalling(stall: StallTimer, loop: FakeLoop, fired: list[str]) -> None:
    for _ in range(10):
        loop.advance(1.5)
        stall.beat()
    assert fired == []
    loop.advance(1.9)
    assert fired == []
    loop.advance(0.2)
    assert fired == ["stalled"]


def test_a_pause_does_not_count(stall: StallTimer, loop: FakeLoop, fired: list[str]) -> None:
    loop.advance(1.0)
    stall.pause()
    loop.advance(100.0)
    stall.resume()
    loop.advance(1.9)
    assert fired == []
    loop.advance(0.2)
    assert fired == ["stalled"]


def test_a_cancelled_timer_never_fires(stall: StallTimer, loop: FakeLoop, fired: list[str]) -> None:
    stall.cancel()
    loop.advance(100.0)
    assert fired == []


async def test_a_stall_on_a_real_loop() -> None:
    stalled = asyncio.Event()
    timer = StallTimer(asyncio.get_running_loop(), 0.001, stalled.set)
    await asyncio.wait_for(stalled.wait(), 5)
    await turns()
    timer.cancel()
