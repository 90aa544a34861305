"""A worker that breaks the profile or the wire, behind a real gateway: what the user then sees.

Every stream still ends with exactly one `[DONE]`, every answer is JSON, and the request after it is
served.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from nnrp_backend.profile.capabilities import Extension
from nnrp_backend.profile.operations import CHUNKS_FINAL
from tests.support.broken_target import RECORD, Answer, Asked, Fault, Target, serving
from tests.support.processes import Running
from tests.support.recordings import completed, error, event, text

pytestmark = pytest.mark.asyncio(loop_scope="module")

FINAL = msgspec.structs.replace(RECORD, extensions=(Extension(name=CHUNKS_FINAL),))
"""What a worker claims whose chunks the gateway copies unread."""


class Behind:
    """A target in this loop, and the gateway process in front of it."""

    def __init__(self, target: Target, client: httpx.AsyncClient, gateway: Running) -> None:
        self.client = client
        self._target = target
        self._gateway = gateway

    async def ask(self, fault: Fault, *, stream: bool) -> httpx.Response:
        """Send one request whose answer is spoilt, and then see that the next are served."""
        self._target.fault = self._once(fault)
        answer = await chat(self.client, stream=stream, content="break")
        await self._check_served()
        return answer

    def _once(self, fault: Fault) -> Fault:
        final = self._target.record is FINAL

        def sometimes(asked: Asked, answer: Answer) -> Answer:
            answer = with_chunks(answer) if final and asked.streamed else answer
            messages = asked.body.get("messages") or [{}]
            return fault(asked, answer) if messages[0].get("content") == "break" else answer

        return sometimes

    async def _check_served(self) -> None:
        # A connection that ended has to be made anew first; meanwhile 503 is a fair answer.
        async with asyncio.timeout(10):
            while (whole := await chat(self.client, stream=False)).status_code == 503:
                await asyncio.sleep(0.01)
        assert whole.status_code == 200, whole.text
        assert said(data(await chat(self.client, stream=True))) == "one two three four"
        assert "Traceback" not in self._gateway.log


@asynccontextmanager
async def in_front_of(target: Target) -> AsyncIterator[Behind]:
    async with serving(target) as endpoint:
        gateway = Running(
            "nnrp-gateway",
            *("serve", "--port", "0", "--admin-port", "0", "--worker", str(endpoint)),
        )
        try:
            line = await asyncio.to_thread(
                gateway.wait_for, lambda line: line.split()[:1] == ["API"]
            )
            async with httpx.AsyncClient(base_url=line.split()[1], timeout=20) as client:
                yield Behind(target, client, gateway)
        finally:
            await asyncio.to_thread(gateway.stop)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[Behind]:
    """A worker without chunks: the gateway makes its own."""
    async with in_front_of(Target()) as behind:
        yield behind


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def final_worker() -> AsyncIterator[Behind]:
    """A worker that declares its chunks final: the gateway copies them."""
    async with in_front_of(Target(record=FINAL)) as behind:
        yield behind


async def chat(client: httpx.AsyncClient, *, stream: bool, content: str = "x") -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    body = {"model": "scripted", "messages": messages, "stream": stream}
    return await client.post("/chat/completions", json=body)


def data(answer: httpx.Response) -> list[Any]:
    """Return the JSON of each event of a stream that ends with `[DONE]`."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    lines = [line for line in events if not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def said(chunks: list[Any]) -> str:
    """Return the text that chunks add up to."""
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def with_chunks(answer: Answer) -> Answer:
    """Attach to each text delta the chunk that it stands for."""

    def attach(part: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": part["index"], "delta": {"content": part["delta"]}}
        return part | {"openai_chunk": {"id": "x", "choices": [choice]}}

    return replace(answer, parts=tuple(map(attach, answer.parts)))


# --- streams --------------------------------------------------------------------------------------


def insert(place: int, part: Any) -> Fault:
    """Put an event among those of a stream."""

    def fault(asked: Asked, answer: Answer) -> Answer:
        parts = list(answer.parts)
        parts.insert(place, part)
        return replace(answer, parts=tuple(parts))

    return fault


def change(**members: Any) -> Fault:
    """Change the answer itself."""
    return lambda asked, answer: replace(answer, **members)


BROKEN_EVENTS = [
    b"tok0",
    b"[]",
    b"{}",
    b'{"type":7}',
    b'{"type":"response.output_text.delta"',
    event("output_text.delta", index="0", delta="x"),
    event("output_text.delta", index=0, delta=7),
    event("tool_call.started", index="0", item_id="i", call_id="c", name="n"),
]


@pytest.mark.parametrize("part", BROKEN_EVENTS, ids=str)
async def test_an_event_that_is_none_ends_the_stream_with_an_error(
    worker: Behind, part: Any
) -> None:
    answer = await worker.ask(insert(2, part), stream=True)

    assert answer.status_code == 200
    *chunks, last = data(answer)
    assert last["error"]["type"] == "server_error"
    assert said(chunks) == "one two"  # what came before it stays


@pytest.mark.parametrize("part", BROKEN_EVENTS[:2], ids=str)
async def test_a_first_event_that_is_none_is_an_error_with_a_status(
    worker: Behind, part: Any
) -> None:
    answer = await worker.ask(insert(0, part), stream=True)

    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("part", [event("thoughts", text="hm"), b""], ids=str)
async def test_an_event_that_says_nothing_to_us_is_ignored(worker: Behind, part: Any) -> None:
    answer = await worker.ask(insert(2, part), stream=True)

    assert said(data(answer)) == "one two three four"


@pytest.mark.parametrize(
    "chunk",
    [
        b'{"id":"x",\n"choices":[]}',
        b'{"id":"x"}\n\ndata: {"choices":[{"index":0,"delta":{"content":"evil"}}]}',
        b"7",
        b'"text"',
        b"{",
    ],
    ids=str,
)
async def test_a_chunk_that_would_break_the_stream_is_not_copied(
    final_worker: Behind, chunk: bytes
) -> None:
    part = b'{"type":"response.output_text.delta","index":0,"delta":"x","openai_chunk":%s}' % chunk

    answer = await final_worker.ask(insert(2, part), stream=True)

    *chunks, last = data(answer)
    assert said(chunks) == "one two"
    assert last["error"]["type"] == "server_error"


async def test_chunks_that_are_declared_and_do_not_come_are_an_error(
    final_worker: Behind,
) -> None:
    def bare(asked: Asked, answer: Answer) -> Answer:
        parts = tuple(text(part["delta"], part["index"]) for part in answer.parts)
        return replace(answer, parts=parts)

    answer = await final_worker.ask(bare, stream=True)

    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "backend_error"


# --- terminals ------------------------------------------------------------------------------------

DIES = change(dies=True)

NO_ANSWER: list[Fault] = [
    change(end=b"done"),
    change(end=b"[]"),
    change(end=text("late")),
    change(end=event("nonsense")),
    change(end=event("error")),
    change(end=error("no_such_code")),
    change(drop=2),
    change(drop=4),
    change(drop=8),
    DIES,
    change(garbage=True, end=None),
]


@pytest.mark.parametrize("fault", NO_ANSWER, ids=range(len(NO_ANSWER)))
async def test_a_terminal_that_is_no_answer_is_an_error(worker: Behind, fault: Fault) -> None:
    whole = await worker.ask(fault, stream=False)
    streamed = await worker.ask(fault, stream=True)

    assert 400 <= whole.status_code < 600
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["error"]["message"]
    # A connection that ends may take the events before its end along.
    assert streamed.status_code == 200 or fault is DIES
    last = data(streamed)[-1] if streamed.status_code == 200 else streamed.json()
    assert last["error"]["message"]


@pytest.mark.parametrize("end", [event("completed"), event("completed", body="text"), b""], ids=str)
async def test_a_success_without_a_body_ends_a_stream_and_is_no_whole_answer(
    worker: Behind, end: Any
) -> None:
    whole = await worker.ask(change(end=end), stream=False)
    streamed = await worker.ask(change(end=end), stream=True)

    assert whole.status_code == 502
    assert whole.json()["error"]["type"] == "server_error"
    assert said(data(streamed)) == "one two three four"


async def test_frames_after_the_terminal_reach_nobody(worker: Behind) -> None:
    fault = change(late=(text("late"),), late_end=completed(late=True))

    answer = await worker.ask(fault, stream=True)

    assert said(data(answer)) == "one two three four"
