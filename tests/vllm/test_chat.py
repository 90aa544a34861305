"""Every kind of chat answer, streamed and whole, from a real engine with random weights."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from nnrp_backend.client import NnrpClient
from nnrp_backend.profile.envelope import NnrpOptions
from nnrp_backend.profile.errors import ProfileError
from tests.vllm.answers import Answer, ask, ask_streamed, chat
from tests.vllm.worker import TINY, Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "strict": True, "parameters": PARAMETERS},
}


async def both(client: NnrpClient, **body: Any) -> tuple[Answer, Answer]:
    """Ask for the same answer whole and streamed; the seed makes them the same."""
    options = {"include_usage": True}
    return (
        await ask(client, chat(**body)),
        await ask_streamed(client, chat(stream=True, stream_options=options, **body)),
    )


async def test_text_and_usage_are_the_same_streamed_and_whole(client: NnrpClient) -> None:
    whole, streamed = await both(client, max_tokens=40, ignore_eos=True)
    assert whole.choices[0].text
    assert streamed.choices == whole.choices
    assert streamed.usage == whole.usage
    assert whole.usage["completion_tokens"] == 40
    assert whole.choices[0].finish_reason == "length"


async def test_several_choices_with_logprobs(client: NnrpClient) -> None:
    whole, streamed = await both(client, n=3, max_tokens=12, logprobs=True, top_logprobs=2)
    assert len(whole.choices) == 3
    assert len({choice.text for choice in whole.choices}) == 3
    for choice in whole.choices:
        assert "".join(token for token, _ in choice.tokens)
        assert all(logprob <= 0 for _, logprob in choice.tokens)
    assert streamed.choices == whole.choices


def only_call(answer: Answer) -> Any:
    """Return the arguments of the one tool call, which is valid.

    As a value: vLLM writes a whole call's arguments anew, and streams those of the model.
    """
    ((name, arguments),) = answer.choices[0].tools
    assert name == "get_weather"
    value = json.loads(arguments)
    jsonschema.validate(value, PARAMETERS)
    return value


async def test_a_required_tool_call(client: NnrpClient) -> None:
    whole, streamed = await both(client, tools=[WEATHER], tool_choice="required", max_tokens=200)
    assert only_call(streamed) == only_call(whole)
    for answer in (whole, streamed):
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].text == ""


async def test_a_named_tool_call(client: NnrpClient) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole, streamed = await both(client, tools=[WEATHER], tool_choice=named, max_tokens=200)
    assert only_call(streamed) == only_call(whole)
    for answer in (whole, streamed):
        assert answer.choices[0].finish_reason == "stop"


async def test_a_json_schema_answer(client: NnrpClient) -> None:
    schema = {"name": "weather", "strict": True, "schema": PARAMETERS}
    answer = {"type": "json_schema", "json_schema": schema}
    whole, streamed = await both(client, response_format=answer, max_tokens=200)
    jsonschema.validate(json.loads(whole.choices[0].text), PARAMETERS)
    assert streamed.choices == whole.choices


async def test_reasoning_comes_under_our_key(client: NnrpClient) -> None:
    tokens = json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]
    (end,) = [token["id"] for token in tokens if token["content"] == "</think>"]
    whole, streamed = await both(
        client,
        chat_template_kwargs={"thinking": True},
        max_tokens=60,
        ignore_eos=True,
        logit_bias={str(end): 4},  # of its own accord a random model rarely stops thinking
    )
    assert whole.choices[0].reasoning
    assert whole.choices[0].text
    assert streamed.choices == whole.choices


async def test_requests_with_one_id_do_not_meet_in_the_engine(client: NnrpClient) -> None:
    """vLLM aborts by id: when one of two twins is cancelled, the other must not notice."""
    body = {"stream": True, "max_tokens": 600, "ignore_eos": True}
    payload = chat(request_id="same", **body)
    twin = asyncio.create_task(ask_streamed(client, payload))
    async with client.stream(payload) as stream:
        await anext(stream)
    answer = await twin
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": "nope"}, "unsupported_model", "model"),
        ({"max_tokens": -1}, "invalid_backend_request", "max_tokens"),
        ({"temperature": "hot"}, "invalid_backend_request", "temperature"),
        ({"top_logprobs": 50, "logprobs": True}, "invalid_backend_request", "logprobs"),
        ({"stop": ["a", 5]}, "invalid_backend_request", "stop"),
        ({"structured_outputs": {"regex": "((("}}, "invalid_backend_request", None),
        (
            {"messages": [{"role": "user", "content": "hello " * 3000}]},
            "context_length_exceeded",
            "messages",
        ),
    ],
)
async def test_what_vllm_refuses(
    client: NnrpClient, stream: bool, body: dict[str, Any], code: str, param: str | None
) -> None:
    with pytest.raises(ProfileError) as refused:
        await (ask_streamed if stream else ask)(client, chat(stream=stream, **body))
    assert (refused.value.code, refused.value.param) == (code, param)
    assert refused.value.type == "invalid_request_error"
    for internal in ("Traceback", "vllm", "/", "parameter="):
        assert internal not in refused.value.message


async def test_the_worker_says_what_it_offers(worker: Worker, client: NnrpClient) -> None:
    record = await client.capabilities()
    assert [operation.name for operation in record.operations] == [
        "chat.completions.create",
        "models.list",
    ]
    (model,) = record.models
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("tiny", "vllm", 2048)
    assert str(TINY) not in json.dumps(model)
    assert [m["id"] if isinstance(m, dict) else m for m in worker.ready["models"]] == ["tiny"]


async def test_diagnostics_tell_of_pressure_and_of_the_prefix_cache(client: NnrpClient) -> None:
    prompt = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 20}]
    payload = chat(
        messages=prompt, stream=True, max_tokens=2, nnrp=NnrpOptions(diagnostics=True, credit=100)
    )
    fields: dict[str, Any] = {}
    for _ in range(2):  # the second time finds the prompt in the cache
        async with client.stream(payload) as stream:
            events = [json.loads(event) async for event in stream]
        for event in events:
            fields |= event["diagnostics"] if event["type"] == "response.diagnostics" else {}
    assert fields["engine"] == "vllm"
    assert fields["pressure"]["capacity"] == 16
    assert fields["cache"]["cached_tokens"] > 0


def test_vllms_own_metrics_are_on_the_admin_port(worker: Worker) -> None:
    metrics = worker.metrics()
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:e2e_request"):
        assert name in metrics
