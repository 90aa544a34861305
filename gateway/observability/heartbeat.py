"""The event loop's heartbeat: how late it is, and whether it still beats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.observability.histogram import Histogram

__all__ = ["Heartbeat"]


class Heartbeat:
    """Beat in the event loop, and let another thread ask when it last did.

    Args:
        delay: observes how many seconds late each beat was: what every token waits in the loop.
        interval: seconds between beats.
        clock: monotonic seconds, the same in every thread.
    """

    def __init__(
        self,
        delay: Histogram,
        *,
        interval: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delay = delay
        self._interval = interval
        self._clock = clock
        self._last = clock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to beat in the running loop."""
        self._last = self._clock()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._beat)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def silence(self) -> float:
        """Seconds since the last beat. May be read from any thread."""
        return self._clock() - self._last

    def _beat(self) -> None:
        now = self._clock()
        self._delay.observe(max(0.0, now - self._last - self._interval))
        self._last = now
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._beat)
