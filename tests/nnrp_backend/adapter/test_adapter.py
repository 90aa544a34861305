import asyncio
import contextlib
import gc
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nnrp_backend.adapter import adapter as adapter_module
from nnrp_backend.adapter.adapter import Adapter, offered
from nnrp_backend.adapter.engine import EngineConfigError, EngineDead
from nnrp_backend.adapter.outcomes import Outcome
from nnrp_backend.adapter.sim import SimEngine
from nnrp_backend.client import NnrpClient, OperationStream, Terminal
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.envelope import NnrpOptions, encode_envelope
from nnrp_backend.profile.operations import CHAT, MODELS_LIST
from nnrp_backend.protocol.constants import CancelReason, DropReason
from nnrp_backend.server import NnrpServer
from nnrp_backend.transport.tasks import TaskSet
from tests.support.engines import ScriptedEngine, text_chunks
from tests.support.operations import FakeOperation
from tests.support.waiting import turns, until


def envelope(operation: str = CHAT, **members: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    return {
        "schema_version": "openai-compatible/1",
        "operation": operation,
        "body": body,
        **members,
    }


def submit(adapter: Adapter, payload: bytes | dict[str, Any] | None = None) -> FakeOperation:
    operation = FakeOperation(envelope() if payload is None else payload)
    adapter.handle(operation)  # type: ignore[arg-type]
    return operation


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine()


async def test_a_chat_is_answered(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter)
    assert operation.handler is not None
    assert repr(adapter) == "<Adapter scripted ready [1/1024 running]>"
    await until(lambda: engine.requests)
    engine.feed(*text_chunks("hello"), end=True)
    await until(lambda: operation.done)
    assert operation.text == "hello"
    assert adapter.outcomes == {Outcome.COMPLETED: 1}
    assert adapter.running == 0


async def test_what_is_offered_is_what_is_served(engine: ScriptedEngine) -> None:
    record = offered(engine)
    assert record.serves(CHAT)
    assert record.serves(MODELS_LIST)
    assert not record.serves("embeddings.create"), "the adapter does not map it yet"
    assert record.extends("openai_chunk.final")


async def test_the_model_list_carries_the_capabilities(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter, envelope(MODELS_LIST, body={}))
    assert operation.terminal is not None
    _, event, status = operation.terminal
    assert (event["type"], status) == ("response.completed", 200)
    assert event["body"]["data"][0] == {
        "object": "model",
        "id": "m",
        "owned_by": "tests",
        "max_model_len": 64,
    }
    record = CapabilityRecord.from_models_list(json.dumps(event["body"]).encode())
    assert record is not None
    assert record.document() == adapter.record.document()


async def test_levels_narrow_what_is_offered(engine: ScriptedEngine) -> None:
    engine.levels = (1, 3)
    adapter = Adapter(engine, levels={1})
    assert adapter.record.levels == (1,)
    assert [operation.name for operation in adapter.record.operations] == [CHAT]
    assert submit(adapter, envelope(MODELS_LIST, body={})).error["code"] == "unsupported_operation"


async def test_levels_that_are_not_claimed_take_nothing_away(engine: ScriptedEngine) -> None:
    record = Adapter(engine, levels={1, 3}).record
    assert [operation.name for operation in record.operations] == [CHAT, MODELS_LIST]
    assert record.levels == (1,)


async def test_levels_that_the_engine_has_not(engine: ScriptedEngine) -> None:
    with pytest.raises(EngineConfigError, match="--levels"):
        Adapter(engine, levels={2})


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"not JSON", "invalid_submit_body"),
        (b"[]", "invalid_submit_body"),
        (envelope(schema_version="openai-compatible/2"), "unsupported_schema_version"),
        (envelope("responses.create"), "unsupported_operation"),
        (envelope(body=[]), "invalid_body"),
        (envelope(body={"messages": [{}]}), "missing_model"),
        (envelope(body={"model": "m"}), "missing_messages"),
        (envelope(request_id=5), "invalid_request_id"),
        (envelope(nnrp=[]), "invalid_nnrp_policy"),
        (envelope(body={"model": "m", "messages": [{}], "stream": "yes"}), "invalid_body"),
    ],
    ids=str,
)
async def test_wrong_requests_never_reach_the_engine(
    engine: ScriptedEngine, payload: bytes | dict[str, Any], code: str
) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter, payload)
    assert operation.error["code"] == code
    assert operation.terminal is not None
    assert operation.terminal[2] == 400
    assert engine.requests == []
    assert adapter.outcomes == {Outcome.REFUSED: 1}


