import copy
import json
from typing import Any

import pytest

from nnrp_backend.profile.completion import finalize_completion
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from tests.support.engine_chunks import counts, raw, recordings

RECORDINGS = recordings()


def completion(message: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "hello", "refusal": None} | (message or {})
    choice = {"logprobs": None, "finish_reason": "stop"} | choice
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, **choice}],
        "usage": counts(),
    }


def final(body: bytes | dict[str, Any], **options: Any) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(finalize_completion(body, ChunkOptions(**options)))
    return tree


def only_choice(body: bytes | dict[str, Any], **options: Any) -> dict[str, Any]:
    (choice,) = final(body, **options)["choices"]
    found: dict[str, Any] = choice
    return found


def test_a_final_one_keeps_its_bytes() -> None:
    body = raw(completion()).replace(b"hello", b"\\u0068ello")
    assert finalize_completion(body) is body


def test_a_tree_is_not_changed() -> None:
    body = completion({"reasoning": "r", "audio": None})
    before = copy.deepcopy(body)
    finalize_completion(body)
    assert body == before


def test_members_of_a_bare_answer() -> None:
    bare = {"id": "c", "created": 1, "model": "m", "choices": [{"index": 0, "message": {}}]}
    assert final(bare) == {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_vllm_answers_has_only_openais_nulls(name: str) -> None:
    body = final(bytes(RECORDINGS[name].whole), model="alias")
    assert None not in body.values()
    assert None not in body["usage"].values()
    assert body["model"] == "alias"
    for choice in body["choices"]:
        nulls = {key for key, value in choice.items() if value is None}
        assert nulls <= {"logprobs", "finish_reason"}
        nulls = {key for key, value in choice["message"].items() if value is None}
        assert {"refusal"} <= nulls <= {"content", "refusal"}


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_goes_under_the_wanted_key(key: Any) -> None:
    message = only_choice(completion({"reasoning": "r", "content": ""}), reasoning=key)["message"]
    assert message == {"role": "assistant", "content": None, "refusal": None, key: "r"}


def test_tool_calls() -> None:
    calls = [
        {"id": "a", "index": None, "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert only_choice(completion({"tool_calls": calls}))["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert "tool_calls" not in only_choice(completion({"tool_calls": []}))["message"]


def test_finish_reasons_are_mapped() -> None:
    assert only_choice(completion(finish_reason="repetition"))["finish_reason"] == "stop"
    assert only_choice(completion(finish_reason="length"))["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("reason", "code"),
    [("abort", ErrorCode.BACKEND_CANCELLED), ("error", ErrorCode.BACKEND_ERROR)],
)
def test_an_answer_that_broke_off_is_none(reason: str, code: str) -> None:
    with pytest.raises(ProfileError) as caught:
        finalize_completion(completion(finish_reason=reason))
    assert caught.value.code == code


def test_it_becomes_one_line_of_valid_utf8() -> None:
    pretty = json.dumps(completion(), indent=1).encode().replace(b"hello", b"h\xffllo")
    done = finalize_completion(pretty)
    assert b"\n" not in done
    assert json.loads(done) == completion({"content": "h\ufffdllo"})


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"[]",
        {},
        {"choices": None},
        {"choices": [1]},
        {"choices": [{"message": None}]},
        {"choices": [{"index": 0, "message": {"tool_calls": ["x"]}}]},
    ],
)
def test_what_is_no_completion_is_a_backend_error(garbage: Any) -> None:
    with pytest.raises(ProfileError) as caught:
        finalize_completion(garbage)
    assert caught.value.code == ErrorCode.BACKEND_ERROR


def test_an_error_body_is_raised() -> None:
    with pytest.raises(ProfileError, match="no such") as caught:
        finalize_completion({"error": {"message": "no such", "type": "NotFoundError"}})
    assert caught.value.code == ErrorCode.UNSUPPORTED_MODEL
