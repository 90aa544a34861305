"""`nnrp-gateway up` as a user meets it: one command, and the official OpenAI client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.support.http_server import RawClient
from tests.support.processes import Running, running
from tests.support.stack import chat_request, metric, sse, until

GREETED = "Ctrl-C stops it."
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def script(text: str) -> list[Any]:
    return [{"role": "user", "content": f"/sim {text}"}]


class Up:
    """A running `nnrp-gateway up`."""

    def __init__(self, process: Running) -> None:
        self.process = process
        words = [line.split() for line in process.stdout]
        self.api = next(line[1] for line in words if line[:1] == ["API"])
        self.metrics_url = next(line[1] for line in words if line[:1] == ["metrics"])
        self.port = int(self.api.rpartition(":")[2].removesuffix("/v1"))

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.metrics_url, name, labels)

    def client(self, **options: Any) -> openai.OpenAI:
        http = httpx_client()
        return openai.OpenAI(
            base_url=self.api, api_key="none", max_retries=0, http_client=http, **options
        )


def httpx_client() -> Any:
    # The client's own default, without proxies of the surroundings.
    return openai.DefaultHttpxClient(trust_env=False)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with running("nnrp-gateway", "up", "--port", 0, "--admin-port", 0, ready=GREETED) as process:
        yield Up(process)
    assert process.process.returncode == 0
    assert "Traceback" not in process.log, process.log


@pytest.fixture
def own_up() -> Iterator[Up]:
    """One that a test may kill."""
    with running("nnrp-gateway", "up", "--port", 0, "--admin-port", 0, ready=GREETED) as process:
        yield Up(process)


@pytest.fixture(scope="module")
def client(up: Up) -> Iterator[openai.OpenAI]:
    with up.client() as client:
        yield client


# The official client.


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="sim", messages=script("tokens=3"))
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == "sim"
    assert choice.message.role == "assistant"
    assert choice.message.content == "tok0 tok1 tok2"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


def test_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim",
        messages=script("tokens=3"),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    text = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(text) == "tok0 tok1 tok2"
    *_, finish, usage = chunks
    assert finish.choices[0].finish_reason == "stop"
    assert finish.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_stream_helper_accumulates_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="sim", messages=HELLO)
    with client.chat.completions.stream(model="sim", messages=HELLO) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content == "".join(deltas)
    assert final.choices[0].finish_reason == "stop"


def test_several_choices(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="sim", messages=script("tokens=2"), n=3) as stream:
        final = stream.get_final_completion()
    assert [choice.index for choice in final.choices] == [0, 1, 2]
    assert {choice.message.content for choice in final.choices} == {"tok0 tok1"}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_call(client: openai.OpenAI, streamed: bool) -> None:
    request: dict[str, Any] = {
        "model": "sim",
        "messages": script('tool=lookup args={"q":"x"}'),
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "lookup",
                    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
                },
            }
        ],
    }
    if streamed:
        with client.chat.completions.stream(**request) as stream:
            choice = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "lookup"
    assert json.loads(call.function.arguments) == {"q": "x"}


def test_reasoning(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sim", messages=script("reasoning=2 tokens=1"), stream=True
    )
    reasoning = [
        getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        for chunk in answer
        if chunk.choices
    ]
    assert "".join(reasoning)


def test_models(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models][:2] == ["sim", "sim-reasoner"]
    assert client.models.retrieve("sim").owned_by == "nnrp-sim"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such")


async def test_the_async_client(up: Up) -> None:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=up.api, api_key="none", max_retries=0, http_client=http
    ) as client:
        whole = await client.chat.completions.create(model="sim", messages=HELLO)
        stream = await client.chat.completions.create(model="sim", messages=HELLO, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(parts) == whole.choices[0].message.content

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model="sim", messages=script(f'tokens=20 delay_ms=5 text="{number} "'), stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        texts = await asyncio.gather(*(one(number) for number in range(20)))
    for number, text in enumerate(texts):
        assert str(number) in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        ({"model": "no/such"}, openai.NotFoundError, "model_not_found"),
        ({"model": "sim", "temperature": "hot"}, openai.BadRequestError, "invalid_type"),
        ({"model": "backend-error"}, openai.InternalServerError, "backend_error"),
        (
            {"model": "sim", "messages": script("error=rate_limit_exceeded")},
            openai.RateLimitError,
            "rate_limit_exceeded",
        ),
        (
            {"model": "sim", "messages": script("error=invalid_api_key")},
            openai.AuthenticationError,
            "invalid_api_key",
        ),
    ],
)
def test_errors_raise_what_the_client_has_for_them(
    client: openai.OpenAI,
    arguments: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"messages": HELLO, "stream": stream, **arguments})
    assert caught.value.code == code
    assert caught.value.request_id is not None


def read_to_error(stream: Any) -> tuple[str, openai.APIError]:
    """Return the text before the error that a stream must end with, and the error."""
    text = ""
    try:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    except openai.APIError as error:
        return text, error
    raise AssertionError("the stream ended without an error")


def test_an_error_mid_stream_comes_after_every_token(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=script("tokens=9 error=backend_overload error_after=3"), stream=True
    )
    text, error = read_to_error(stream)
    assert text == "tok0 tok1 tok2"
    assert error.code == "overloaded"


def test_a_worker_that_dies_mid_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=script("tokens=9 delay_ms=5 die_after=3"), stream=True
    )
    text, error = read_to_error(stream)
    assert text == "tok0 tok1 tok2"
    assert error.code == "backend_error"
    # Only its connection was closed: the next request is served.
    until(lambda: client.models.list().data)
    assert client.chat.completions.create(model="sim", messages=HELLO).choices


def test_a_deadline(up: Up) -> None:
    headers = {"x-request-deadline-ms": "100"}
    with up.client(default_headers=headers) as client, pytest.raises(openai.APIStatusError) as e:
        client.chat.completions.create(model="sim", messages=script("hang=1"))
    assert e.value.status_code == 504
    assert e.value.code == "deadline_expired"
    assert e.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_work(up: Up, stream: bool) -> None:
    phase = "streaming" if stream else "whole"
    before = up.metric("nnrp_gateway_cancels_total", phase=phase)
    with RawClient(up.port) as client:
        client.sock.sendall(chat_request("/sim tokens=10000 delay_ms=10", stream=stream))
        if stream:
            client.read_head()
            client.read_chunk()
        else:
            until(lambda: up.metric("nnrp_gateway_requests_in_flight"))
    left = time.monotonic()
    until(lambda: not up.metric("nnrp_gateway_requests_in_flight"))
    assert time.monotonic() - left < 5
    assert up.metric("nnrp_gateway_cancels_total", phase=phase) == before + 1
    assert up.metric("nnrp_gateway_unanswered_cancels_total") == 0


def test_what_the_greeting_says_can_be_pasted(up: Up) -> None:
    lines = up.process.stdout
    start = next(number for number, line in enumerate(lines) if "curl -N" in line)
    url = lines[start].split()[2]
    body = lines[start + 1].strip().strip("'")
    answer = httpx.post(
        url, content=body, headers={"content-type": "application/json"}, trust_env=False
    )
    assert sse(answer.content)[-1] == "[DONE]"


def test_the_numbers_are_there(up: Up, client: openai.OpenAI) -> None:
    served = up.metric("nnrp_gateway_requests_total", model="sim", outcome="ok")
    tokens = up.metric("nnrp_gateway_output_tokens_total", model="sim")
    first = up.metric("nnrp_gateway_time_to_first_token_seconds_count", model="sim")
    list(client.chat.completions.create(model="sim", messages=script("tokens=7"), stream=True))
    until(lambda: up.metric("nnrp_gateway_requests_total", model="sim", outcome="ok") > served)
    assert up.metric("nnrp_gateway_output_tokens_total", model="sim") == tokens + 7
    assert up.metric("nnrp_gateway_time_to_first_token_seconds_count", model="sim") == first + 1
    assert up.metric("nnrp_gateway_worker_state", worker="worker-0", state="ready") == 1
    assert up.metric("nnrp_gateway_overhead_seconds_count") > 0


# The processes.


def test_a_worker_that_is_killed_is_started_again(own_up: Up) -> None:
    first = own_up.worker
    first.kill()
    first.wait(10)
    with own_up.client() as client:

        def served() -> bool:
            try:
                return bool(client.chat.completions.create(model="sim", messages=HELLO).choices)
            except openai.InternalServerError as error:
                refusals.append(error)
                return False

        refusals: list[openai.InternalServerError] = []
        until(served)
    assert {error.status_code for error in refusals} <= {503}
    assert all("retry-after" in error.response.headers for error in refusals)
    assert own_up.worker.pid != first.pid


def test_a_worker_that_is_killed_mid_stream_loses_no_token(own_up: Up) -> None:
    with RawClient(own_up.port) as client:
        client.sock.sendall(chat_request("/sim tokens=10000 delay_ms=10", stream=True))
        client.read_head()
        received = client.read_chunk() + client.read_chunk() + client.read_chunk()
        own_up.worker.kill()
        *chunks, error, done = sse(received + b"".join(client.read_chunks()))
    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == "backend_error"
    text = [json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(text).split() == [f"tok{number}" for number in range(len(text) - 1)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_stream_end_and_leaves_nothing(own_up: Up, number: signal.Signals) -> None:
    worker = own_up.worker
    with RawClient(own_up.port) as client:
        client.sock.sendall(chat_request("/sim tokens=50 delay_ms=10", stream=True))
        client.read_head()
        received = client.read_chunk()
        os.kill(own_up.process.pid, number)
        received += b"".join(client.read_chunks())
    *_, finish, done = sse(received)
    assert (json.loads(finish)["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
    assert received.count(b'"content":" tok') == 49
    assert own_up.process.process.wait(15) == 0
    psutil.wait_procs([worker], timeout=5)
    assert not worker.is_running()


def test_a_gateway_that_is_killed_takes_its_worker_with_it(own_up: Up) -> None:
    worker = own_up.worker
    own_up.process.kill()
    _, alive = psutil.wait_procs([worker], timeout=10)
    assert alive == []


def test_replicas_share_the_work() -> None:
    arguments = ("up", "--replicas", 2, "--port", 0, "--admin-port", 0)
    with running("nnrp-gateway", *arguments, ready=GREETED) as process:
        up = Up(process)
        state = "nnrp_gateway_worker_state"
        for name in ("worker-0", "worker-1"):
            until(lambda name=name: up.metric(state, worker=name, state="ready"))  # type: ignore[misc]
        clients = [RawClient(up.port) for _ in range(4)]
        for client in clients:
            client.sock.sendall(chat_request("/sim tokens=1000 delay_ms=10", stream=True))
            client.read_head()
        in_flight = "nnrp_gateway_worker_requests_in_flight"
        assert [up.metric(in_flight, worker=f"worker-{n}") for n in (0, 1)] == [2, 2]
        for client in clients:
            client.close()


def test_a_worker_that_cannot_start_is_an_error_and_no_loop() -> None:
    broken = shutil.which("false")
    assert broken is not None
    process = Running(
        "nnrp-gateway", "up", "--port", 0, "--admin-port", 0, "--worker-python", broken
    )
    assert process.process.wait(30) == 1
    process.stop()
    assert "Error: worker-0 ended with code" in process.log
    assert "Traceback" not in process.log
