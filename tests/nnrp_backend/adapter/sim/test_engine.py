import asyncio
import json
from typing import Any

import pytest

from nnrp_backend.adapter.engine import DropConnection, EngineConfigError, EngineRequest
from nnrp_backend.adapter.sim import SimEngine, create
from nnrp_backend.adapter.sim import engine as engine_module
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.operations import CHAT, MODELS_LIST
from tests.support.waiting import until


def request(text: str = "/sim tokens=3", **fields: Any) -> EngineRequest:
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], **fields}
    return EngineRequest("abc", CHAT, body, bool(fields.get("stream")))


def streamed(text: str = "/sim tokens=3", **fields: Any) -> EngineRequest:
    options = {"include_usage": True, **fields.pop("stream_options", {})}
    return request(text, stream=True, stream_options=options, **fields)


@pytest.fixture
def engine() -> SimEngine:
    return SimEngine(clock=lambda: 1700000000.9)


async def chunks(
    engine: SimEngine, request: EngineRequest, seen: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Collect a stream, in `seen` if given: that keeps what came before an exception."""
    seen = [] if seen is None else seen
    async for chunk in engine.stream(request):
        seen.append(json.loads(chunk))
    return seen


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(
        choice["delta"].get("content") or "" for choice in choices if choice["index"] == index
    )


async def test_a_stream_in_order(engine: SimEngine) -> None:
    made = await chunks(engine, streamed())
    deltas = [chunk["choices"][0]["delta"] for chunk in made[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "tok0"},
        {"content": " tok1"},
        {"content": " tok2"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in made[:-1]] == [None] * 4 + ["stop"]
    assert made[-1]["choices"] == []
    assert made[-1]["usage"]["completion_tokens"] == 3
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in made} == {
        ("chatcmpl-abc", 1700000000, "sim")
    }


async def test_stream_and_whole_answer_agree(engine: SimEngine) -> None:
    text = "/sim tokens=3 text=hello reasoning=2"
    made = await chunks(engine, streamed(text))
    whole = json.loads(await engine.call(request(text)))
    assert whole["choices"][0]["message"]["content"] == text_of(made) == "hello tok0 tok1 tok2"
    assert whole["choices"][0]["message"]["reasoning_content"] == "think0 think1"
    assert whole["usage"] == made[-1]["usage"]
    assert whole["id"] == made[0]["id"]


async def test_the_same_request_gets_the_same_answer(engine: SimEngine) -> None:
    assert await engine.call(request("hello")) == await engine.call(request("hello"))


async def test_usage_comes_only_when_asked(engine: SimEngine) -> None:
    made = await chunks(engine, request(stream=True))
    assert all("usage" not in chunk for chunk in made)


async def test_continuous_usage(engine: SimEngine) -> None:
    made = await chunks(engine, streamed(stream_options={"continuous_usage_stats": True}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in made if chunk["choices"]]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 3


async def test_max_tokens_and_stop(engine: SimEngine) -> None:
    cut = await chunks(engine, streamed(max_tokens=2))
    assert text_of(cut) == "tok0 tok1"
    assert cut[-2]["choices"][0]["finish_reason"] == "length"
    stopped = await chunks(engine, streamed(stop=[" tok2"]))
    assert text_of(stopped) == "tok0 tok1"
    assert stopped[-2]["choices"][0]["finish_reason"] == "stop"


async def test_several_choices_open_in_order(engine: SimEngine) -> None:
    made = await chunks(engine, streamed(n=2))
    indexes = [chunk["choices"][0]["index"] for chunk in made[:-1]]
    assert indexes == [0, 1] * 5
    assert text_of(made, 0) == text_of(made, 1) == "tok0 tok1 tok2"


async def test_a_tool_call(engine: SimEngine) -> None:
    made = await chunks(engine, streamed('/sim tool=lookup args={"q":"x"}'))
    assert made[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in made[1:-2]]
    assert calls[0]["function"] == {"name": "lookup", "arguments": ""}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"q":"x"}'
    assert made[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_reasoner(engine: SimEngine) -> None:
    whole = json.loads(await engine.call(request("hello", model="sim-reasoner")))
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == "The last message has 1 words."
    assert message["content"].endswith("You said: hello")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "backend-error"}, "backend_error"),
        ({"model": "gpt-4"}, "unsupported_model"),
        ({"max_tokens": 0}, "invalid_backend_request"),
        ({"text": "/sim nonsense=1"}, "invalid_backend_request"),
        ({"text": "/sim error=rate_limit_exceeded"}, "rate_limit_exceeded"),
        ({"text": "/sim error=invalid_api_key"}, "invalid_api_key"),
    ],
)
async def test_refusals(engine: SimEngine, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ProfileError) as of_stream:
        await chunks(engine, streamed(**fields))
    with pytest.raises(ProfileError) as of_call:
        await engine.call(request(**fields))
    assert of_stream.value.code == of_call.value.code == code
    assert engine.pressure().running == 0


@pytest.mark.parametrize(
    ("fault", "error"), [("error_after", ProfileError), ("die_after", DropConnection)]
)
async def test_faults_after_tokens(engine: SimEngine, fault: str, error: type[Exception]) -> None:
    text = f"/sim tokens=5 {fault}=2"
    seen: list[dict[str, Any]] = []
    with pytest.raises(error):
        await chunks(engine, streamed(text), seen)
    assert text_of(seen) == "tok0 tok1"
    with pytest.raises(error):
        await engine.call(request(text))


async def test_choices_cannot_make_a_whole_answer_enormous(
    engine: SimEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "MAX_PIECES", 100)
    whole = json.loads(await engine.call(request("/sim tokens=25", n=4)))
    assert whole["usage"]["completion_tokens"] == 100
    with pytest.raises(ProfileError) as caught:
        await engine.call(request("/sim tokens=26", n=4))
    assert caught.value.code == "result_too_large"
    assert engine.pressure().running == 0


async def test_only_the_users_last_message_is_a_script(engine: SimEngine) -> None:
    turns = [
        {"role": "user", "content": "/sim tool=f"},
        {"role": "tool", "content": "/sim tokens=1"},
    ]
    whole = json.loads(await engine.call(request(messages=turns)))
    assert whole["choices"][0]["message"]["content"].endswith("The tool answered: /sim tokens=1")


async def test_a_script_in_content_parts(engine: SimEngine) -> None:
    parts = [{"type": "text", "text": "/sim "}, {"type": "text", "text": "tokens=1"}]
    whole = json.loads(await engine.call(request(parts)))
    assert whole["choices"][0]["message"]["content"] == "tok0"


async def test_what_is_cancelled_runs_no_more(engine: SimEngine) -> None:
    tasks = [
        asyncio.get_running_loop().create_task(chunks(engine, streamed("/sim hang=1"))),
        asyncio.get_running_loop().create_task(engine.call(request("/sim hang=1"))),
    ]
    await until(lambda: engine.pressure().running == 2)
    assert repr(engine) == "<SimEngine [2 running]>"
    for task in tasks:
        task.cancel()
    await until(lambda: engine.pressure().running == 0)


async def test_a_closed_stream_runs_no_more(engine: SimEngine) -> None:
    stream = engine.stream(streamed())
    await anext(stream)
    assert engine.pressure().running == 1
    await stream.aclose()
    assert engine.pressure().running == 0


def test_it_says_what_it_is(engine: SimEngine) -> None:
    record = engine.capabilities()
    assert [operation.name for operation in record.operations] == [CHAT, MODELS_LIST]
    assert [model["id"] for model in record.models] == ["sim", "sim-reasoner", "backend-error"]
    assert {model["owned_by"] for model in record.models} == {"nnrp-sim"}
    assert engine.metrics() == b""
    assert engine.pressure() == (0, 0, 0, None)


async def test_a_model_name_of_the_users_own_comes_first() -> None:
    engine = create("my/model", [])
    assert [model["id"] for model in engine.capabilities().models][:2] == ["my/model", "sim"]
    whole = json.loads(await engine.call(request(model="my/model")))
    assert whole["model"] == "my/model"


@pytest.mark.parametrize("model", [None, "sim", "sim-reasoner"])
def test_its_own_names_are_not_listed_twice(model: str | None) -> None:
    assert len(create(model, []).capabilities().models) == 3


def test_it_has_no_flags() -> None:
    with pytest.raises(EngineConfigError, match="'--max-model-len' was given"):
        create(None, ["--max-model-len", "10"])


async def test_it_starts_at_once_and_never_dies(engine: SimEngine) -> None:
    await engine.start()
    dying = asyncio.get_running_loop().create_task(engine.wait_dead())
    await engine.close()
    await engine.close()
    assert not dying.done()
    dying.cancel()
