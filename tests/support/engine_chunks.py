"""Chat chunks as vLLM streams them, what becomes of them, and the rules a final one keeps."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from nnrp_backend.profile import events
from nnrp_backend.profile.chunks import ChatChunkMapper
from nnrp_backend.profile.tool_calls import ToolCallRules

FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}
HEAD = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "m",
}


def raw(tree: Any) -> bytes:
    """Encode as pydantic does: compact, and not only ASCII."""
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()


def choice(delta: dict[str, Any], index: int = 0, **members: Any) -> dict[str, Any]:
    """Write one choice of a chunk, with OpenAI's members and those that are given."""
    members = {"logprobs": None, "finish_reason": None, **members}
    return {"index": index, "delta": delta, **members}


def chunk_of(*choices: dict[str, Any], **members: Any) -> bytes:
    """Write a chunk around some choices."""
    return raw({**HEAD, "choices": list(choices), **members})


def chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None) -> bytes:
    """Write a chunk that is final already, unless its delta is not."""
    return chunk_of(choice(delta, index, finish_reason=finish))


def role(index: int = 0) -> bytes:
    return chunk({"role": "assistant", "content": ""}, index)


def text(content: str, index: int = 0) -> bytes:
    return chunk({"content": content}, index)


def finish(reason: str = "stop", index: int = 0) -> bytes:
    return chunk({}, index, reason)


def usage_chunk(prompt: int = 3, completion: int = 2) -> bytes:
    return chunk_of(usage=counts(prompt, completion))


def counts(prompt: int = 3, completion: int = 2) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def call(index: int = 0, **function: str) -> dict[str, Any]:
    """Write the continuation of a tool call."""
    return {"index": index, "function": function}


def first_call(index: int = 0, call_id: str = "call_a", name: str = "lookup") -> dict[str, Any]:
    """Write the first delta of a tool call."""
    function = {"name": name, "arguments": ""}
    return {"index": index, "id": call_id, "type": "function", "function": function}


class Answer:
    """What a mapper made of a stream, decoded."""

    def __init__(self, mapper: ChatChunkMapper, encoded: Iterable[bytes]) -> None:
        self.mapper = mapper
        self.encoded = list(encoded)
        self.events: list[dict[str, Any]] = [json.loads(event) for event in self.encoded]
        self.attached = [
            bytes(found) for event in self.encoded if (found := events.peek(event).openai_chunk)
        ]
        self.chunks: list[dict[str, Any]] = [json.loads(chunk) for chunk in self.attached]

    @property
    def body(self) -> dict[str, Any]:
        """The body of the terminal."""
        terminal: dict[str, Any] = json.loads(self.mapper.completed())
        assert terminal["type"] == "response.completed"
        assert terminal.keys() == {"type", "body"}
        body: dict[str, Any] = terminal["body"]
        return body

    def text(self, index: int = 0) -> str:
        """The text deltas of one choice, joined."""
        return "".join(
            event["delta"] for event in self.of_type("output_text.delta") if event["index"] == index
        )

    def of_type(self, name: str) -> list[dict[str, Any]]:
        """The events `response.{name}`."""
        return [event for event in self.events if event["type"] == f"response.{name}"]

    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]


def run(mapper: ChatChunkMapper, chunks: Iterable[bytes]) -> Answer:
    """Feed a whole stream, finish it, and check every rule about what came of it."""
    encoded = [event for chunk in chunks for event in mapper.feed(chunk)]
    answer = Answer(mapper, [*encoded, *mapper.finish()])
    check_events(answer)
    check_final(answer)
    return answer


def check_events(answer: Answer) -> None:
    """Check the profile's rules about members and tool calls."""
    rules = ToolCallRules()
    for event in answer.events:
        assert events.violations(event) == []
        assert rules.observe(event) == []
    assert rules.finish() == []


