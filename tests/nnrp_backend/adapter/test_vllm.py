"""The engine against a stand-in for vLLM; the real one is in tests/vllm.

The stand-in answers in vLLM 0.32's forms: SSE strings, error objects, exceptions.
"""

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pydantic
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from nnrp_backend.adapter.engine import EngineConfigError, EngineDead, EngineRequest, Pressure
from nnrp_backend.adapter.vllm import Vllm, VllmEngine, create, load_vllm
from nnrp_backend.adapter.vllm_process import Interrupted
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.operations import CHAT, EMBEDDINGS, MODELS_LIST
from tests.support.waiting import until

CHUNK = 'data: {"id":"chatcmpl-r1","choices":[{"index":0,"delta":{"content":"é"}}]}\n\n'
DONE = "data: [DONE]\n\n"


class ChatRequest(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    messages: list[Any]
    request_id: str
    temperature: float | None = None


class Whole(pydantic.BaseModel):
    id: str


class DeadError(Exception):
    pass


class Client:
    """vLLM's `EngineClient`, as far as the engine asks it."""

    def __init__(self) -> None:
        self.is_dead = False
        self.asked = 0
        self.aborted: list[str] = []
        self.traces = False
        self.vllm_config = Namespace(
            scheduler_config=Namespace(max_num_seqs=8, policy="fcfs"),
            parallel_config=Namespace(data_parallel_size=2),
        )

    @property
    def errored(self) -> bool:
        self.asked += 1
        return self.is_dead

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def is_tracing_enabled(self) -> bool:
        return self.traces

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def get_num_unfinished_requests(self) -> int:
        return 3


class Stand:
    """A stand-in for vLLM; `answer` is what its chat serving object does."""

    def __init__(self) -> None:
        self.client = Client()
        self.registry = CollectorRegistry()
        self.answer: Callable[[ChatRequest, Any], Any] = lambda chat, http: Whole(id="x")
        self.has_chat = True
        self.started_with: list[str] = []
        self.open_clients = 0
        self.closed_streams = 0
        self.failure: BaseException | None = None

    def load(self, model: str, flags: Any) -> Vllm:
        return Vllm(
            version="0.32.0",
            on_cpu=False,
            parse=self.parse,
            open_client=self.open_client,
            init_state=self.init_state,
            chat_request=ChatRequest,
            describe=self.describe,
            dead_error=DeadError,
            registry=lambda: self.registry,
        )

    def parse(self, arguments: list[str]) -> Namespace:
        self.started_with = arguments
        return Namespace()

    @asynccontextmanager
    async def open_client(self, args: Namespace) -> AsyncIterator[Client]:
        if self.failure:
            raise self.failure
        self.open_clients += 1
        yield self.client
        self.open_clients -= 1

    async def init_state(self, client: Client, state: Any, args: Any, tasks: Any) -> None:
        if self.has_chat:
            state.openai_serving_chat = self
        state.openai_serving_models = self

    async def show_available_models(self) -> Namespace:
        card = {
            "id": "tiny",
            "object": "model",
            "created": 1,
            "owned_by": "vllm",
            "root": "/models/tiny",
            "parent": None,
            "max_model_len": 2048,
            "permission": [{"id": "modelperm-1"}],
        }
        return Namespace(data=[Namespace(model_dump=lambda: card)])

    async def create_chat_completion(self, chat: ChatRequest, http: Any) -> Any:
        answer = self.answer(chat, http)
        return await answer if asyncio.iscoroutine(answer) else answer

    def describe(self, exc: Exception) -> Any:
        code = 400 if isinstance(exc, ValueError) else 500
        return error_response(str(exc), code)

    async def events(self, *events: str) -> AsyncGenerator[str]:
        try:
            for event in events:
                yield event
        finally:
            self.closed_streams += 1


def error_response(message: str, code: int, param: str | None = None) -> Namespace:
    error = {"message": message, "type": "x", "param": param, "code": code}
    return Namespace(error=Namespace(model_dump=lambda: error))


def request(stream: bool = False, operation: str = CHAT, **fields: Any) -> EngineRequest:
    body = {"model": "tiny", "messages": [], "stream": stream, **fields.pop("body", {})}
    return EngineRequest(id="r1", operation=operation, body=body, stream=stream, **fields)


async def drain(engine: VllmEngine, asked: EngineRequest) -> list[bytes]:
    async with aclosing(engine.stream(asked)) as chunks:
        return [chunk async for chunk in chunks]


@pytest.fixture
def stand() -> Stand:
    return Stand()


@pytest.fixture
async def engine(stand: Stand) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine("tiny", ["--seed", "1"], load=stand.load)
    await engine.start()
    yield engine
    await engine.close()
    assert stand.open_clients == 0


class TestStart:
    async def test_vllm_gets_the_flags_and_its_version_is_known(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        assert stand.started_with == ["--model", "tiny", "--seed", "1"]
        assert (engine.name, engine.version) == ("vllm", "0.32.0")
        assert repr(engine) == "<VllmEngine 'tiny' [3 requests]>"

    async def test_it_offers_chat_and_the_models_without_paths(self, engine: VllmEngine) -> None:
        record = engine.capabilities()
        assert [o.name for o in record.operations] == [CHAT, MODELS_LIST]
        chat = record.operations[0]
        assert (chat.streaming, chat.non_streaming, chat.tool_calls, chat.cancellation) == (
            True, True, True, True,
        )  # fmt: skip
        assert record.models == (
            {
                "id": "tiny",
                "object": "model",
                "created": 1,
                "owned_by": "vllm",
                "max_model_len": 2048,
            },
        )

    async def test_flags_without_effect_are_reported(
        self, stand: Stand, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = VllmEngine("tiny", ["--port", "80"], load=stand.load)
        await engine.start()
        await engine.close()
        assert "--port: no effect" in caplog.text

    async def test_closing_twice_or_before_the_start_is_fine(self, stand: Stand) -> None:
        engine = VllmEngine("tiny", load=stand.load)
        await engine.close()
        await engine.start()
        await engine.close()
        await engine.close()
        assert stand.open_clients == 0
        assert repr(engine) == "<VllmEngine 'tiny' [not running]>"

    async def test_a_model_that_cannot_chat_is_refused(self, stand: Stand) -> None:
        stand.has_chat = False
        engine = VllmEngine("tiny", load=stand.load)
        with pytest.raises(EngineConfigError, match="tiny does not generate text"):
            await engine.start()
        assert stand.open_clients == 1
        await engine.close()
        assert stand.open_clients == 0

    @pytest.mark.parametrize(
        ("failure", "reason"),
        [
            (ValueError("bad dtype\nsecond line"), "bad dtype"),
            (OSError("no such model"), "no such model"),
            (RuntimeError("Engine core initialization failed."), "Engine core initialization"),
            (KeyError(), "KeyError"),
            (Interrupted(), "interrupted while the model was loading"),
        ],
    )
    async def test_what_vllm_refuses_is_one_line_for_the_operator(
        self, stand: Stand, failure: BaseException, reason: str
    ) -> None:
        stand.failure = failure
        engine = VllmEngine("tiny", load=stand.load)
        with pytest.raises(EngineConfigError) as refused:
            await engine.start()
        assert str(refused.value).startswith(f"vllm engine: {reason}")
        assert "\n" not in str(refused.value)
        await engine.close()

    async def test_a_setting_that_pydantic_refuses_is_one_line_too(self, stand: Stand) -> None:
        with pytest.raises(pydantic.ValidationError) as invalid:
            ChatRequest.model_validate({"messages": 1, "request_id": "x"})
        stand.failure = invalid.value
        engine = VllmEngine("tiny", load=stand.load)
        with pytest.raises(EngineConfigError, match=r"engine: Input should be a valid list$"):
            await engine.start()
        await engine.close()

    async def test_nothing_is_offered_before_the_start(self, stand: Stand) -> None:
        engine = VllmEngine("tiny", load=stand.load)
        with pytest.raises(RuntimeError, match="not started"):
            engine.capabilities()
        assert engine.metrics() == b""
        with pytest.raises(EngineDead):
            await engine.call(request())


class TestCreate:
    def test_it_needs_a_model(self) -> None:
        with pytest.raises(EngineConfigError, match="--model is missing"):
            create(None, [])

    def test_it_refuses_flags_before_anything_is_imported(self) -> None:
        with pytest.raises(EngineConfigError, match="--headless"):
            create("tiny", ["--headless"])

    def test_it_imports_nothing(self) -> None:
        assert repr(create("tiny", [])) == "<VllmEngine 'tiny' [not running]>"
        assert "vllm" not in sys.modules


class TestLoad:
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.environ", {})

    def test_a_missing_vllm_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        monkeypatch.setattr(sys, "path", [])
        with pytest.raises(EngineConfigError, match="not installed"):
            load_vllm("tiny", [])

    def test_a_version_that_was_never_tested_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "vllm", Namespace(__version__="0.33.0"))
        with pytest.raises(EngineConfigError, match=r"0\.33\.0 is installed.*supported: 0\.32\.x"):
            load_vllm("tiny", [])


class TestCall:
    async def test_the_whole_answer_is_json(self, stand: Stand, engine: VllmEngine) -> None:
        stand.answer = lambda chat, http: Whole(id=f"chatcmpl-{chat.request_id}")
        assert await engine.call(request()) == b'{"id":"chatcmpl-r1"}'

    async def test_the_engines_id_is_ours_whatever_the_body_says(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        stand.answer = lambda chat, http: Whole(id=chat.request_id)
        answer = await engine.call(request(body={"request_id": "somebody-else's"}))
        assert answer == b'{"id":"r1"}'

    async def test_unknown_members_reach_vllm(self, stand: Stand, engine: VllmEngine) -> None:
        seen: list[ChatRequest] = []
        stand.answer = lambda chat, http: seen.append(chat) or Whole(id="x")
        await engine.call(request(body={"top_k": 5}))
        assert seen[0].model_extra["top_k"] == 5

    async def test_other_operations_are_refused(self, engine: VllmEngine) -> None:
        with pytest.raises(ProfileError) as refused:
            await engine.call(request(operation=EMBEDDINGS))
        assert refused.value.code == "unsupported_operation"

    @pytest.mark.parametrize(("policy", "priority"), [("fcfs", None), ("priority", 7)])
    async def test_priorities_go_to_a_scheduler_that_has_them(
        self, stand: Stand, policy: str, priority: int | None
    ) -> None:
        stand.client.vllm_config.scheduler_config.policy = policy
        seen: list[ChatRequest] = []
        stand.answer = lambda chat, http: seen.append(chat) or Whole(id="x")
        engine = VllmEngine("tiny", load=stand.load)
        await engine.start()
        await engine.call(request(priority=7))
        assert seen[0].model_extra.get("priority") == priority
        await engine.close()

    @pytest.mark.parametrize("traces", [True, False])
    async def test_a_trace_goes_to_an_engine_that_traces(self, stand: Stand, traces: bool) -> None:
        stand.client.traces = traces
        seen: list[Any] = []
        stand.answer = lambda chat, http: seen.append(http) or Whole(id="x")
        engine = VllmEngine("tiny", load=stand.load)
        await engine.start()
        await engine.call(request(traceparent="00-ab-cd-01"))
        await engine.call(request())
        assert [h and h.headers["traceparent"] for h in seen] == [
            "00-ab-cd-01" if traces else None, None,
        ]  # fmt: skip
        await engine.close()

    async def test_a_cancelled_call_is_cancelled_though_vllm_answers_it(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        waiting = asyncio.Event()

        async def swallow(chat: ChatRequest, http: Any) -> Any:
            try:
                waiting.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # What chat_completion_full_generator does.
                return error_response("Client disconnected", 400)

        stand.answer = swallow
        task = asyncio.create_task(engine.call(request()))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestStream:
    async def test_chunks_are_json_without_framing(self, stand: Stand, engine: VllmEngine) -> None:
        stand.answer = lambda chat, http: stand.events(CHUNK, CHUNK, DONE)
        chunk = CHUNK.removeprefix("data: ").strip().encode()
        assert await drain(engine, request(stream=True)) == [chunk, chunk]
        assert stand.client.aborted == []
        assert stand.closed_streams == 1

    async def test_text_that_looks_like_an_error_is_none(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        text = 'data: {"id":"x","choices":[{"delta":{"content":"data: {\\"error\\": 1}"}}]}\n\n'
        stand.answer = lambda chat, http: stand.events(text, DONE)
        assert len(await drain(engine, request(stream=True))) == 1

    async def test_leaving_early_aborts(self, stand: Stand, engine: VllmEngine) -> None:
        stand.answer = lambda chat, http: stand.events(CHUNK, CHUNK, DONE)
        async with aclosing(engine.stream(request(stream=True))) as chunks:
            await anext(chunks)
        assert stand.client.aborted == ["chatcmpl-r1"]
        assert stand.closed_streams == 1

    async def test_cancelling_the_reader_aborts(self, stand: Stand, engine: VllmEngine) -> None:
        async def endless() -> AsyncGenerator[str]:
            yield CHUNK
            await asyncio.sleep(60)

        stand.answer = lambda chat, http: endless()
        got: list[bytes] = []

        async def read() -> None:
            async with aclosing(engine.stream(request(stream=True))) as chunks:
                async for chunk in chunks:
                    got.append(chunk)

        task = asyncio.create_task(read())
        await until(lambda: got)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stand.client.aborted == ["chatcmpl-r1"]

    async def test_closing_the_engine_below_a_stream_is_no_crash(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        stand.answer = lambda chat, http: stand.events(CHUNK, CHUNK, DONE)
        async with aclosing(engine.stream(request(stream=True))) as chunks:
            await anext(chunks)
            await engine.close()
        assert stand.client.aborted == []


def fail(exc: Exception) -> Callable[[ChatRequest, Any], Any]:
    def answer(chat: ChatRequest, http: Any) -> Any:
        raise exc

    return answer


class TestRefusals:
    """vLLM's three forms of saying no, for both kinds of request."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_returned_error_object(
        self, stand: Stand, engine: VllmEngine, stream: bool
    ) -> None:
        stand.answer = lambda chat, http: error_response("no such model", 404, "model")
        asked = request(stream)
        with pytest.raises(ProfileError) as refused:
            await (drain(engine, asked) if stream else engine.call(asked))
        assert (refused.value.code, refused.value.param) == ("unsupported_model", "model")

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_raised_exception(self, stand: Stand, engine: VllmEngine, stream: bool) -> None:
        stand.answer = fail(ValueError("n must be at least 1"))
        asked = request(stream)
        with pytest.raises(ProfileError, match="n must be at least 1") as refused:
            await (drain(engine, asked) if stream else engine.call(asked))
        assert refused.value.code == "invalid_backend_request"

    async def test_an_error_in_the_middle_of_a_stream(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        error = 'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
        stand.answer = lambda chat, http: stand.events(CHUNK, error, DONE)
        async with aclosing(engine.stream(request(stream=True))) as chunks:
            assert await anext(chunks)
            with pytest.raises(ProfileError) as failed:
                await anext(chunks)
        assert (failed.value.code, failed.value.message) == (
            "backend_error",
            "the engine failed on this request",
        )

    async def test_a_body_that_does_not_validate(self, engine: VllmEngine) -> None:
        with pytest.raises(ProfileError) as refused:
            await engine.call(request(body={"temperature": "hot"}))
        assert (refused.value.code, refused.value.param) == (
            "invalid_backend_request",
            "temperature",
        )

    async def test_an_unexpected_exception_is_logged_and_tells_nothing(
        self, stand: Stand, engine: VllmEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        stand.answer = fail(KeyError("secret"))
        with pytest.raises(ProfileError) as failed:
            await engine.call(request())
        assert failed.value.code == "backend_error"
        assert "secret" not in failed.value.message
        assert "vLLM failed on request r1" in caplog.text
        assert "KeyError" in caplog.text


class TestDeath:
    async def test_a_request_to_a_dead_engine(self, stand: Stand, engine: VllmEngine) -> None:
        stand.answer = fail(DeadError("EngineCore encountered an issue. See stack trace (above)"))
        with pytest.raises(EngineDead, match="EngineCore process is gone"):
            await engine.call(request())

    async def test_a_stream_whose_engine_dies(self, stand: Stand, engine: VllmEngine) -> None:
        error = 'data: {"error": {"message": "EngineCore encountered ...", "code": 500}}\n\n'
        stand.answer = lambda chat, http: stand.events(CHUNK, error, DONE)
        async with aclosing(engine.stream(request(stream=True))) as chunks:
            await anext(chunks)
            stand.client.is_dead = True
            with pytest.raises(EngineDead):
                await anext(chunks)

    async def test_it_is_noticed_without_a_request(
        self, stand: Stand, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nnrp_backend.adapter.vllm.DEATH_POLL_SECONDS", 0.001)
        watch = asyncio.create_task(engine.wait_dead())
        await until(lambda: stand.client.asked > 3)
        assert not watch.done()
        stand.client.is_dead = True
        death = await asyncio.wait_for(watch, 5)
        assert isinstance(death, EngineDead)
        assert repr(engine) == "<VllmEngine 'tiny' [dead]>"

    async def test_an_orderly_end_is_no_death(
        self, stand: Stand, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nnrp_backend.adapter.vllm.DEATH_POLL_SECONDS", 0.001)
        watch = asyncio.create_task(engine.wait_dead())
        await engine.close()
        stand.client.is_dead = True  # vLLM says so of an engine that it has shut down
        await asyncio.wait({watch}, timeout=0.02)
        assert not watch.done()
        watch.cancel()


class TestMetrics:
    @pytest.fixture
    def gauges(self, stand: Stand) -> None:
        for name, values in {
            "vllm:num_requests_running": (3, 2),
            "vllm:num_requests_waiting": (4, 0),
            "vllm:kv_cache_usage_perc": (0.5, 0.25),
        }.items():
            gauge = Gauge(name, "x", ["engine"], registry=stand.registry)
            for rank, value in enumerate(values):
                gauge.labels(rank).set(value)

    @pytest.mark.usefixtures("gauges")
    async def test_pressure_adds_up_the_engines_of_data_parallelism(
        self, engine: VllmEngine
    ) -> None:
        assert engine.pressure() == Pressure(running=5, waiting=4, capacity=16, kv_usage=0.375)

    async def test_pressure_without_vllms_statistics_is_the_front_ends_count(
        self, engine: VllmEngine
    ) -> None:
        assert engine.pressure() == Pressure(running=3, waiting=0, capacity=16, kv_usage=None)

    @pytest.mark.usefixtures("gauges")
    async def test_only_vllms_own_families_are_returned(
        self, stand: Stand, engine: VllmEngine
    ) -> None:
        Counter("process_things", "x", registry=stand.registry)
        text = engine.metrics().decode()
        assert 'vllm:num_requests_running{engine="0"} 3.0' in text
        assert "process_things" not in text
