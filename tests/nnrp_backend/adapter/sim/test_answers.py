import json
from typing import Any

import pytest

from nnrp_backend.adapter.sim.answers import (
    GREETING,
    MAX_ECHO,
    Answer,
    Kind,
    count_words,
    plain_answer,
    scripted_answer,
)
from nnrp_backend.adapter.sim.directives import Script
from nnrp_backend.adapter.sim.request import read_request
from nnrp_backend.adapter.sim.tools import ToolCall
from nnrp_backend.profile.errors import ProfileError


def answer(
    text: str | None = "Say hello.", *, role: str = "user", reasoner: bool = False, **fields: Any
) -> Answer:
    body = {"model": "sim", "messages": [{"role": role, "content": text}], **fields}
    return plain_answer(read_request(body), reasoner=reasoner)


def test_a_plain_answer_repeats_the_last_message_and_says_what_it_is() -> None:
    assert answer().text == "This is the sim engine, which has no model. You said: Say hello."


def test_the_same_request_gets_the_same_answer() -> None:
    assert answer() == answer()
    assert answer("Say hello!") != answer()


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_an_empty_message(text: str | None) -> None:
    assert answer(text).text == GREETING


def test_a_tool_result_is_answered() -> None:
    assert answer("42", role="tool").text == f"{GREETING} The tool answered: 42"


def test_a_long_message_is_repeated_in_part() -> None:
    made = answer("x" * 10 * MAX_ECHO).text
    assert made.endswith("x…")
    assert made.count("x") == MAX_ECHO


def test_a_reasoner_reasons_first() -> None:
    made = answer(reasoner=True)
    assert made.reasoning == "The last message has 2 words."
    assert made.text == answer().text
    assert answer().reasoning == ""


def test_a_tool_call_stands_alone() -> None:
    made = answer("Call f.", tools=[{"function": {"name": "f"}}])
    assert made == Answer(call=ToolCall("f", "{}"))
    assert made.only_calls


def test_json_object() -> None:
    made = json.loads(answer(response_format={"type": "json_object"}).text)
    assert made == {"answer": answer().text}


def test_json_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(answer(response_format=wanted).text) == {"n": 5}


def test_text_is_no_special_format() -> None:
    assert answer(response_format={"type": "text"}) == answer()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"type": "json_schema"}, "json_schema is missing"),
        ({"type": "json_schema", "json_schema": {"schema": {"pattern": "a"}}},
         "json_schema: pattern is not supported"),
    ],
)  # fmt: skip
def test_a_format_that_cannot_be_met(wanted: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProfileError, match=reason) as caught:
        answer(response_format=wanted)
    assert caught.value.param == "response_format"


def test_a_script_gives_its_parts_in_order() -> None:
    script = Script(tokens=2, text="one two", reasoning=2, tool="f", args='{"q":"12345"}')
    assert list(scripted_answer(script).pieces()) == [
        (Kind.REASONING, "think0"),
        (Kind.REASONING, " think1"),
        (Kind.TEXT, "one"),
        (Kind.TEXT, " two"),
        (Kind.TEXT, " tok0"),
        (Kind.TEXT, " tok1"),
        (Kind.CALL, "f"),
        (Kind.ARGUMENTS, '{"q":"12'),
        (Kind.ARGUMENTS, '345"}'),
    ]
    assert not scripted_answer(script).only_calls
    assert scripted_answer(Script(tool="f")).only_calls


def test_numbered_text_alone_has_no_leading_space() -> None:
    pieces = [text for _, text in scripted_answer(Script(tokens=3)).pieces()]
    assert pieces == ["tok0", " tok1", " tok2"]


@pytest.mark.parametrize("text", ["one", " one  two\nthree ", "", "   ", "ünï 漢字"])
def test_pieces_lose_nothing(text: str) -> None:
    pieces = [piece for _, piece in Answer(text=text).pieces()]
    assert "".join(pieces) == text
    assert len(pieces) == count_words(text)
