"""A server: accepts connections, hands each submitted operation to a service, drains, closes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl as ssl_module
from collections.abc import Callable
from itertools import count
from typing import Final

from nnrp_backend.protocol.config import ServerConfig
from nnrp_backend.protocol.constants import (
    SERVED_CAPABILITIES,
    PressureLevel,
    PressureReason,
)
from nnrp_backend.protocol.server_role import ServerConnection
from nnrp_backend.server.link import RETRY_AFTER_MS, ServerLink
from nnrp_backend.server.operation import ServerOperation
from nnrp_backend.transport.endpoint import Endpoint
from nnrp_backend.transport.sockets import Listener, listen

__all__ = ["NnrpServer"]

logger = logging.getLogger(__name__)

#: Free slots change with every operation; clients need them to choose a worker, not to count.
REPORT_SECONDS: Final = 0.05
#: How long a drained server leaves a foreign client to read what it was sent.
FAREWELL_SECONDS: Final = 1.0


class NnrpServer:
    """Serve NNRP/1 on any number of endpoints.

    Args:
        service: called from the loop with each operation; must not block or raise. It sets
            `operation.handler` and sees to exactly one terminal.
        max_in_flight: operations per session.
        max_sessions: sessions per connection.
        max_connections: connections; further ones are closed at once.
        handshake_timeout: seconds a new connection has for TLS, and again for its hello.
        capabilities: what foreign clients are granted if they ask; our own know what to expect.
        config: settings of the protocol core, in place of all above but `max_connections`.
    """

    def __init__(
        self,
        service: Callable[[ServerOperation], None],
        *,
        max_in_flight: int = 1024,
        max_sessions: int = 64,
        max_connections: int = 256,
        handshake_timeout: float = 5.0,
        capabilities: frozenset[str] = SERVED_CAPABILITIES,
        config: ServerConfig | None = None,
    ) -> None:
        self.service = service
        self.in_flight = 0
        """Operations that have had no terminal yet."""
        self.draining = False
        self.refused_connections = 0
        """Connections closed at once, over the limit or while draining."""
        self._refusing = False
        self._max_connections = max_connections
        config = config or ServerConfig(
            max_in_flight=max_in_flight,
            max_sessions=max_sessions,
            handshake_timeout=handshake_timeout,
            capabilities=capabilities,
        )
        allocate = config.next_session_id or count(1).__next__
        self._config = dataclasses.replace(config, next_session_id=allocate)
        self._listeners: list[Listener] = []
        self._links: set[ServerLink] = set()
        self._idle = asyncio.Event()
        self._capacity: int | None = None
        self._reported_full = False
        self._report: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        where = ", ".join(str(listener.endpoint) for listener in self._listeners) or "nowhere"
        state = "draining" if self.draining else "serving"
        return (
            f"<NnrpServer {state} on {where} "
            f"[{self.connections} connections, {self.in_flight} in flight]>"
        )

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._links)

    async def listen(
        self, endpoint: Endpoint | str, *, ssl: ssl_module.SSLContext | None = None
    ) -> Endpoint:
        """Listen on one more endpoint; return it with the port that was bound.

        Raises:
            OSError: the address cannot be bound.
            ValueError: `tls://` without a context, or a context without `tls://`.
        """
        if isinstance(endpoint, str):
            endpoint = Endpoint.parse(endpoint)
        listener = await listen(
            endpoint, self.accept, ssl=ssl, handshake_timeout=self._config.handshake_timeout
        )
        self._listeners.append(listener)
        return listener.endpoint

    def accept(self) -> ServerLink:
        """Make the protocol of one connection: what `listen` gives to asyncio."""
        return ServerLink(self, ServerConnection(self._config))

    async def close(self, *, drain_timeout: float = 0.0) -> None:
        """Stop in order.

        1. Take no new connections; refuse new operations; tell the clients that may hear it.
        2. Give those in flight `drain_timeout` seconds to end.
        3. Tell the handlers of the rest to stop, and drop what they leave.
        4. Disconnect. Foreign clients that got an answer just now have a moment to go first.
        """
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for link in self._links:
            link.core.drain()
            link.flush_soon()
        await self._wait_idle(drain_timeout)
        if self._report is not None:
            self._report.cancel()
        for link in tuple(self._links):
            link.end_operations()
        await self._disconnect()

    async def _wait_idle(self, timeout: float) -> None:
        if self.in_flight == 0 or timeout <= 0:
            return
        self._idle.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d operations did not end while draining", self.in_flight)

    async def _disconnect(self) -> None:
        links = tuple(self._links)
        reading = [link for link in links if link.still_reading(FAREWELL_SECONDS)]
        for link in links:
            if link not in reading:
                link.close()
        if reading:
            await asyncio.wait([link.closed for link in reading], timeout=FAREWELL_SECONDS)
            for link in reading:
                link.close()
        if links:
            await asyncio.wait([link.closed for link in links])

    # --- capacity ---------------------------------------------------------------------------------

    def set_capacity(self, capacity: int) -> None:
        """Tell the clients that may hear it how many operations the worker can run in all.

        They hear of free slots now and then, and at once when there are none, or some again.
        """
        self._capacity = capacity
        self._report_now()

    def report_capacity_to(self, link: ServerLink) -> None:
        """Tell one connection, which could not hear earlier reports."""
        if self._capacity is None:
            return
        free = max(0, self._capacity - self.in_flight)
        if free:
            link.core.advertise(free)
        else:
            link.core.advertise(
                0,
                level=PressureLevel.HARD,
                reason=PressureReason.RECEIVER_QUEUE_FULL,
                retry_after_ms=RETRY_AFTER_MS,
            )
        link.flush_soon()

    def _report_soon(self) -> None:
        if self._capacity is None or self.draining:
            return
        if (self.in_flight >= self._capacity) is not self._reported_full:
            self._report_now()
        elif self._report is None:
            self._report = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report_now)

    def _report_now(self) -> None:
        if self._report is not None:
            self._report.cancel()
            self._report = None
        if self._capacity is None or self.draining:
            return
        self._reported_full = self.in_flight >= self._capacity
        for link in self._links:
            self.report_capacity_to(link)

    # --- called by the links ----------------------------------------------------------------------

    def link_opened(self, link: ServerLink) -> None:
        if not self.draining and len(self._links) < self._max_connections:
            self._links.add(link)
            self._refusing = False
            return
        self.refused_connections += 1
        if not self._refusing:  # one line for a whole flood
            self._refusing = True
            logger.warning("refusing connections, first of %s: %r", link.peer(), self)
        link.abort()

    def link_lost(self, link: ServerLink) -> None:
        self._links.discard(link)

    def operation_started(self) -> None:
        self.in_flight += 1
        self._report_soon()

    def operation_ended(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
        self._report_soon()
