"""The gateway's HTTP edge on a real uvicorn, before a pool that the test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.app import create_app
from gateway.config import GatewayConfig
from gateway.http.direct import direct_protocol
from gateway.http.open_requests import OpenRequests
from gateway.observability.metrics import GatewayMetrics
from tests.support.fake_pool import FakePool
from tests.support.http_server import request
from tests.support.waiting import until

#: With the direct writer, or the way that any other server goes.
Way = Literal["direct", "ordinary"]

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


class Clock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Edge:
    """A running edge."""

    def __init__(
        self, way: Way, config: GatewayConfig, wrap: Callable[[Any], Any] = lambda app: app
    ) -> None:
        self.pool = FakePool()
        self.metrics = GatewayMetrics()
        self.clock = Clock()
        # The test calls tick(); the timer never fires by itself.
        self.open = OpenRequests(interval=3600, clock=self.clock)
        app = create_app(
            config,
            pool=self.pool,
            metrics=self.metrics,
            open_requests=self.open,
            clock=self.clock,
            wall_clock=lambda: 1_700_000_000.0,
        )
        self.server = _Server(
            uvicorn.Config(
                wrap(app),
                port=0,
                http=direct_protocol() if way == "direct" else HttpToolsProtocol,
                loop="asyncio",
                log_config=None,
                ws="none",
                interface="asgi3",
            )
        )

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        return Client(reader, writer)

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.now += seconds
        self.open.tick(self.clock.now)


def outcomes(running: Edge, model: str = "m") -> dict[str, int]:
    """How requests about a model ended so far; "" are those that no worker saw."""
    requests = running.metrics.model(model).requests
    return {outcome: count for outcome, count in requests.items() if count}


class _Server(uvicorn.Server):
    """Stops when it is told to, and not at the next look of ten per second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()


@asynccontextmanager
async def edge(
    way: Way = "direct",
    *,
    wrap: Callable[[Any], Any] = lambda app: app,
    **sections: Any,
) -> AsyncIterator[Edge]:
    """Serve the edge; `sections` are those of the configuration."""
    running = Edge(way, GatewayConfig(**sections), wrap)
    serving = asyncio.create_task(running.server.serve())
    await until(lambda: running.server.started or serving.done())
    try:
        yield running
    finally:
        running.server.stopping.set()
        for connection in tuple(running.server.server_state.connections):
            connection.transport.abort()
        await serving


class Client:
    """A raw HTTP/1.1 client in the test's loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def chat(self, *, headers: str = "", **members: Any) -> None:
        """Send a chat request with these members more."""
        body = json.dumps({**CHAT, **members}).encode()
        self.post("/v1/chat/completions", body, headers=headers)

    def post(self, path: str, body: bytes, *, headers: str = "") -> None:
        if "content-type" not in headers:
            headers += "content-type: application/json\r\n"
        self.send(request("POST", path, body, headers=headers))

    def get(self, path: str, *, headers: str = "") -> None:
        self.send(request("GET", path, headers=headers))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the status line and the headers, by lower-case name."""
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")[:-2]
        fields = (line.split(": ", 1) for line in lines)
        return int(status_line.split(" ")[1]), {name.lower(): value for name, value in fields}

    async def chunk(self) -> bytes:
        """Read one chunk; b"" is the end of the body."""
        async with asyncio.timeout(5):
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def chunks(self) -> bytes:
        """Read chunks to the end of the body."""
        parts = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def json(self) -> tuple[int, dict[str, str], Any]:
        """Read an answer in one piece, which must be JSON."""
        status, headers = await self.head()
        assert headers["content-type"] == "application/json"
        async with asyncio.timeout(5):
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, json.loads(body)
