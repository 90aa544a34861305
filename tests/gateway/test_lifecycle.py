"""The drain: what happens in which order, on a clock that does not run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway import lifecycle
from gateway.config import DrainConfig
from gateway.lifecycle import Lifecycle, Phase
from tests.support.waiting import turns, until


class Server:
    """A server whose connections close when the test says so."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.calls: list[str] = []

    def stop_accepting(self) -> None:
        self.calls.append("stop accepting")

    def cut_requests(self) -> None:
        self.calls.append("cut")


@pytest.fixture
def draining() -> Iterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()


HOURS = 9999.0


async def test_it_serves_from_the_first_ready_worker_on() -> None:
    process = Lifecycle(DrainConfig())
    assert process.phase is Phase.STARTING
    process.serving()
    assert process.phase is Phase.SERVING


async def test_a_draining_process_does_not_serve_again() -> None:
    process = Lifecycle(DrainConfig())
    server = Server()
    server.closed.set()
    await process.drain(server)
    process.serving()
    assert process.phase is Phase.STOPPED


async def test_the_drain_waits_for_a_stop_request() -> None:
    process = Lifecycle(DrainConfig())
    waiting = asyncio.create_task(process.wait_for_stop())
    await turns()
    assert not waiting.done()
    process.request_stop()
    await waiting


async def test_open_requests_may_end_within_the_grace() -> None:
    process = Lifecycle(DrainConfig(grace=HOURS))
    server = Server()
    drain = asyncio.create_task(process.drain(server))
    await until(lambda: server.calls)
    assert process.phase is Phase.DRAINING
    await turns(10)
    assert not drain.done()
    server.closed.set()
    await drain
    assert server.calls == ["stop accepting"], "nobody was cut"
    assert process.phase is Phase.STOPPED


async def test_after_the_grace_they_are_cut() -> None:
    process = Lifecycle(DrainConfig(grace=0.01))
    server = Server()
    drain = asyncio.create_task(process.drain(server))
    await until(lambda: server.calls == ["stop accepting", "cut"])
    assert not drain.done(), "the cut requests still have their last words"
    server.closed.set()
    await drain


async def test_connections_that_stay_open_do_not_hold_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "LAST_WORDS", 0.01)
    process = Lifecycle(DrainConfig(grace=0))
    await process.drain(Server())
    assert process.phase is Phase.STOPPED
    assert "dropped" in caplog.text


async def test_it_keeps_serving_for_the_propagation_delay(
    draining: list[asyncio.Task[None]],
) -> None:
    process = Lifecycle(DrainConfig(propagation_delay=HOURS))
    server = Server()
    draining.append(asyncio.create_task(process.drain(server)))
    await until(lambda: process.phase is Phase.DRAINING)
    await turns(10)
    assert server.calls == []


async def test_a_second_stop_request_ends_the_waiting() -> None:
    process = Lifecycle(DrainConfig(propagation_delay=HOURS, grace=HOURS))
    server = Server()
    process.request_stop()
    drain = asyncio.create_task(process.drain(server))
    await turns()
    assert server.calls == []
    process.request_stop()
    await until(lambda: server.calls == ["stop accepting", "cut"])
    server.closed.set()
    await drain
    assert repr(process) == "<Lifecycle stopped, hurried>"
