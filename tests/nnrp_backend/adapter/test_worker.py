import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from nnrp_backend.adapter import worker as worker_module
from nnrp_backend.adapter.engine import EngineConfigError, EngineInterrupted
from nnrp_backend.adapter.worker import EXIT_FAILED, EXIT_OK, ListenError, Worker, WorkerConfig
from nnrp_backend.client import NnrpClient, TerminalKind
from nnrp_backend.profile.envelope import encode_envelope
from nnrp_backend.profile.operations import CHAT
from nnrp_backend.protocol.constants import PressureLevel
from nnrp_backend.transport.endpoint import Endpoint
from nnrp_backend.transport.tasks import TaskSet
from tests.support import frames
from tests.support.endpoints import Listener
from tests.support.engines import ScriptedEngine, text_chunks
from tests.support.waiting import until

TCP = Endpoint.parse("tcp://127.0.0.1:0")
PAYLOAD = encode_envelope(
    CHAT, b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
)


class Host:
    """A worker that runs in this process."""

    def __init__(self, config: WorkerConfig | None = None) -> None:
        self.engine = ScriptedEngine()
        self.ready: list[dict[str, Any]] = []
        self.worker = Worker(
            self.engine, config or WorkerConfig(listen=(TCP,)), on_ready=self.ready.append
        )
        self.tasks = TaskSet("test")
        self.running = self.tasks.start(self.worker.run(), name="worker")

    @property
    def url(self) -> str:
        return self.ready[0]["listen"][0]

    async def serving(self) -> "Host":
        await until(lambda: self.ready or self.running.done())
        assert self.ready, self.running
        return self

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.running, 10)


@asynccontextmanager
async def serving(config: WorkerConfig | None = None) -> AsyncIterator[Host]:
    host = await Host(config).serving()
    try:
        yield host
    finally:
        if not host.running.done():
            host.worker.stop()
            await host.exit_code()


async def test_it_says_where_it_serves_and_what(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    config = WorkerConfig(listen=(TCP, Endpoint.parse(f"unix://{path}")), admin=("127.0.0.1", 0))
    async with serving(config) as host:
        (description,) = host.ready
        assert description["listen"][0].startswith("tcp://127.0.0.1:")
        assert description["listen"][1] == f"unix://{path}"
        assert description["pid"] == os.getpid()
        assert description["models"] == ["m"]
        for url in description["listen"]:
            async with NnrpClient(url) as client:
                assert await client.capabilities() is not None
        async with httpx.AsyncClient(base_url=description["admin"], trust_env=False) as http:
            assert (await http.get("/readyz")).status_code == 200
            assert "scripted_things 7" in (await http.get("/metrics")).text
    assert not path.exists(), "the socket's file goes with the worker"
    assert host.engine.closed == 1


async def test_without_an_admin_port_there_is_none() -> None:
    async with serving() as host:
        assert host.ready[0]["admin"] is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_operations_end(number: int) -> None:
    config = WorkerConfig(listen=(TCP,), admin=("127.0.0.1", 0))
    async with serving(config) as host, NnrpClient(host.url) as client:
        assert repr(host.worker) == "<Worker scripted ready>"
        async with client.stream(PAYLOAD) as stream:
            await until(lambda: host.engine.requests)
            os.kill(os.getpid(), number)
            await until(lambda: client.draining)
            assert repr(host.worker) == "<Worker scripted draining>"
            async with httpx.AsyncClient(base_url=host.ready[0]["admin"], trust_env=False) as http:
                assert (await http.get("/readyz")).status_code == 503
                assert (await http.get("/livez")).status_code == 200
            host.engine.feed(*text_chunks("still", "here"), end=True)
            deltas = [json.loads(event)["delta"] async for event in stream]
        assert "".join(deltas) == "stillhere"
        assert stream.terminal is not None
        assert stream.terminal.kind is TerminalKind.RESULT
        assert await host.exit_code() == EXIT_OK


async def test_draining_ends_after_its_time() -> None:
    async with serving(WorkerConfig(listen=(TCP,), drain_timeout=0.05)) as host:
        async with NnrpClient(host.url) as client:
            async with client.stream(PAYLOAD) as stream:
                await until(lambda: host.engine.requests)
                host.worker.stop()
                assert [event async for event in stream] == []
            assert stream.terminal is not None
            assert json.loads(stream.terminal.body)["error"]["code"] == "backend_cancelled"
            assert await host.exit_code() == EXIT_OK
        assert len(host.engine.aborted) == 1


async def test_the_engines_death_is_told_and_ends_the_worker() -> None:
    async with serving() as host, NnrpClient(host.url) as client:
        async with client.stream(PAYLOAD) as stream:
            await until(lambda: host.engine.requests)
            host.engine.die()
            assert [event async for event in stream] == []
        assert stream.terminal is not None
        assert json.loads(stream.terminal.body)["error"]["code"] == "backend_error"
        assert await host.exit_code() == EXIT_FAILED
        assert host.engine.closed == 1


async def test_the_engines_death_is_noticed_while_draining() -> None:
    async with serving() as host, NnrpClient(host.url) as client:
        async with client.stream(PAYLOAD) as stream:
            await until(lambda: host.engine.requests)
            host.worker.stop()
            await until(lambda: client.draining)
            host.engine.die()
            assert [event async for event in stream] == []
        assert stream.terminal is not None
        assert json.loads(stream.terminal.body)["error"]["code"] == "backend_error"
        assert await host.exit_code() == EXIT_FAILED


async def test_a_second_signal_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    async with serving() as host:
        host.worker.stop()
        host.worker.stop()
        assert codes == [EXIT_FAILED]


async def test_a_signal_while_the_engine_loads() -> None:
    host = Host()
    loading = asyncio.Event()

    async def start() -> None:
        loading.set()
        await asyncio.get_running_loop().create_future()

    host.engine.start = start  # type: ignore[method-assign]
    await asyncio.wait_for(loading.wait(), 5)
    host.worker.stop()
    assert await host.exit_code() == EXIT_OK
    assert host.ready == []
    assert host.engine.closed == 1


async def test_the_admin_port_answers_while_the_engine_blocks_the_loop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = Host(WorkerConfig(listen=(TCP,), admin=("127.0.0.1", port)))
    answers: dict[str, int] = {}

    async def start() -> None:
        for path in ("/livez", "/readyz", "/startupz", "/metrics"):
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False)  # noqa: ASYNC210
            answers[path] = answer.status_code

    host.engine.start = start  # type: ignore[method-assign]
    await host.serving()
    host.worker.stop()
    assert await host.exit_code() == EXIT_OK
    assert answers == {"/livez": 200, "/readyz": 503, "/startupz": 503, "/metrics": 200}


