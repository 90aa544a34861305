"""A gateway process in the test's own loop: start, refusals, drain."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import GatewayConfig, WorkerConfig
from gateway.pool.backoff import Backoff
from gateway.supervisor.children import Child, Restarts, WorkerStartError
from gateway.supervisor.process import Addresses, GatewayProcess, _spec
from nnrp_backend.profile import events
from nnrp_backend.profile.capabilities import CapabilityRecord, Extension, OperationCapability
from nnrp_backend.profile.operations import CHAT as CHAT_CREATE
from nnrp_backend.profile.operations import CHUNKS_FINAL, MODELS_LIST
from nnrp_backend.server import NnrpServer, ServerOperation
from tests.support.certs import Certificates, make_certificates
from tests.support.edge import CHAT
from tests.support.fake_pool import sse, text
from tests.support.waiting import until

RECORD = CapabilityRecord(
    adapter="test",
    levels=(1,),
    operations=(
        OperationCapability(name=CHAT_CREATE, streaming=True),
        OperationCapability(name=MODELS_LIST),
    ),
    models=({"id": "m"},),
    extensions=(Extension(name=CHUNKS_FINAL),),
)


class Worker:
    """An NNRP server whose chat operations the test answers; streams begin by themselves."""

    def __init__(self) -> None:
        self.operations: list[ServerOperation] = []
        self.server = NnrpServer(self.serve)

    def serve(self, operation: ServerOperation) -> None:
        if b'"models.list"' in operation.payload:
            operation.complete(events.completed(RECORD.models_list()))
        else:
            self.operations.append(operation)
            if b'"stream":true' in operation.payload:
                operation.send_event(text("a"))


@asynccontextmanager
async def worker() -> AsyncIterator[tuple[Worker, str]]:
    serving = Worker()
    endpoint = await serving.server.listen("tcp://127.0.0.1:0")
    yield serving, str(endpoint)
    await serving.server.close(drain_timeout=0)


def configured(*endpoints: str, **sections: Any) -> GatewayConfig:
    return GatewayConfig(
        workers=[{"endpoint": endpoint} for endpoint in endpoints],
        **{"http": {"port": 0}, "admin": {"port": 0}, **sections},
    )


class Run:
    """A running process."""

    def __init__(self, config: GatewayConfig, **options: Any) -> None:
        self.serving: list[Addresses] = []
        self.process = GatewayProcess(config, on_serving=self.serving.append, **options)
        self.task = asyncio.create_task(self.process.run())

    async def ready(self) -> Addresses:
        await until(lambda: self.serving or self.task.done())
        if self.task.done():
            await self.task
        return self.serving[0]

    def stop(self) -> None:
        self.process._lifecycle.request_stop()


@pytest.fixture
async def run() -> AsyncIterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(config: GatewayConfig, **options: Any) -> Run:
        runs.append(Run(config, **options))
        return runs[-1]

    yield start
    for each in runs:
        if not each.task.done():
            each.stop()
            each.stop()
            await asyncio.wait([each.task])


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=10)


async def test_it_serves_and_ends(run: Callable[..., Run]) -> None:
    async with worker() as (serving, endpoint):
        process = run(configured(endpoint))
        addresses = await process.ready()
        assert addresses.models == ("m",)
        async with client(addresses.url) as api, client(addresses.admin_url) as admin:
            assert (await admin.get("/readyz")).status_code == 200
            asking = asyncio.create_task(api.post("/v1/chat/completions", json=CHAT))
            await until(lambda: serving.operations)
            serving.operations[0].complete(events.completed(b'{"choices":[]}'))
            answer = await asking
            assert (answer.status_code, answer.json()["choices"]) == (200, [])
            metrics = (await admin.get("/metrics")).text
            labels = 'model="m",outcome="ok",route="chat_completions"'
            assert f"nnrp_gateway_requests_total{{{labels}}} 1.0" in metrics
            assert f'nnrp_gateway_worker_state{{state="ready",worker="{endpoint}"}} 1.0' in metrics
        process.stop()
        await process.task


async def test_a_port_in_use_is_said_before_anything_starts(run: Callable[..., Run]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = run(configured("tcp://127.0.0.1:1", http={"port": port}))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: ") as caught:
            await process.task
        assert caught.value.strerror is not None


async def test_while_a_child_starts_it_answers_503(run: Callable[..., Run], tmp_path: Path) -> None:
    child = Child(
        "worker-0",
        [sys.executable, "-c", "import time; time.sleep(60)"],
        socket_path=tmp_path / "s",
    )
    url, admin_url, ports = free_ports()
    run(configured(f"unix://{tmp_path}/s", **ports), children=[child])
    async with client(url) as api, client(admin_url) as admin:
        await until_answering(admin)
        answer = await api.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert (await admin.get("/startupz")).status_code == 503


def free_ports() -> tuple[str, str, dict[str, Any]]:
    """Find two ports that are free now; return their URLs and the sections that name them."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        ports = one.getsockname()[1], other.getsockname()[1]
    public, admin = ports
    sections = {"http": {"port": public}, "admin": {"port": admin}}
    return f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}", sections


async def test_without_a_worker_it_answers_503_soon(run: Callable[..., Run]) -> None:
    url, admin_url, ports = free_ports()
    run(configured("tcp://127.0.0.1:1", **ports))
    async with client(url) as api, client(admin_url) as admin:
        await until_answering(admin)
        started = time.monotonic()
        for stream in (False, True):
            answer = await api.post("/v1/chat/completions", json={**CHAT, "stream": stream})
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["content-type"] == "application/json"
        assert time.monotonic() - started < 5, "an answer, not a hang"
        assert (await admin.get("/readyz")).status_code == 503
        assert (await admin.get("/startupz")).status_code == 503
        assert (await admin.get("/livez")).status_code == 200


