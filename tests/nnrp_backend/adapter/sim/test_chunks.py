import json
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from nnrp_backend.adapter.sim.answers import Answer, Kind
from nnrp_backend.adapter.sim.chunks import (
    ChunkWriter,
    Identity,
    LogprobOptions,
    completion,
)
from nnrp_backend.adapter.sim.generation import Generation, Piece
from nnrp_backend.adapter.sim.tools import ToolCall

IDENTITY = Identity("chatcmpl-1", 1700000000, 'si"m')
NO_LOGPROBS = LogprobOptions(False, 0)
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def writer(choices: int = 2, logprobs: LogprobOptions = NO_LOGPROBS) -> ChunkWriter:
    return ChunkWriter(IDENTITY, choices, logprobs)


def chunk(raw: bytes) -> dict[str, Any]:
    """Parse a chunk, after the official types accepted it."""
    ChatCompletionChunk.model_validate_json(raw, strict=True)
    parsed = json.loads(raw)
    assert parsed["id"] == "chatcmpl-1"
    assert parsed["object"] == "chat.completion.chunk"
    assert parsed["created"] == 1700000000
    assert parsed["model"] == 'si"m'
    return parsed


def only_choice(raw: bytes) -> dict[str, Any]:
    (choice,) = chunk(raw)["choices"]
    return choice


def test_a_role_opens_the_choice() -> None:
    assert only_choice(writer().role(0, calls=False)) == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert only_choice(writer().role(1, calls=True)) == {
        "index": 1,
        "delta": {"role": "assistant", "content": None},
        "logprobs": None,
        "finish_reason": None,
    }


def test_text_and_reasoning_deltas() -> None:
    text = 'ü "quoted"\n\x00'
    choice = only_choice(writer().piece(1, Piece(Kind.TEXT, text, (text,))))
    assert (choice["index"], choice["delta"]) == (1, {"content": text})
    choice = only_choice(writer().piece(0, Piece(Kind.REASONING, "hm", ("hm",))))
    assert choice["delta"] == {"reasoning_content": "hm"}


def test_a_tool_call_names_itself_once() -> None:
    opening = only_choice(writer().piece(1, Piece(Kind.CALL, "f", ("f",))))
    assert opening["delta"]["tool_calls"] == [
        {
            "index": 0,
            "id": "call_1_1",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
    ]
    more = only_choice(writer().piece(1, Piece(Kind.ARGUMENTS, '{"a', ('{"a',))))
    assert more["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": '{"a'}}]


def test_logprobs_go_with_their_text_only() -> None:
    asked = writer(logprobs=LogprobOptions(True, 2))
    choice = only_choice(asked.piece(0, Piece(Kind.TEXT, "ab", ("a", "b"))))
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a", "b"]
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [2, 2]
    assert only_choice(asked.piece(0, Piece(Kind.REASONING, "a", ("a",))))["logprobs"] is None


def test_the_finish_reason_comes_with_an_empty_delta() -> None:
    choice = only_choice(writer().finish(1, "length"))
    assert (choice["index"], choice["delta"], choice["finish_reason"]) == (1, {}, "length")


def test_usage_comes_without_choices() -> None:
    parsed = chunk(writer().usage(USAGE))
    assert (parsed["choices"], parsed["usage"]) == ([], USAGE)


def test_usage_on_every_chunk() -> None:
    counting = ChunkWriter(IDENTITY, 1, NO_LOGPROBS, counts=lambda: USAGE)
    plain = chunk(writer(1).finish(0, "stop"))
    assert "usage" not in plain
    assert chunk(counting.finish(0, "stop")) == {**plain, "usage": USAGE}


def whole(answer: Answer, logprobs: LogprobOptions = NO_LOGPROBS, choices: int = 1) -> Any:
    generations = [Generation(answer, limit=None, stops=[]) for _ in range(choices)]
    made = [(generation, list(generation)) for generation in generations]
    raw = completion(IDENTITY, made, logprobs, USAGE)
    ChatCompletion.model_validate_json(raw, strict=True)
    return json.loads(raw)


def test_a_whole_answer() -> None:
    body = whole(Answer(text="a b"), choices=2)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][1] == {
        "index": 1,
        "message": {"role": "assistant", "content": "a b", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"] == USAGE


def test_a_whole_answer_with_everything() -> None:
    answer = Answer(reasoning="x y", text="a", call=ToolCall("f", '{"q":"long enough"}'))
    (choice,) = whole(answer, LogprobOptions(True, 0))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "reasoning_content": "x y",
        "tool_calls": [
            {
                "id": "call_1_0",
                "type": "function",
                "function": {"name": "f", "arguments": '{"q":"long enough"}'},
            }
        ],
    }
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a"]


def test_a_call_alone_has_no_content_and_nothing_at_all_has_empty_content() -> None:
    assert whole(Answer(call=ToolCall("f", "{}")))["choices"][0]["message"]["content"] is None
    assert whole(Answer())["choices"][0]["message"]["content"] == ""
