import asyncio
import json

import pytest

from nnrp_backend.adapter.adapter import Adapter
from nnrp_backend.adapter.sim import SimEngine
from nnrp_backend.client import ConnectError
from nnrp_backend.probe import ProbeReport, probe_worker, render_record, render_report
from nnrp_backend.server import NnrpServer, ServerOperation
from nnrp_backend.transport.endpoint import Endpoint
from tests.support.waiting import until

ANYWHERE = "tcp://127.0.0.1:0"


@pytest.fixture
def adapter() -> Adapter:
    return Adapter(SimEngine())


async def probe_service(service: object) -> ProbeReport:
    server = NnrpServer(service, max_in_flight=7)  # type: ignore[arg-type]
    endpoint = await server.listen(ANYWHERE)
    try:
        return await probe_worker(endpoint, timeout=2.0)
    finally:
        await server.close()


def answering(event: dict[str, object]) -> object:
    """Make a service that ends every operation with one event."""

    def service(operation: ServerOperation) -> None:
        operation.complete(json.dumps(event).encode())

    return service


async def test_a_worker_that_works(adapter: Adapter) -> None:
    report = await probe_service(adapter.handle)
    assert report.ok
    assert report.problem is None
    assert report.ours
    assert report.in_flight_limit == 7
    assert report.adapter == "nnrp-backend-sim"
    assert report.levels == (1,)
    assert report.operations == ("chat.completions.create", "models.list")
    assert report.models == ("sim", "sim-reasoner", "backend-error")
    assert 0 < report.connect_ms < 2000
    assert 0 < report.answer_ms < 2000
    assert adapter.running == 0, "it cost the engine nothing"


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"type": "response.completed", "body": {}}, "ended as result"),
        (
            {"type": "response.error", "error": {"code": "backend_error", "message": "x"}},
            "was refused with backend_error",
        ),
    ],
)
async def test_a_worker_that_answers_nonsense(event: dict[str, object], problem: str) -> None:
    adapter = Adapter(SimEngine())

    def service(operation: ServerOperation) -> None:
        if b"models.list" in operation.payload:
            adapter.handle(operation)
        else:
            answering(event)(operation)  # type: ignore[operator]

    report = await probe_service(service)
    assert not report.ok
    assert report.problem == f"a chat without messages {problem}"


async def test_a_worker_without_a_capability_document() -> None:
    missing = {"type": "response.error", "error": {"code": "missing_messages", "message": "x"}}
    report = await probe_service(answering(missing))
    assert report.ok
    assert report.adapter is None
    assert report.models == ()


async def test_a_worker_that_drops() -> None:
    def service(operation: ServerOperation) -> None:
        operation.drop(4)

    report = await probe_service(service)
    assert report.problem == "a chat without messages ended as dropped"


async def test_nobody_there() -> None:
    server = NnrpServer(lambda operation: None)
    endpoint = await server.listen(ANYWHERE)
    await server.close()
    with pytest.raises(ConnectError, match="cannot connect to"):
        await probe_worker(endpoint, timeout=2.0)


async def test_somebody_who_does_not_speak_nnrp() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(ConnectError):
            await probe_worker(Endpoint.parse(f"tcp://127.0.0.1:{port}"), timeout=2.0)


async def test_a_worker_that_does_not_answer() -> None:
    operations: list[ServerOperation] = []
    server = NnrpServer(operations.append)
    endpoint = await server.listen(ANYWHERE)
    with pytest.raises(TimeoutError):
        await probe_worker(endpoint, timeout=0.1)
    await until(lambda: operations)
    await server.close()


def report(**fields: object) -> ProbeReport:
    values = {
        "endpoint": "unix:///run/w.sock",
        "ok": True,
        "problem": None,
        "ours": True,
        "connect_ms": 1.25,
        "answer_ms": 0.5,
        "in_flight_limit": 4,
    }
    return ProbeReport(**{**values, **fields})  # type: ignore[arg-type]


def test_a_report_for_a_person() -> None:
    assert render_report(
        report(adapter="a", levels=(1, 3), operations=("x", "y"), models=("m",))
    ) == (
        "worker      unix:///run/w.sock ok\n"
        "protocol    NNRP/1, this implementation\n"
        "connected   in 1.25 ms\n"
        "answered    in 0.5 ms\n"
        "in flight   4 operations at most\n"
        "adapter     a\n"
        "levels      1, 3\n"
        "operations  x, y\n"
        "models      m"
    )


def test_a_bad_report_says_why() -> None:
    lines = render_report(report(ok=False, problem="it is broken", ours=False)).splitlines()
    assert lines[0] == "worker      unix:///run/w.sock is not ok: it is broken"
    assert lines[1] == "protocol    NNRP/1, another's"
    assert len(lines) == 5


def test_a_record_for_a_person(adapter: Adapter) -> None:
    lines = render_record(adapter.record).splitlines()
    assert lines[0] == "adapter     nnrp-backend-sim"
    assert lines[1] == "levels      1"
    assert lines[2] == (
        "operation   chat.completions.create (streaming, non_streaming, tool_calls, cancellation)"
    )
    assert lines[3] == "operation   models.list (non_streaming)"
    assert lines[4] == "model       sim (owned by nnrp-sim)"
    assert lines[-1] == "extension   openai_chunk.final"