async def until_answering(admin: httpx.AsyncClient) -> None:
    for _ in range(500):
        try:
            await admin.get("/livez")
        except httpx.ConnectError:
            await asyncio.sleep(0.01)
        else:
            return
    pytest.fail("the process does not answer")


async def test_a_stream_under_way_ends_within_the_grace(run: Callable[..., Run]) -> None:
    async with worker() as (serving, endpoint):
        process = run(configured(endpoint))
        addresses = await process.ready()
        async with client(addresses.url) as api, client(addresses.admin_url) as admin:
            request = api.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True})
            async with request as answer:
                (operation,) = serving.operations
                process.stop()
                await until(lambda: process.process._lifecycle.phase == "draining")
                assert (await admin.get("/readyz")).status_code == 503
                assert (await admin.get("/livez")).status_code == 200
                operation.send_event(text("b"))
                operation.complete(events.completed(b"{}"))
                assert await answer.aread() == sse("a") + sse("b") + b"data: [DONE]\n\n"
        await process.task


async def test_after_the_grace_a_stream_is_cut_in_band(run: Callable[..., Run]) -> None:
    async with worker() as (serving, endpoint):
        process = run(configured(endpoint, drain={"grace": 0}))
        addresses = await process.ready()
        async with client(addresses.url) as api:
            request = api.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True})
            async with request as answer:
                (operation,) = serving.operations
                process.stop()
                body = await answer.aread()
                assert body.startswith(sse("a") + b'data: {"error":')
                assert b'"shutting_down"' in body
                assert body.endswith(b"data: [DONE]\n\n")
        await process.task
        await until(lambda: operation.done)


async def test_a_child_that_cannot_start_ends_the_process(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "raise SystemExit(9)"]
    child = Child("worker-0", command, socket_path=tmp_path / "s")
    process = run(configured(f"unix://{tmp_path}/s"), children=[child])
    with pytest.raises(WorkerStartError, match="ended with code 9"):
        await process.task
    assert process.serving == []


async def test_readiness_may_follow_the_workers(run: Callable[..., Run]) -> None:
    async with worker() as (serving, endpoint):
        config = configured(endpoint, admin={"port": 0, "ready_without_workers": False})
        addresses = await run(config).ready()
        async with client(addresses.admin_url) as admin:
            assert (await admin.get("/readyz")).status_code == 200
            await serving.server.close(drain_timeout=0)
            await until_says(admin, "/readyz", 503)
            assert (await admin.get("/livez")).status_code == 200
            assert (await admin.get("/startupz")).status_code == 200
            again = Worker()
            await again.server.listen(endpoint)
            await until_says(admin, "/readyz", 200)
            await again.server.close(drain_timeout=0)


async def test_readiness_outlives_the_workers(run: Callable[..., Run]) -> None:
    async with worker() as (serving, endpoint):
        addresses = await run(configured(endpoint)).ready()
        async with client(addresses.admin_url) as admin:
            await serving.server.close(drain_timeout=0)
            async with asyncio.timeout(5):
                while (
                    'worker_state{state="ready"' + f',worker="{endpoint}"}} 1.0'
                    in (await admin.get("/metrics")).text
                ):
                    await asyncio.sleep(0.01)
            assert (await admin.get("/readyz")).status_code == 200


async def until_says(admin: httpx.AsyncClient, path: str, status: int) -> None:
    async with asyncio.timeout(5):
        while (await admin.get(path)).status_code != status:
            await asyncio.sleep(0.01)


async def test_a_child_that_is_ready_again_is_connected_to_at_once(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever waits for the end of a pause waits longer than any test.
    monkeypatch.setattr(Backoff, "failed", lambda backoff: 36_000.0)
    path = tmp_path / "s"
    arguments = ("serve", "--engine", "sim", "--listen", f"unix://{path}", "--admin-port", "0")
    child = Child(
        "worker-0",
        [sys.executable, "-m", "nnrp_backend", *arguments],
        socket_path=path,
        restarts=Restarts(first=0.01),
    )
    follow = {"port": 0, "ready_without_workers": False}
    config = configured(f"unix://{path}", admin=follow)
    (spec,) = config.workers
    config = config.model_copy(update={"workers": (spec.model_copy(update={"name": child.name}),)})
    addresses = await run(config, children=[child]).ready()
    async with client(addresses.admin_url) as admin:
        assert (await admin.get("/readyz")).status_code == 200
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await until_says(admin, "/readyz", 503)
        await until_says(admin, "/readyz", 200)


async def test_a_stop_request_while_a_child_starts_ends_both(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    child = Child(
        "worker-0",
        [sys.executable, "-c", "import time; time.sleep(60)"],
        socket_path=tmp_path / "s",
    )
    process = run(configured(f"unix://{tmp_path}/s"), children=[child])
    await until(lambda: child.pid)
    process.stop()
    await process.task
    assert child.pid is None
    assert process.serving == []


def test_tls_is_for_tls_endpoints(tmp_path: Path) -> None:
    certificates: Certificates = make_certificates(tmp_path)
    plain = _spec(WorkerConfig(endpoint="tcp://w:1"))
    assert plain.ssl is None
    trusting = WorkerConfig(endpoint="nnrps://w", tls={"ca_file": certificates.authority})  # type: ignore[arg-type]
    context = _spec(trusting).ssl
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    nonsense = WorkerConfig(endpoint="nnrps://w", tls={"ca_file": __file__})  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"test_process\.py: OpenSSL cannot use it"):
        _spec(nonsense)
