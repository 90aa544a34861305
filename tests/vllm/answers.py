"""Ask a worker over NNRP, and put together what it answers."""

import json
from typing import Any, NamedTuple

from nnrp_backend.client import NnrpClient, TerminalKind
from nnrp_backend.profile.envelope import NnrpOptions, encode_envelope
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.operations import CHAT


def chat(*, nnrp: NnrpOptions | None = None, request_id: str | None = None, **body: Any) -> bytes:
    """Return the payload of a chat request; sampling is seeded, so answers can be compared.

    `request_id` is the client's own, which vLLM reads in the body and NNRP in the envelope.
    """
    if request_id is not None:
        body["request_id"] = request_id
    defaults = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello world"}],
        "temperature": 1.0,
        "seed": 7,
    }
    encoded = json.dumps({**defaults, **body}).encode()
    return encode_envelope(CHAT, encoded, request_id=request_id, nnrp=nnrp)


class Choice(NamedTuple):
    """One choice of an answer, streamed or whole, in one form."""

    text: str
    reasoning: str
    tools: tuple[tuple[str, str], ...]
    tokens: tuple[tuple[str, float], ...]
    """Token and log probability, where asked."""
    finish_reason: str | None


class Answer(NamedTuple):
    choices: tuple[Choice, ...]
    usage: dict[str, Any] | None
    ids: frozenset[str]
    events: int = 0


def whole(terminal_body: bytes) -> Answer:
    """Read the terminal of a request that was not streamed."""
    body = finished(terminal_body)
    choices = tuple(
        Choice(
            text=choice["message"].get("content") or "",
            reasoning=choice["message"].get("reasoning_content") or "",
            tools=tuple(
                (call["function"]["name"], call["function"]["arguments"])
                for call in choice["message"].get("tool_calls") or ()
            ),
            tokens=_tokens(choice),
            finish_reason=choice["finish_reason"],
        )
        for choice in body["choices"]
    )
    return Answer(choices, body["usage"], frozenset({body["id"]}))


def streamed(events: list[bytes]) -> Answer:
    """Put the chunks that ride on the events together."""
    parsed = [json.loads(event) for event in events]
    chunks = [event["openai_chunk"] for event in parsed if "openai_chunk" in event]
    usage = next((chunk["usage"] for chunk in chunks if chunk.get("usage")), None)
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    choices = tuple(
        _joined([delta for delta in deltas if delta["index"] == index])
        for index in sorted({delta["index"] for delta in deltas})
    )
    return Answer(choices, usage, frozenset(chunk["id"] for chunk in chunks), len(events))


def _joined(deltas: list[dict[str, Any]]) -> Choice:
    tools: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta["delta"].get("tool_calls") or ():
            tool = tools.setdefault(call["index"], ["", ""])
            tool[0] += call["function"].get("name") or ""
            tool[1] += call["function"].get("arguments") or ""
    return Choice(
        text="".join(d["delta"].get("content") or "" for d in deltas),
        reasoning="".join(d["delta"].get("reasoning_content") or "" for d in deltas),
        tools=tuple((name, arguments) for name, arguments in tools.values()),
        tokens=tuple(token for delta in deltas for token in _tokens(delta)),
        finish_reason=next((d["finish_reason"] for d in deltas if d["finish_reason"]), None),
    )


def _tokens(choice: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    content = (choice.get("logprobs") or {}).get("content") or ()
    return tuple((entry["token"], entry["logprob"]) for entry in content)


def finished(terminal_body: bytes) -> dict[str, Any]:
    """Return the body of `response.completed`, or raise what the worker said instead."""
    event = json.loads(terminal_body)
    if event["type"] == "response.error":
        raise ProfileError.from_error(event["error"])
    assert event["type"] == "response.completed"
    return event["body"]


async def ask(client: NnrpClient, payload: bytes) -> Answer:
    """Send a request that is not streamed."""
    terminal = await client.request(payload)
    assert terminal.kind is TerminalKind.RESULT, terminal
    return whole(terminal.body)


async def ask_streamed(client: NnrpClient, payload: bytes) -> Answer:
    async with client.stream(payload) as stream:
        events = [event async for event in stream]
    assert stream.terminal.kind is TerminalKind.RESULT, stream.terminal
    finished(stream.terminal.body)
    return streamed(events)
