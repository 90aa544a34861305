from typing import Any

from nnrp_backend.profile.assembly import ChoiceAssembly
from nnrp_backend.profile.tool_calls import ToolCallStream
from tests.support.engine_chunks import choice


def assembled(*choices: dict[str, Any]) -> dict[str, Any]:
    assembly = ChoiceAssembly()
    for entry in choices:
        assembly.add(entry)
    return assembly.choice(0, "stop", ())


def message(*deltas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = assembled(*(choice(delta) for delta in deltas))["message"]
    return found


def test_texts_are_joined_by_key() -> None:
    deltas = [{"content": "a"}, {"reasoning": "r"}, {"content": "b"}, {"refusal": "no"}]
    assert message({"role": "assistant", "content": ""}, *deltas) == {
        "role": "assistant",
        "content": "ab",
        "refusal": "no",
        "reasoning": "r",
    }


def test_a_message_that_never_had_text() -> None:
    assert message({"role": "assistant", "content": None}) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
    }
    assert message({"role": "tester", "content": ""})["content"] == ""
    assert message({"role": "tester"})["role"] == "tester"


def test_other_members_are_gathered_by_what_they_are() -> None:
    found = message(
        {"citations": [1], "function_call": {"name": "f", "arguments": "{"}, "n": 1},
        {"citations": [2], "function_call": {"arguments": "}"}, "n": 2},
    )
    assert found["citations"] == [1, 2]
    assert found["function_call"] == {"name": "f", "arguments": "{}"}
    assert found["n"] == 2


def test_members_of_the_choice() -> None:
    one, two = ({"content": [{"token": t}], "refusal": None} for t in "ab")
    found = assembled(
        choice({}, logprobs=one, token_ids=[1], stop_reason="x"),
        choice({}, logprobs=None),
        choice({}, logprobs=two, token_ids=[2], stop_reason="y"),
    )
    assert found["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}
    assert found["token_ids"] == [1, 2]
    assert found["stop_reason"] == "y"
    assert found["finish_reason"] == "stop"


def test_calls_are_those_that_were_streamed() -> None:
    call = ToolCallStream(0, 0)
    call.finish_delta({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}, "")
    assembly = ChoiceAssembly()
    assembly.add(choice({"role": "assistant", "content": "", "tool_calls": [{"index": 0}]}))
    found = assembly.choice(1, "tool_calls", [call])
    assert found["index"] == 1
    assert found["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    }


def test_text_can_be_added_from_outside() -> None:
    assembly = ChoiceAssembly()
    assembly.add(choice({"content": "a"}))
    assembly.text("content").append("b")
    assembly.text("reasoning").append("r")
    found = assembly.choice(0, "stop", ())["message"]
    assert (found["content"], found["reasoning"]) == ("ab", "r")
