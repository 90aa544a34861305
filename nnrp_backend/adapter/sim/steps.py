"""The clock that all running streams of one pace share.

A real engine computes one step for all its running requests at once, so their tokens are ready at
the same moment. A `StepClock` has that property: everybody who waits on it is woken in the same
turn of the event loop.
"""

import asyncio
from weakref import WeakValueDictionary


class StepClock:
    """Wake every waiter at once, every `interval` seconds, for as long as anybody waits.

    An idle clock takes its first step at once, as an idle engine does; a stream that joins a
    running clock waits for the next step.
    """

    __slots__ = ("__weakref__", "_handle", "_loop", "_waiters", "_when", "interval", "steps")

    def __init__(self, interval: float, loop: asyncio.AbstractEventLoop) -> None:
        self.interval = interval
        self.steps = 0
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        self._handle: asyncio.Handle | None = None
        self._when = 0.0

    def __repr__(self) -> str:
        state = "idle" if self._handle is None else f"{len(self._waiters)} waiting"
        return f"<StepClock {self.interval * 1000:g} ms [{state}, {self.steps} steps]>"

    def step(self) -> asyncio.Future[None]:
        """Return the end of the step that is under way. Each waiter gets a future of its own."""
        # Cancelling a task cancels the future it awaits: a shared one would take all others along.
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._handle is None:
            self._when = self._loop.time()
            self._handle = self._loop.call_soon(self._end_step)
        return waiter

    def _end_step(self) -> None:
        waiters, self._waiters = self._waiters, []
        if not waiters:
            self._handle = None
            return
        self.steps += 1
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        # Absolute times do not drift. A late step is not caught up with: an engine that is behind
        # computes step after step, never two at once.
        self._when = max(self._when + self.interval, self._loop.time())
        self._handle = self._loop.call_at(self._when, self._end_step)


class StepClocks:
    """The clocks in use, one for each interval. A clock that nobody uses any more is forgotten."""

    __slots__ = ("_clocks",)

    def __init__(self) -> None:
        self._clocks: WeakValueDictionary[float, StepClock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<StepClocks [{len(self._clocks)} in use]>"

    def get(self, interval: float) -> StepClock:
        """Return the clock of `interval` seconds; the caller keeps it while it needs it."""
        clock = self._clocks.get(interval)
        if clock is None:
            clock = StepClock(interval, asyncio.get_running_loop())
            self._clocks[interval] = clock
        return clock
