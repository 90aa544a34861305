from typing import Any

import pytest

from nnrp_backend.adapter.sim.request import NamedChoice, read_request
from nnrp_backend.profile.errors import ErrorCode, ProfileError

MESSAGES = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": MESSAGES, **fields}


def test_a_bare_request() -> None:
    request = read_request(body())
    assert (request.model, request.limit, request.stops, request.functions) == ("sim", None, [], {})


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    nulls = dict.fromkeys(("max_tokens", "stop", "n", "tools", "tool_choice", "stream_options"))
    assert read_request(body(**nulls, temperature=9, chat_template_kwargs={})) == read_request(
        body()
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}], "b"),
    ],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    request = read_request(body(messages=[{"role": "user", "content": content}]))
    assert request.messages[0].text() == text


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
    ],
)
def test_the_limit(fields: dict[str, int], limit: int) -> None:
    assert read_request(body(**fields)).limit == limit


@pytest.mark.parametrize(
    ("stop", "stops"), [("x", ["x"]), (["x", "yz"], ["x", "yz"]), ([], []), ("", []), ([""], [])]
)
def test_stop_strings(stop: Any, stops: list[str]) -> None:
    assert read_request(body(stop=stop)).stops == stops


def test_functions_by_name() -> None:
    tools = [
        {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}},
        {"type": "builtin_function"},
        {"function": {"name": "b"}},
    ]
    functions = read_request(body(tools=tools)).functions
    assert list(functions) == ["a", "b"]
    assert functions["a"].parameters == {"type": "object"}


def test_a_named_tool_choice() -> None:
    choice = {"type": "function", "function": {"name": "a"}}
    request = read_request(body(tool_choice=choice))
    assert isinstance(request.tool_choice, NamedChoice)
    assert request.tool_choice.function.name == "a"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"function": {}}]}, "tools[0].function"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read_request(body(**fields))
    assert caught.value.code == ErrorCode.INVALID_BACKEND_REQUEST
    assert caught.value.param == param


def test_a_missing_field_has_no_path() -> None:
    with pytest.raises(ProfileError, match="missing required field `model`") as caught:
        read_request({"messages": MESSAGES})
    assert caught.value.param is None
