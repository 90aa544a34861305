import json
from typing import Any

import pytest

from nnrp_backend.adapter.sim.request import read_request
from nnrp_backend.adapter.sim.tools import ToolCall, choose_call
from nnrp_backend.profile.errors import ProfileError

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}},
            "required": ["city", "unit"],
        },
    },
}
LOOKUP = {"type": "function", "function": {"name": "lookup"}}


def choose(text: str = "hi", *, role: str = "user", **fields: Any) -> ToolCall | None:
    fields.setdefault("tools", [WEATHER, LOOKUP])
    body = {"model": "sim", "messages": [{"role": role, "content": text}], **fields}
    return choose_call(read_request(body))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_required_calls_the_first_function() -> None:
    call = choose(tool_choice="required")
    assert call is not None
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "sim", "unit": "celsius"}


def test_a_named_choice_calls_its_function() -> None:
    assert choose(tool_choice=named("lookup")) == ToolCall("lookup", "{}")


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("Call the lookup tool.", "lookup"),
        ("lookup", "lookup"),
        ("Use `get_weather` or lookup", "get_weather"),
        ("Say hello.", None),
        ("Call the look-up tool.", None),
        ("my_lookup is not a tool", None),
        ("a lookup-table", None),
        ("Lookup", None),
    ],
)
def test_auto_calls_what_the_user_names(
    choice: dict[str, str], text: str, called: str | None
) -> None:
    call = choose(text, **choice)
    assert (call.name if call else None) == called


def test_auto_answers_a_tool_result_instead_of_calling_again() -> None:
    assert choose("the lookup found nothing", role="tool") is None


def test_auto_without_tools_calls_nothing() -> None:
    assert choose("Call the lookup tool.", tools=None) is None


def test_none_calls_nothing() -> None:
    assert choose("Call the lookup tool.", tool_choice="none") is None


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"tools": None, "tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        ({"tool_choice": named("gone")}, "tool_choice", "'gone', which is not in tools"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"pattern": "a"}}}],
             "tool_choice": "required"},
            "tools", "parameters of f: pattern is not supported (at the top)",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}],
             "tool_choice": "required"},
            "tools", "parameters of f describe no object",
        ),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be_met(fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ProfileError) as caught:
        choose(**fields)
    assert caught.value.param == param
    assert reason in caught.value.message