def check_final(answer: Answer) -> None:
    """Check what OpenAI's clients take for granted in a stream of chunks."""
    roles: set[int] = set()
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    finished: set[int] = set()
    for data, tree in zip(answer.attached, answer.chunks, strict=True):
        assert b"\n" not in data
        assert b"\r" not in data
        data.decode("utf-8")
        assert tree["object"] == "chat.completion.chunk"
        for member in ("id", "created", "model"):
            assert tree[member] == answer.chunks[0][member]
        assert None not in [value for key, value in tree.items() if key != "usage"]
        for entry in tree["choices"]:
            _check_choice(entry, roles, calls)
            if entry["finish_reason"] is not None:
                assert entry["index"] not in finished
                finished.add(entry["index"])
    assert finished == roles


def _check_choice(
    entry: dict[str, Any], roles: set[int], calls: dict[tuple[int, int], dict[str, Any]]
) -> None:
    index, delta = entry["index"], entry["delta"]
    if index not in roles:
        # Clients append a choice when they first see it.
        assert index == len(roles)
        assert delta["role"]
        roles.add(index)
    else:
        assert "role" not in delta
    nulls = {key for key, value in entry.items() if value is None}
    assert nulls <= {"logprobs", "finish_reason"}
    assert entry.keys() >= {"logprobs", "finish_reason"}
    if entry["finish_reason"] is not None:
        assert entry["finish_reason"] in FINISH_REASONS
        assert delta == {}
    nulls = {key for key, value in delta.items() if value is None}
    assert nulls <= ({"content"} if "role" in delta else set())
    for call in delta.get("tool_calls", []):
        _check_call(call, calls.setdefault((index, call["index"]), {}))


def _check_call(call: dict[str, Any], known: dict[str, Any]) -> None:
    assert None not in call.values()
    assert None not in call["function"].values()
    assert isinstance(call["function"]["arguments"], str)
    if known:
        assert call.keys().isdisjoint({"id", "type"})
    else:
        assert call["id"]
        assert call["type"]
        known["id"] = call["id"]
    if "name" in call["function"]:
        assert "name" not in known
        known["name"] = call["function"]["name"]


class Recording(msgspec.Struct):
    """One prompt, answered by an engine both ways."""

    chunks: list[msgspec.Raw]
    whole: msgspec.Raw


def recordings() -> dict[str, Recording]:
    """Read what vLLM 0.32 answered for SmolLM2-135M-Instruct, byte for byte."""
    path = Path(__file__).parents[1] / "nnrp_backend" / "profile" / "vllm-0.32-chat.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Recording])


pieces = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6)


@st.composite
def choice_streams(draw: st.DrawFn, index: int) -> list[dict[str, Any]]:
    """Draw what one choice of a stream may say, in order."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += draw(st.lists(st.builds(lambda p: {"reasoning": p}, pieces), max_size=3))
    deltas += draw(st.lists(st.builds(lambda p: {"content": p}, pieces), max_size=4))
    for place in range(draw(st.integers(0, 2))):
        deltas.append({"tool_calls": [first_call(place, f"call_{place}")]})
        arguments = draw(st.lists(pieces, max_size=4))
        deltas += [{"tool_calls": [call(place, arguments=piece)]} for piece in arguments]
    noises: list[dict[str, Any]] = [
        {},
        {"token_ids": None},
        {"role": "assistant"},
        {"tool_calls": None},
        {"content": None},
    ]
    entries = []
    for delta in deltas:
        extra = draw(st.sampled_from(noises))
        members = {key: extra[key] for key in extra if key == "token_ids"}
        rest = {key: extra[key] for key in extra if key not in members and key not in delta}
        entries.append(choice({**rest, **delta}, index, **members))
    reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    if draw(st.booleans()):
        entries[-1]["finish_reason"] = reason
    else:
        entries.append(choice({}, index, finish_reason=reason))
    return entries


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw a stream that an engine could send: choices with texts and calls, interleaved."""
    waiting = [draw(choice_streams(index)) for index in range(draw(st.integers(1, 3)))]
    order = draw(st.permutations([index for index, entries in enumerate(waiting) for _ in entries]))
    chunks: list[bytes] = []
    for index in order:
        chunks.append(chunk_of(waiting[index].pop(0)))
    return [*chunks, usage_chunk()]
