"""A pair of transports joined in memory, for tests without sockets.

Bytes written to one end reach the other's protocol in a later turn of the loop, one `data_received`
for each `write`, so that a test sees how writes were joined. Flow control is that of a socket
without kernel buffers: while the reading end is paused, bytes count against the writing end's
high-water mark. `cut` ends both sides as a network failure would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

__all__ = ["MemoryTransport", "connect_pair"]

DEFAULT_HIGH_WATER = 64 * 1024


class MemoryTransport(asyncio.Transport):
    """One end. `writes` counts the `write` calls that carried bytes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": "memory", "sockname": "memory"})
        self._loop = loop
        self._protocol = protocol
        self._peer: MemoryTransport | None = None
        self._outgoing: deque[bytes] = deque()
        self._size = 0
        self._high = DEFAULT_HIGH_WATER
        self._low = DEFAULT_HIGH_WATER // 4
        self._write_paused = False
        self._read_paused = False
        self._pumping = False
        self._closing = False
        self._lost = False
        self.writes = 0

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "open"
        return f"<MemoryTransport {state} [{self._size} bytes waiting]>"

    # --- reading ---

    def is_reading(self) -> bool:
        return not (self._read_paused or self._closing)

    def pause_reading(self) -> None:
        self._read_paused = True

    def resume_reading(self) -> None:
        self._read_paused = False
        if self._peer is not None:
            self._peer._pump_soon()

    # --- writing ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self._closing:
            return
        self.writes += 1
        self._outgoing.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()
        self._pump_soon()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = DEFAULT_HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return False

    # --- the end ---

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Deliver what was written, then end both sides."""
        if not self._closing:
            self._closing = True
            self._pump_soon()

    def abort(self) -> None:
        """End both sides at once; what was written and not yet delivered is lost."""
        self._closing = True
        self._outgoing.clear()
        self._size = 0
        self._pump_soon()

    def cut(self, error: Exception | None = None) -> None:
        """Fail both ends, as a broken network would."""
        for end in (self, self._peer):
            if end is not None:
                end._closing = True
                end._outgoing.clear()
                end._loop.call_soon(end._lose, error or ConnectionResetError("cut"))

    # --- inside ---

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        peer = self._peer
        if peer is None or self._lost:
            return
        while self._outgoing and not (peer._read_paused or peer._closing):
            data = self._outgoing.popleft()
            self._size -= len(data)
            peer._protocol.data_received(data)
        if self._write_paused and self._size <= self._low:
            self._write_paused = False
            self._protocol.resume_writing()
        if self._closing and (not self._outgoing or peer._closing):
            self._lose(None)
            self._loop.call_soon(peer._end_of_stream)

    def _end_of_stream(self) -> None:
        if not self._lost:
            self._protocol.eof_received()
            self._closing = True
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(error)


def connect_pair(
    left: asyncio.Protocol, right: asyncio.Protocol
) -> tuple[MemoryTransport, MemoryTransport]:
    """Join two protocols; both have had `connection_made` when this returns."""
    loop = asyncio.get_running_loop()
    ends = MemoryTransport(loop, left), MemoryTransport(loop, right)
    ends[0]._peer, ends[1]._peer = ends[1], ends[0]
    right.connection_made(ends[1])
    left.connection_made(ends[0])
    return ends
