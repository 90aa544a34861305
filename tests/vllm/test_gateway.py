"""A real model behind the whole system, seen through the official client.

`nnrp-gateway up --engine vllm` with SmolLM2-135M-Instruct, which knows a capital or two.
"""

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

import jsonschema
import openai
import psutil
import pytest

from tests.support.waiting import until
from tests.vllm.worker import SMOLLM2, TINY, TINY_FLAGS, Program, gone, running, started

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SMOLLM2_FLAGS = (
    "--max-model-len", "2048", "--max-num-seqs", "8",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
)  # fmt: skip
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Madrid"]},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}


class Gateway(Program):
    """`nnrp-gateway up` with one worker."""

    def __init__(self, model: Path, *flags: str) -> None:
        port, admin_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        super().__init__(
            "nnrp-gateway", "up", "--engine", "vllm", "--model", str(model),
            "--port", str(port), "--admin-port", str(admin_port), "--", *flags,
        )  # fmt: skip

    async def wait_ready(self) -> Self:
        await started(self.is_ready)
        assert self.process.poll() is None, self.tail()
        self.engines()
        return self

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            return True  # it will never be
        try:
            with urllib.request.urlopen(f"{self.admin_url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def worker_process(self) -> psutil.Process:
        (engine,) = self.engines()
        return engine.parent()

    def running(self) -> int:
        """Return vLLM's own count of running requests, from the worker's admin port."""
        ready = re.search(r"worker-0 is ready: .*'admin': '([^']+)'", self.log.read_text())
        assert ready, self.tail()
        with urllib.request.urlopen(f"{ready[1]}/metrics", timeout=5) as answer:
            return running(answer.read().decode())

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


def answers(client: openai.OpenAI) -> bool:
    """Whether the pool has found its worker again."""
    try:
        client.chat.completions.create(model="tiny", messages=CAPITAL, max_tokens=2)
    except openai.InternalServerError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(SMOLLM2, *SMOLLM2_FLAGS) as gateway:
        yield gateway
        assert gateway.stop() == 0, gateway.tail()
        assert gateway.left_behind() == []


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.OpenAI]:
    await gateway.wait_ready()
    with gateway.client() as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [SMOLLM2.name]


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=SMOLLM2.name, messages=CAPITAL, temperature=0, max_tokens=40
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 1


def test_the_capital_of_france_streamed(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=SMOLLM2.name,
            messages=CAPITAL,
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert len([c for c in chunks if c.choices]) > 3, "it did not stream"
    assert chunks[-1].usage.completion_tokens > 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_a_required_tool_call(client: openai.OpenAI) -> None:
    function = {"name": "get_weather", "strict": True, "parameters": PARAMETERS}
    answer = client.chat.completions.create(
        model=SMOLLM2.name,
        messages=[{"role": "user", "content": "How warm is it in Paris, in celsius?"}],
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        temperature=0,
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, PARAMETERS)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_json_schema_answer(client: openai.OpenAI) -> None:
    schema = {"name": "weather", "strict": True, "schema": PARAMETERS}
    answer = client.chat.completions.create(
        model=SMOLLM2.name,
        messages=[{"role": "user", "content": "A city and a unit, as JSON."}],
        response_format={"type": "json_schema", "json_schema": schema},
        temperature=0,
        max_tokens=200,
    )
    jsonschema.validate(json.loads(answer.choices[0].message.content), PARAMETERS)


async def test_leaving_in_the_middle_of_a_stream(gateway: Gateway, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=SMOLLM2.name,
        messages=[{"role": "user", "content": "Tell me a very long story."}],
        max_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(stream)
    await until(lambda: gateway.running() == 1)
    stream.close()
    await until(lambda: gateway.running() == 0, timeout=1.0)


def test_what_vllm_refuses_is_a_400_that_names_the_parameter(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=SMOLLM2.name, messages=CAPITAL, max_tokens=-1)
    assert refused.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=SMOLLM2.name, messages=[{"role": "user", "content": "word " * 4000}]
        )
    assert refused.value.code == "context_length_exceeded"


async def test_a_killed_engine_is_a_typed_error_and_its_worker_comes_back() -> None:
    with Gateway(TINY, *TINY_FLAGS) as gateway, gateway.client() as client:
        await gateway.wait_ready()
        stream = client.chat.completions.create(
            model="tiny",
            messages=CAPITAL,
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        worker = gateway.worker_process()
        gateway.engines()[0].kill()
        with pytest.raises(openai.APIError) as failed:
            for _ in stream:
                pass
        assert failed.value.code == "backend_error"
        await until(lambda: gone(worker), timeout=10)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(model="tiny", messages=CAPITAL)
        assert refused.value.status_code == 503

        await started(lambda: gateway.log.read_text().count("worker-0 is ready") == 2)
        await started(lambda: answers(client))
        # Nor does a killed gateway leave anything behind.
        gateway.stop(signal.SIGKILL)
        assert gateway.left_behind(within=15) == []
