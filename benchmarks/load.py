"""A load generator cheaper than what it measures: raw HTTP/1.1, events counted by their bytes."""

import asyncio
import json
import time

EVENT = b"\ndata: "
DONE = b"data: [DONE]"


def chat_request(content: str, *, stream: bool, port: int, pad: int = 0) -> bytes:
    """One whole HTTP request, ready to be written."""
    messages = [{"role": "user", "content": content}]
    if pad:
        messages.insert(0, {"role": "system", "content": "x" * pad})
    body = json.dumps({"model": "sim", "messages": messages, "stream": stream}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class StreamReader(asyncio.Protocol):
    """Sends one streamed request and counts its events."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.events = 0
        self.started: float | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self.failure = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.started is None:
            self.started = time.perf_counter()
            if b" 200 " not in data[:20]:
                self.failure = data
        # Events leave the gateway whole, one chunk each: a needle never lies across two reads often
        # enough to matter, and the total is checked at the end.
        self.events += data.count(EVENT)
        if DONE in data and not self.finished.done():
            self.finished.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(exc or ConnectionError(f"closed early {self.failure!r}"))


async def open_streams(count: int, request: bytes, port: int) -> list[StreamReader]:
    """Open ``count`` streams; returns when each request was written."""
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(count):
        _, reader = await loop.create_connection(lambda: StreamReader(request), "127.0.0.1", port)
        readers.append(reader)
    return readers


class WholeClient(asyncio.Protocol):
    """One keep-alive connection that asks again as soon as the answer is there."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.latencies: list[float] = []
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = 0
        self._missing = -1
        self._head = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def ask(self, times: int) -> None:
        self._left = times
        self._next()

    def _next(self) -> None:
        self._missing, self._head = -1, b""
        self._sent = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._head[:end].lower()
            assert b" 200 " in head[:20], self._head
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            self._missing = length - (len(self._head) - end - 4)
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self.latencies.append(time.perf_counter() - self._sent)
            self._left -= 1
            if self._left:
                self._next()
            else:
                self.finished.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(exc or ConnectionError("closed early"))
