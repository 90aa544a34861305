from typing import Any, Literal

import pytest

from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode
from nnrp_backend.profile.finality import (
    CUT_REASONS,
    FINISH_REASONS,
    cut_short,
    drop_nulls,
    fill,
    finish_choice,
    finish_logprobs,
    finish_message,
    finish_reason,
    finish_reasoning,
    finish_usage,
)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        *((reason, reason) for reason in sorted(FINISH_REASONS)),
        ("repetition", "stop"),
        ("eos_token", "stop"),
        ("stop_sequence", "stop"),
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("never heard of", "stop"),
        ({"type": "stop"}, "stop"),
        (3, "stop"),
    ],
)
def test_finish_reasons(theirs: Any, ours: str) -> None:
    assert finish_reason(theirs) == ours


def test_reasons_that_are_no_finish_have_errors() -> None:
    errors = {reason: cut_short(reason).code for reason in CUT_REASONS}
    assert errors == {"abort": ErrorCode.BACKEND_CANCELLED, "error": ErrorCode.BACKEND_ERROR}


class TestChoice:
    def test_a_final_one_is_left_alone(self) -> None:
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None, "x": 1}
        before = dict(choice)
        assert not finish_choice(choice)
        assert choice == before

    def test_nullable_members_are_written_and_private_nulls_dropped(self) -> None:
        choice = {"index": 0, "delta": {}, "token_ids": None, "stop_reason": None}
        assert finish_choice(choice)
        assert choice == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}

    def test_an_empty_reason_is_none(self) -> None:
        choice: dict[str, Any] = {"finish_reason": "", "logprobs": None}
        assert finish_choice(choice)
        assert choice == {"finish_reason": None, "logprobs": None}

    def test_its_logprobs_are_made_final(self) -> None:
        choice: dict[str, Any] = {"logprobs": {"content": []}, "finish_reason": None}
        assert finish_choice(choice)
        assert choice["logprobs"] == {"content": [], "refusal": None}

    def test_a_private_reason_stays_readable(self) -> None:
        choice: dict[str, Any] = {"finish_reason": "repetition", "stop_reason": None}
        assert finish_choice(choice)
        assert choice == {"finish_reason": "stop", "stop_reason": "repetition", "logprobs": None}


class TestLogprobs:
    def test_an_empty_one(self) -> None:
        logprobs: dict[str, Any] = {}
        assert finish_logprobs(logprobs)
        assert logprobs == {"content": None, "refusal": None}

    def test_a_token_without_bytes(self) -> None:
        token = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]}
        logprobs = {"content": [token], "refusal": None}
        assert finish_logprobs(logprobs)
        assert token == {
            "token": "a",
            "logprob": -0.5,
            "bytes": None,
            "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": None}],
        }

    def test_what_is_known_more_is_kept(self) -> None:
        token = {"token": "a", "logprob": 0.0, "bytes": [1], "top_logprobs": [], "token_id": 5}
        logprobs = {"content": None, "refusal": [dict(token)]}
        assert not finish_logprobs(logprobs)
        assert logprobs == {"content": None, "refusal": [token]}


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("reasoning_content", {"reasoning": "r"}, {"reasoning_content": "r"}),
        ("reasoning_content", {"reasoning_content": "r"}, None),
        (
            "reasoning_content",
            {"reasoning": "r", "reasoning_content": None},
            {"reasoning_content": "r"},
        ),
        (
            "reasoning_content",
            {"reasoning": "a", "reasoning_content": "a"},
            {"reasoning_content": "a"},
        ),
        ("reasoning", {"reasoning_content": "r"}, {"reasoning": "r"}),
        ("reasoning", {"reasoning": "r"}, None),
        ("reasoning", {"reasoning": ""}, None),
        ("both", {"reasoning": "r"}, {"reasoning": "r", "reasoning_content": "r"}),
        ("both", {"reasoning": "r", "reasoning_content": "r"}, None),
        ("both", {}, None),
        ("both", {"reasoning": None}, None),
    ],
)
def test_reasoning_keys(
    option: Literal["reasoning_content", "reasoning", "both"],
    given: dict[str, Any],
    expected: dict[str, Any] | None,
) -> None:
    message = dict(given)
    assert finish_reasoning(message, ChunkOptions(reasoning=option)) is (expected is not None)
    assert message == (given if expected is None else expected)


class TestMessage:
    def test_members_of_a_bare_one(self) -> None:
        message: dict[str, Any] = {"role": "assistant", "audio": None, "function_call": None}
        assert finish_message(message)
        assert message == {"role": "assistant", "content": None, "refusal": None}

    @pytest.mark.parametrize(
        "beside", [{"tool_calls": [{}]}, {"reasoning": "r"}, {"reasoning_content": "r"}]
    )
    def test_no_text_beside_something_else_is_null(self, beside: dict[str, Any]) -> None:
        message = {"content": "", "refusal": None, **beside}
        assert finish_message(message)
        assert message["content"] is None

    @pytest.mark.parametrize("content", ["", "x"])
    def test_text_stays(self, content: str) -> None:
        message = {"content": content, "refusal": None}
        assert not finish_message(message)
        assert message["content"] == content


def test_usage_has_no_nulls() -> None:
    usage = {
        "prompt_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": None},
        "completion_tokens_details": None,
    }
    assert finish_usage(usage)
    assert usage == {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    assert not finish_usage(usage)


def test_dropping_and_filling_say_whether_they_did() -> None:
    tree: dict[str, Any] = {"a": None, "b": None, "c": 0}
    assert drop_nulls(tree, keep=("a",))
    assert tree == {"a": None, "c": 0}
    assert not drop_nulls(tree, keep=("a",))
    assert fill(tree, {"c": 1, "d": 2})
    assert tree == {"a": None, "c": 0, "d": 2}
    assert not fill(tree, {"d": 3})
