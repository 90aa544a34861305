"""The asyncio protocol that drives one sans-I/O connection.

It reads at all times, also while writes wait: two peers that both stop reading until they could
write would wait for each other for ever. It joins everything that was queued during one turn of the
event loop into one `write`: an engine step makes events for all its running requests at once, and
sending them together is what keeps the cost of one event low.

A subclass is one role. It starts the core in `opened`, acts on `dispatch`, and calls `flush_soon`
after every verb of the core.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from typing import Final, Generic, TypeVar, cast

from nnrp_backend.protocol.connection import Connection
from nnrp_backend.protocol.events import Event
from nnrp_backend.protocol.states import ConnectionState
from nnrp_backend.transport.sockets import tune

__all__ = ["ConnectionStream"]

logger = logging.getLogger(__name__)

#: Above this, bytes wait in our process: operations stop producing. Some hundred events, far below
#: what would delay a CANCEL's answer.
HIGH_WATER: Final = 256 * 1024
LOW_WATER: Final = 64 * 1024
#: Submits and results are not held back by the high-water mark: bodies of any size may wait, up to
#: several of the largest packets (`has_room`). A connection with twice as much is closed.
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
#: uvloop reads up to 32 times from one socket before it looks at the next. A read this large means
#: that more is waiting: the connection pauses for one turn, and the others are served meanwhile.
LARGE_READ: Final = 128 * 1024
#: How long an orderly close may take to deliver what is still unsent.
CLOSE_SECONDS: Final = 5.0
#: Event loops round short delays differently; waking a little late beats waking twice.
_TIMER_SLACK: Final = 0.001

CoreT = TypeVar("CoreT", bound=Connection)


class ConnectionStream(asyncio.Protocol, Generic[CoreT]):
    """One connection: its transport, its core, one timer."""

    def __init__(self, core: CoreT) -> None:
        self.core = core
        self.write_paused = False
        #: What ended the connection; None while it lives and after an orderly end.
        self.error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._linger: asyncio.TimerHandle | None = None
        #: Done once the transport is gone. Wait for it with `asyncio.wait`, which leaves it be.
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # --- what a role adds -------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        """Start the core."""
        raise NotImplementedError

    def dispatch(self, events: Sequence[Event]) -> None:
        """Act on events of the core. Must not raise."""
        raise NotImplementedError

    def writable(self) -> None:
        """Go on after a write pause."""

    def lost(self) -> None:
        """Clean up; the core has already reported the end of everything."""

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the transport is gone."""
        return self.closed.done()

    @property
    def unsent(self) -> int:
        """Bytes that wait in this process for the peer to read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def has_room(self, size: int) -> bool:
        """Whether a body of `size` bytes may be queued for a peer that is slow to read."""
        if size > LOW_WATER:
            self._flush()  # Others may have been queued in this very turn.
        return self.unsent + size <= MAX_UNSENT_BYTES

    @property
    def kind(self) -> str:
        """What carries the bytes: "tcp", "tls", "unix" or "memory"."""
        if self._transport is None:
            return "none"
        if self._transport.get_extra_info("ssl_object") is not None:
            return "tls"
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return "memory"
        return "unix" if sock.family == socket.AF_UNIX else "tcp"

    def peer(self) -> str:
        """Name the peer for a log line."""
        if self._transport is None:
            return "nobody"
        name = self._transport.get_extra_info("peername")
        if isinstance(name, tuple):
            return f"{name[0]}:{name[1]}"
        # The connecting end of a unix socket has no name.
        return str(name or "unix peer")

    def log_violation(self, error: Exception) -> None:
        """Log what the peer did wrong, the first time only: it may go on doing it."""
        if self.core.counters.protocol_errors == 1:
            logger.warning("%s broke the protocol: %s", self.peer(), error)

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        self.opened(time.monotonic())
        self.settle()

    def data_received(self, data: bytes) -> None:
        events = self.core.receive_data(data, time.monotonic())
        if events:
            self.dispatch(events)
        self.settle()
        if len(data) >= LARGE_READ:
            self._give_way()

    def eof_received(self) -> None:
        # A peer that stops sending cannot submit, cancel or grant: there is nothing to wait for.
        self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self.error = self.error or error
        self._finish()
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = None
        if not self.closed.done():
            self.closed.set_result(None)
            self.lost()

    def pause_writing(self) -> None:
        self.write_paused = self.core.congested = True

    def resume_writing(self) -> None:
        self.write_paused = self.core.congested = False
        self.writable()

    # --- fairness ---------------------------------------------------------------------------------

    def _give_way(self) -> None:
        """Read nothing more in this turn of the loop."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- sending ----------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Send what the core has queued at the end of this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def settle(self) -> None:
        """Catch up with the core after events: send, re-arm the timer, close when it has closed."""
        if not self._flushing:
            self._flush()
        if self.core.state is ConnectionState.CLOSED:
            self.close()
        else:
            self._arm()

    def _flush(self) -> None:
        self._flushing = False
        pieces = self.core.data_to_send()
        transport = self._transport
        if not pieces or transport is None or transport.is_closing():
            return
        transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if transport.get_write_buffer_size() > 2 * MAX_UNSENT_BYTES:
            logger.warning("%s does not read; closing its connection", self.peer())
            self.abort()

    # --- time -------------------------------------------------------------------------------------

    def _arm(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is None:
            return
        if self._timer is not None:
            # Deadlines mostly move back, with every byte received. The timer then fires early and
            # is set again, which is cheaper than moving it each time.
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0.0, deadline - time.monotonic()) + _TIMER_SLACK
        self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline = self.core.next_deadline()
        now = time.monotonic()
        if deadline is not None and deadline <= now:
            events = self.core.handle_deadline(now)
            if events:
                self.dispatch(events)
        self.settle()

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what is queued, then close; an unwilling peer is cut off after a while."""
        self._flush()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.close()
        self._linger = self._loop.call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def _finish(self) -> None:
        """Tell the core that the bytes have ended, and act on what that ends."""
        events = self.core.receive_eof()
        if events:
            self.dispatch(events)
        self._flush()
