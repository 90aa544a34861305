"""The heartbeat, on a clock that the test moves."""

from __future__ import annotations

from gateway.observability.heartbeat import Heartbeat
from gateway.observability.histogram import Histogram
from tests.support.waiting import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_silence_grows_until_the_next_beat() -> None:
    clock = Clock()
    heartbeat = Heartbeat(Histogram((1,)), interval=0.01, clock=clock)
    heartbeat.start()
    clock.now += 5
    assert heartbeat.silence == 5
    await until(lambda: heartbeat.silence == 0)
    heartbeat.stop()


async def test_a_late_beat_is_observed_as_the_delay_of_the_loop() -> None:
    clock = Clock()
    delay = Histogram((1, 10))
    heartbeat = Heartbeat(delay, interval=0.01, clock=clock)
    heartbeat.start()
    clock.now += 5.01
    await until(lambda: heartbeat.silence == 0)
    heartbeat.stop()
    assert delay.buckets()[0][1] < delay.buckets()[1][1], "5 s late is between 1 and 10"
    assert abs(delay.sum - 5) < 1e-6


async def test_a_stopped_heart_beats_no_more() -> None:
    clock = Clock()
    delay = Histogram((1,))
    heartbeat = Heartbeat(delay, interval=0.001, clock=clock)
    heartbeat.start()
    heartbeat.stop()
    heartbeat.stop()
    other = Heartbeat(Histogram((1,)), interval=0.002, clock=clock)
    other.start()
    clock.now += 1
    await until(lambda: other.silence == 0)
    other.stop()
    assert heartbeat.silence == 1
    assert delay.sum == 0
