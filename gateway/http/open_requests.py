"""The requests that are being answered, and one timer for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from gateway.errors import ApiError

__all__ = ["OpenRequest", "OpenRequests"]


class OpenRequest(Protocol):
    """A request that has been begun and not been answered to its end."""

    def tick(self, now: float) -> None:
        """Do what is due: a keep-alive, a stalled reader's end."""

    def shut_down(self, error: ApiError) -> None:
        """End it now, with `error`."""


class OpenRequests:
    """Keep the open requests, and look at each once per interval.

    One timer with a glance at every stream is cheaper than a timer that every token moves, and
    keep-alives, graces and send timeouts need no better precision.
    """

    def __init__(
        self, *, interval: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._open: set[OpenRequest] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<OpenRequests [{len(self._open)} open]>"

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        """Begin to look, in the running loop."""
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._run)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add(self, request: OpenRequest) -> None:
        """Keep `request` until `discard`."""
        self._open.add(request)

    def discard(self, request: OpenRequest) -> None:
        """Forget `request`; a no-op for one that is not kept."""
        self._open.discard(request)

    def tick(self, now: float) -> None:
        """Look at every request. Called by the timer, and by tests."""
        for request in tuple(self._open):
            request.tick(now)

    def shut_down(self, error: ApiError) -> None:
        """End every request with `error`."""
        for request in tuple(self._open):
            request.shut_down(error)

    def _run(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._run)
        self.tick(self._clock())
