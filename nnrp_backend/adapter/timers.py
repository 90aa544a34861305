"""The two clocks of an operation: its total deadline, and the engine's longest silence.

They are different things (profile section 9): the deadline bounds the whole operation and expires
whatever the engine does; the stall bound only asks that the engine goes on.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

MAX_MS: Final = 1000 * 86_400 * 366 * 100
"""A century. What a client sets past it is no bound, and must not be past what a float can hold."""


def to_seconds(milliseconds: int) -> float:
    """Convert a duration that a client names, which may be any whole number."""
    return min(milliseconds, MAX_MS) / 1000


class Deadline:
    """Call `expired` at the earliest of the instants that were set.

    The wire names an absolute instant of Unix time, the envelope a duration from the arrival. Each
    replaces only itself; the earlier one counts.
    """

    __slots__ = ("_absolute", "_expired", "_handle", "_loop", "_relative")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._absolute: float | None = None
        self._relative: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set_unix_ms(self, unix_ms: int) -> None:
        """Set the wire's instant, in milliseconds of Unix time."""
        # Converted once: a wall clock that is set later does not move the deadline.
        self._absolute = time.monotonic() + unix_ms / 1000 - time.time()
        self._arm()

    def set_left(self, milliseconds: int, since: float) -> None:
        """Set the envelope's duration, counted from `since` on the monotonic clock."""
        self._relative = since + to_seconds(milliseconds)
        self._arm()

    @property
    def left(self) -> float | None:
        """Seconds until it expires, negative when it has; None when nothing was set."""
        instants = [at for at in (self._absolute, self._relative) if at is not None]
        return min(instants) - time.monotonic() if instants else None

    def cancel(self) -> None:
        """Never call `expired` any more, and let go of it: its owner owns this timer."""
        self._disarm()
        self._expired = _nothing

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        self._disarm()
        left = self.left
        if left is not None:
            self._handle = self._loop.call_later(max(0.0, left), self._expired)


class StallTimer:
    """Call `stalled` when there is no `beat` for `seconds` while it is not paused.

    A beat costs one assignment: the timer that is already running looks at the last beat when it
    fires, and waits for what is left.
    """

    __slots__ = ("_handle", "_last", "_loop", "_paused", "_stalled", "seconds")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, stalled: Callable[[], None]
    ) -> None:
        self.seconds = seconds
        self._loop = loop
        self._stalled = stalled
        self._paused = False
        self._last = loop.time()
        self._handle = loop.call_later(seconds, self._look)

    def beat(self) -> None:
        """Take note that the engine produced something."""
        self._last = self._loop.time()

    def pause(self) -> None:
        """Stop counting: it is not the engine that is waited for."""
        self._paused = True

    def resume(self) -> None:
        """Count again, from the beginning."""
        self._paused = False
        self.beat()

    def cancel(self) -> None:
        """Never call `stalled` any more, and let go of it."""
        self._handle.cancel()
        self._stalled = _nothing

    def _look(self) -> None:
        silence = 0.0 if self._paused else self._loop.time() - self._last
        if silence >= self.seconds:
            self._stalled()
        else:
            self._handle = self._loop.call_later(self.seconds - silence, self._look)


def _nothing() -> None:
    """Stand in for what is not to be called any more."""