async def test_its_loop_beats_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "BEAT_SECONDS", 0.001)
    async with serving() as host:
        beats: list[bool] = []
        monkeypatch.setattr(host.worker._health, "beat", lambda: beats.append(True))
        await until(lambda: len(beats) > 2)


async def test_a_signal_before_the_engine_loads() -> None:
    host = Host()
    host.worker.stop()
    assert await host.exit_code() == EXIT_OK
    assert host.engine.started == 0


async def test_what_fails_at_the_end_leaves_nothing_open() -> None:
    config = WorkerConfig(listen=(TCP,), admin=("127.0.0.1", 0))
    host = Host(config)

    async def close() -> None:
        raise RuntimeError("the engine does not close")

    host.engine.close = close  # type: ignore[method-assign]
    await host.serving()
    host.worker.stop()
    with pytest.raises(RuntimeError, match="does not close"):
        await host.exit_code()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{host.ready[0]['admin']}/livez", trust_env=False)  # noqa: ASYNC210


async def test_a_signal_that_only_the_engine_could_hear() -> None:
    host = Host()
    host.engine.start_error = EngineInterrupted("scripted")
    assert await host.exit_code() == EXIT_OK
    assert host.engine.closed == 1


async def test_an_engine_that_cannot_start() -> None:
    host = Host()
    host.engine.start_error = EngineConfigError("scripted", "no such model")
    with pytest.raises(EngineConfigError, match="no such model"):
        await host.exit_code()
    assert host.engine.closed == 1
    assert host.ready == []


async def test_levels_that_the_engine_has_not() -> None:
    host = Host(WorkerConfig(listen=(TCP,), levels=frozenset({2})))
    with pytest.raises(EngineConfigError, match="--levels"):
        await host.exit_code()
    assert host.engine.closed == 1


async def test_an_address_that_cannot_be_bound(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/missing/w.sock"
    host = Host(WorkerConfig(listen=(TCP, Endpoint.parse(url))))
    with pytest.raises(ListenError) as caught:
        await host.exit_code()
    assert str(caught.value) == f"cannot listen on {url}: No such file or directory"
    assert host.engine.closed == 1
    assert host.ready == []


async def test_taken_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        nnrp = Host(WorkerConfig(listen=(Endpoint.parse(f"tcp://127.0.0.1:{port}"),)))
        admin = Host(WorkerConfig(listen=(TCP,), admin=("127.0.0.1", port)))
        with pytest.raises(ListenError, match="Address already in use"):
            await nnrp.exit_code()
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            await admin.exit_code()


def test_the_resolvers_words_are_kept() -> None:
    error = socket.gaierror(-2, "Name or service not known")
    assert "Name or service not known" in str(ListenError("tcp://nowhere:1", error))


async def test_a_socket_file_left_by_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists()
    config = WorkerConfig(listen=(Endpoint.parse(f"unix://{path}"),))
    async with serving(config) as host, NnrpClient(host.url) as client:
        assert client.connected


async def test_clients_hear_how_much_room_there_is() -> None:
    config = WorkerConfig(listen=(TCP,), max_operations=1)
    listener = Listener()
    async with serving(config) as host, NnrpClient(host.url, listener=listener) as client:
        assert client.granted_in_flight == 1
        await until(lambda: listener.pressure == [(1, 0, 0)])
        async with client.stream(PAYLOAD):
            await until(lambda: listener.pressure[-1] == (0, PressureLevel.HARD, 1000))
        await until(lambda: listener.pressure[-1] == (1, 0, 0))


async def test_a_foreign_client_is_granted_what_is_honoured() -> None:
    """No engine honours a priority that changes once it has the request."""
    asked = {"control.cancel_abort", "control.credit_backpressure", "control.priority_update"}
    async with serving() as host:
        endpoint = Endpoint.parse(host.url)
        peer = await frames.RawPeer.connect(endpoint.host, endpoint.port)
        peer.send(frames.negotiate(await peer.handshake(), *asked))
        answer = await peer.read_until(frames.DEGRADE)
        assert frames.tokens(answer.body) == asked - {"control.priority_update"}
        peer.close()
