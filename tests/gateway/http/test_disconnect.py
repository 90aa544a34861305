"""Hearing that the client left, on a server that lends no writer.

The direct way is tested with real connections in test_direct, test_stream and test_whole.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.http.direct import EXTENSION
from gateway.http.disconnect import DisconnectWatch, direct_writer
from nnrp_backend.transport.tasks import TaskSet
from tests.support.waiting import turns, until


class Listener:
    lost = 0

    def on_pause(self) -> None: ...
    def on_resume(self) -> None: ...
    def on_lost(self) -> None:
        self.lost += 1


class Receive:
    """A `receive` that the test feeds."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.waiting = 0

    async def __call__(self) -> dict[str, Any]:
        self.waiting += 1
        try:
            return await self.messages.get()
        finally:
            self.waiting -= 1


async def test_a_disconnect_message_is_heard() -> None:
    receive, listener, tasks = Receive(), Listener(), TaskSet("test")
    watch = DisconnectWatch({"type": "http"}, receive, listener, tasks)
    assert watch.start()
    receive.messages.put_nowait({"type": "http.request", "body": b""})
    await turns()
    assert listener.lost == 0
    receive.messages.put_nowait({"type": "http.disconnect"})
    await until(lambda: listener.lost)
    await tasks.join()
    assert listener.lost == 1


async def test_a_stopped_watch_leaves_receive_to_others() -> None:
    receive, listener, tasks = Receive(), Listener(), TaskSet("test")
    watch = DisconnectWatch({"type": "http"}, receive, listener, tasks)
    watch.start()
    await until(lambda: receive.waiting == 1)
    watch.stop()
    watch.stop()
    await until(lambda: receive.waiting == 0)
    receive.messages.put_nowait({"type": "http.disconnect"})
    await tasks.join()
    assert listener.lost == 0


def test_the_writer_is_found_in_the_scope() -> None:
    writer = object()
    assert direct_writer({"extensions": {EXTENSION: writer}}) is writer
    assert direct_writer({"extensions": {}}) is None
    assert direct_writer({}) is None
