"""Ready bytes through sse-starlette: nothing is added, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.http.ordinary import send_ready_bytes


class Client:
    """The server's side of one request."""

    def __init__(self, *, takes: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.leaves = asyncio.Event()
        self.takes = takes

    async def receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if not self.takes:
            await asyncio.Event().wait()
        self.sent.append(message)


async def respond(client: Client, chunks: AsyncIterator[bytes], timeout: float = 5) -> None:
    scope = {"type": "http", "method": "POST"}
    await send_ready_bytes(
        chunks, scope, client.receive, client.send, send_timeout=timeout, drain_grace=1
    )


async def test_the_bytes_are_sent_as_they_are() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: a\n\n"
        yield b": comment\n\ndata: b\n\n"

    client = Client()
    await respond(client, chunks())
    assert [message["type"] for message in client.sent] == ["http.response.body"] * 3
    assert [message["body"] for message in client.sent] == [
        b"data: a\n\n",
        b": comment\n\ndata: b\n\n",
        b"",
    ]
    assert [message["more_body"] for message in client.sent] == [True, True, False]


async def test_a_client_that_leaves_ends_the_iteration() -> None:
    ended = []

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"data: a\n\n"
            client.leaves.set()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    client = Client()
    await respond(client, chunks())
    assert ended == [True]
    assert all(message["more_body"] for message in client.sent), "it must not look complete"


async def test_a_client_that_takes_nothing_times_out() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: a\n\n"

    with pytest.raises(TimeoutError):
        await respond(Client(takes=False), chunks(), timeout=0.01)