async def test_one_operation_too_many_is_refused_with_advice(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine, max_operations=1)
    running = submit(adapter)
    refused = submit(adapter)
    assert refused.sent[0] == ("retry_after", 1000)
    assert refused.error["code"] == "backend_overload"
    assert not running.done
    # What costs the engine nothing is answered all the same, and so is what is wrong.
    assert submit(adapter, envelope(MODELS_LIST, body={})).sent[0][0] == "complete"
    assert submit(adapter, envelope(body={"model": "m"})).error["code"] == "missing_messages"
    assert running.handler is not None
    running.handler.on_cancel(CancelReason.USER_CANCELLED, False)
    assert not submit(adapter).done, "a slot is free again at once"
    await adapter.close()


async def test_two_operations_with_one_client_id_are_two_requests(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    first, second = (submit(adapter, envelope(request_id="same")) for _ in range(2))
    await until(lambda: len(engine.requests) == 2)
    assert engine.requests[0].id != engine.requests[1].id
    assert first.handler is not None
    first.handler.on_cancel(CancelReason.USER_CANCELLED, False)
    await until(lambda: engine.aborted)
    assert engine.aborted == [engine.requests[0].id]
    assert not second.done
    await adapter.close()


async def test_the_engines_death_fails_every_operation(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = Adapter(engine)
    operations = [submit(adapter) for _ in range(3)]
    tasks = TaskSet("test")
    waiting = tasks.start(adapter.wait_dead(), name="death")
    await until(lambda: len(engine.requests) == 3)
    with caplog.at_level(logging.ERROR):
        engine.die("signal 9")
        await until(waiting.done)
    assert waiting.result().reason == "signal 9"
    assert [operation.error["code"] for operation in operations] == ["backend_error"] * 3
    assert "the scripted engine died: signal 9; 3 operations fail" in caplog.text
    assert "signal" not in json.dumps(operations[0].error)
    assert repr(adapter) == "<Adapter scripted dead [0/1024 running]>"
    late = submit(adapter)
    assert late.error["code"] == "backend_error"
    await adapter.close()


async def test_one_operation_that_finds_the_engine_dead_tells_all(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    operations = [submit(adapter) for _ in range(2)]
    await until(lambda: len(engine.requests) == 2)
    engine.feed(EngineDead("scripted", "gone"), to=0)
    await until(lambda: all(operation.done for operation in operations))
    assert [operation.error["code"] for operation in operations] == ["backend_error"] * 2
    assert (await adapter.wait_dead()).reason == "gone"
    assert adapter.outcomes == {Outcome.ERROR: 2}


async def test_waiting_for_the_death_can_be_given_up(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    tasks = TaskSet("test")
    tasks.start(adapter.wait_dead(), name="death")
    await turns()
    tasks.cancel_all()
    await tasks.join()
    engine.die()
    await turns()
    assert adapter.death is None


async def test_closing_aborts_what_the_engine_still_does(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter)
    await until(lambda: engine.requests)
    await adapter.close()
    assert len(engine.aborted) == 1
    assert not operation.done, "answering is the server's part, before"


async def test_closing_does_not_wait_for_an_engine_that_does_not_let_go(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter_module, "CLOSE_SECONDS", 0.01)
    engine.obedient = False
    adapter = Adapter(engine)
    submit(adapter)
    await until(lambda: engine.requests)
    async with asyncio.timeout(5):
        await adapter.close()
    assert "1 requests did not let go of the engine" in caplog.text
    engine.feed(end=True)


@pytest.mark.parametrize(
    "policy", [{"deadline_ms": 10**400}, {"timeout_ms": 10**400}, {"credit": 10**400}], ids=str
)
async def test_bounds_past_all_numbers_are_none(
    engine: ScriptedEngine, policy: dict[str, int]
) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter, envelope(nnrp=policy))
    await until(lambda: engine.requests)
    engine.feed(*text_chunks("hello"), end=True)
    await until(lambda: operation.done)
    assert operation.text == "hello"
    assert adapter.running == 0


async def test_a_request_that_was_read_is_not_kept(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter)
    assert operation.payload == b""
    await adapter.close()


async def test_a_stall_timeout_of_the_workers_own(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine, stall_timeout=0.01)
    operation = submit(adapter)
    await until(lambda: operation.done)
    assert operation.error["code"] == "request_timeout"
    assert adapter.outcomes == {Outcome.STALLED: 1}


async def test_a_supersede_is_a_drop_with_its_reason(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    operation = submit(adapter)
    assert operation.handler is not None
    operation.handler.on_cancel(CancelReason.SUPERSEDED, False)
    assert operation.terminal == ("drop", DropReason.SUPERSEDED)
    assert adapter.outcomes == {Outcome.SUPERSEDED: 1}
    await adapter.close()


# --- over a real connection ---------------------------------------------------------------------


@asynccontextmanager
async def connected(adapter: Adapter) -> AsyncIterator[tuple[NnrpServer, NnrpClient]]:
    server = NnrpServer(adapter.handle)
    endpoint = await server.listen("tcp://127.0.0.1:0")
    try:
        async with NnrpClient(endpoint) as client:
            yield server, client
    finally:
        await server.close()
        await adapter.close()


def sim(text: str, *, nnrp: NnrpOptions | None = None, **fields: Any) -> bytes:
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], **fields}
    return encode_envelope(CHAT, json.dumps(body).encode(), nnrp=nnrp)


def error_of(terminal: Terminal | None) -> dict[str, Any]:
    assert terminal is not None
    return json.loads(terminal.body)["error"]


async def texts(stream: OperationStream) -> str:
    return "".join([json.loads(event).get("delta", "") async for event in stream])


async def test_many_streams_on_one_connection() -> None:
    adapter = Adapter(SimEngine())
    async with connected(adapter) as (_, client):

        async def run(count: int) -> str:
            async with client.stream(sim(f"/sim tokens={count} delay_ms=1", stream=True)) as stream:
                return await texts(stream)

        answers = await asyncio.gather(*(run(count) for count in range(1, 17)))
    assert answers == [" ".join(f"tok{n}" for n in range(count)) for count in range(1, 17)]
    assert adapter.outcomes == {Outcome.COMPLETED: 16}


async def test_leaving_a_stream_reaches_the_engine() -> None:
    engine = SimEngine()
    async with connected(Adapter(engine)) as (server, client):
        async with client.stream(sim("/sim tokens=100000 delay_ms=1", stream=True)) as stream:
            await anext(stream)
            assert engine.pressure().running == 1
        await until(lambda: engine.pressure().running == 0)
        await until(lambda: server.in_flight == 0)


async def test_a_client_that_vanishes_reaches_the_engine() -> None:
    engine = SimEngine()
    adapter = Adapter(engine)
    async with connected(adapter) as (_, client):
        tasks = TaskSet("test")
        tasks.start(client.request(sim("/sim hang=1")), name="request")
        await until(lambda: engine.pressure().running == 1)
        await client.close()
        await until(lambda: engine.pressure().running == 0)
        await tasks.join()
    assert adapter.outcomes == {Outcome.LOST: 1}


async def test_the_deadline_of_a_hanging_engine() -> None:
    async with connected(Adapter(SimEngine())) as (_, client):
        terminal = await client.request(sim("/sim hang=1", nnrp=NnrpOptions(deadline_ms=30)))
        assert terminal.drop_reason == DropReason.DEADLINE_EXPIRED
        unix_ms = int(time.time() * 1000) + 30
        terminal = await client.request(sim("/sim hang=1"), deadline_unix_ms=unix_ms)
        assert terminal.drop_reason == DropReason.DEADLINE_EXPIRED


async def test_overload_comes_with_advice() -> None:
    async with connected(Adapter(SimEngine(), max_operations=1)) as (_, client):
        async with client.stream(sim("/sim hang=1", stream=True)):
            terminal = await client.request(sim("hello"))
        assert error_of(terminal)["code"] == "backend_overload"
        assert terminal.retry_after_ms == 1000
        assert terminal.status_code == 503


async def test_a_stalled_reader_holds_nobody_else() -> None:
    async with connected(Adapter(SimEngine())) as (_, client):
        stalled = sim("/sim tokens=1000", nnrp=NnrpOptions(credit=4), stream=True)
        async with client.stream(stalled) as first:
            received = [await anext(first) for _ in range(4)]
            other = sim("/sim tokens=1000", stream=True)
            async with client.stream(other) as second:
                assert (await texts(second)).endswith("tok999")
            assert len(received) == 4
            first.operation.grant(2000)
            assert (await texts(first)).endswith("tok999")


async def test_a_grant_that_comes_with_the_submit_is_newer_than_its_window() -> None:
    async with connected(Adapter(SimEngine())) as (_, client):
        payload = sim("/sim tokens=9", nnrp=NnrpOptions(credit=0), stream=True)
        async with client.stream(payload) as stream:
            stream.operation.grant(100)  # in the same write
            async with asyncio.timeout(5):
                assert (await texts(stream)).endswith("tok8")


async def test_a_window_of_nothing_holds_everything_but_the_end() -> None:
    async with connected(Adapter(SimEngine())) as (server, client):
        options = NnrpOptions(credit=0, diagnostics=True)
        async with client.stream(sim("/sim tokens=3", nnrp=options, stream=True)) as stream:
            whole = await client.request(sim("/sim tokens=3", nnrp=NnrpOptions(credit=0)))
            assert whole.status_code == 200
            assert server.in_flight == 1
            assert repr(stream) == "<OperationStream open [0 events waiting]>"
            stream.operation.cancel()
            assert await texts(stream) == ""
        assert stream.terminal is not None
        assert stream.terminal.drop_reason == DropReason.PEER_CANCELLED


@pytest.mark.parametrize("script", ["tokens=3", "error=backend_error", "tokens=3 hang=1"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_ended_operation_is_freed_without_the_garbage_collector(
    script: str, stream: bool
) -> None:
    """What a request leaves behind may be megabytes, and engines freeze the collector."""
    adapter = Adapter(SimEngine())
    async with connected(adapter) as (server, client):
        await client.request(sim("/sim tokens=1", stream=stream))
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            options = NnrpOptions(deadline_ms=60_000, timeout_ms=60_000)
            asked = client.request(sim(f"/sim {script}", nnrp=options, stream=stream))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1 if "hang" in script else 5):
                    await asked
            await until(lambda: server.in_flight == 0)
            await turns()
            gc.collect()
            kinds = {type(thing).__name__ for thing in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert not kinds & {"ChatOperation", "ServerOperation", "ChatWork", "Operation"}


async def test_a_result_that_fits_no_packet(engine: ScriptedEngine) -> None:
    adapter = Adapter(engine)
    async with connected(adapter) as (_, client):
        tasks = TaskSet("test")
        asked = tasks.start(client.request(sim("hi")), name="request")
        await until(lambda: engine.requests)
        engine.feed(b'{"object":"chat.completion","choices":[],"x":"%b"}' % (b"x" * 2**26))
        terminal = await asyncio.wait_for(asked, 30)
        assert error_of(terminal)["code"] == "result_too_large"
        assert client.connected
        assert adapter.outcomes == {Outcome.ERROR: 1}


async def test_diagnostics_over_the_wire() -> None:
    async with connected(Adapter(SimEngine())) as (_, client):
        payload = sim("/sim tokens=1", nnrp=NnrpOptions(diagnostics=True), stream=True)
        async with client.stream(payload) as stream:
            event = json.loads(await anext(stream))
            assert event["type"] == "response.diagnostics"
            assert event["diagnostics"]["transport"] == "tcp"
            assert await texts(stream) == "tok0"
