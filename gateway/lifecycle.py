"""A gateway process from its start to its end, and the order in which it goes.

    STARTING --served once--> SERVING --stop--> DRAINING --> STOPPED

`Lifecycle` decides; what it decides about is handed in, so that the order can be tested alone.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import Final, Protocol

from gateway.config import DrainConfig

__all__ = ["Drainable", "Lifecycle", "Phase"]

#: Seconds for the last words of requests that the drain has cut: an error, and `[DONE]`.
LAST_WORDS: Final = 5.0

logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """Where the process is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Drainable(Protocol):
    """What can be drained: the public server and its requests."""

    def stop_accepting(self) -> None:
        """Close the listening sockets, and connections that are idle."""

    def cut_requests(self) -> None:
        """End every open request with an error."""

    @property
    def closed(self) -> asyncio.Event:
        """Set when the last connection has closed."""


class Lifecycle:
    """Keep the phase, hear the stop request, and drain."""

    def __init__(self, config: DrainConfig) -> None:
        self.phase = Phase.STARTING
        """May be read from any thread."""
        self._config = config
        self._stop = asyncio.Event()
        self._hurried = False
        self._bound: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        return f"<Lifecycle {self.phase}{', hurried' if self._hurried else ''}>"

    def serving(self) -> None:
        """Note that requests can be answered: called when the first worker is ready."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING

    def request_stop(self) -> None:
        """Ask for the drain; asked again, stop waiting for clients. A signal handler."""
        if self._stop.is_set():
            self._hurried = True
            if self._bound is not None:
                self._bound.reschedule(asyncio.get_running_loop().time())
        self._stop.set()

    async def wait_for_stop(self) -> None:
        """Return when the drain has been asked for."""
        await self._stop.wait()

    async def drain(self, server: Drainable) -> None:
        """End in order: who is being served is not cut before the grace is over."""
        self.phase = Phase.DRAINING  # readiness is gone
        await self._wait(self._config.propagation_delay)  # balancers notice; requests are served
        server.stop_accepting()
        if not await self._wait(self._config.grace, server.closed):
            logger.warning("requests that are still open are cut")
            server.cut_requests()
            await self._wait_for_last_words(server)
        self.phase = Phase.STOPPED

    async def _wait_for_last_words(self, server: Drainable) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS):
                await server.closed.wait()
        except TimeoutError:
            logger.warning("connections are still open: they are dropped")

    async def _wait(self, seconds: float, event: asyncio.Event | None = None) -> bool:
        """Wait for `event`, but at most `seconds`, and no longer once there is a hurry."""
        try:
            async with asyncio.timeout(0 if self._hurried else seconds) as self._bound:
                await (event or asyncio.Event()).wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._bound = None
