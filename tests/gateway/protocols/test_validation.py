from typing import Any

import pytest
from pydantic import BaseModel

from gateway.protocols.chat import ChatRequest
from gateway.protocols.errors import InvalidRequest
from gateway.protocols.validation import checked


def refused(body: dict[str, Any], model: type[BaseModel] = ChatRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        checked(model, body)
    return caught.value


def user(content: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


def test_a_valid_body_gives_the_model() -> None:
    assert checked(ChatRequest, user("hi")).model == "m"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (
            {**user("x"), "stream": "true"},
            "stream",
            "Invalid type for 'stream': expected a boolean, but got a string instead.",
        ),
        (
            user(3),
            "messages[0].content",
            (
                "Invalid type for 'messages[0].content': "
                "expected a string or an array, but got an integer instead."
            ),
        ),
        (
            user([{"type": "text", "text": None}]),
            "messages[0].content[0].text",
            (
                "Invalid type for 'messages[0].content[0].text': "
                "expected a string, but got null instead."
            ),
        ),
        (
            user([{"type": "text"}]),
            "messages[0].content[0].text",
            "Missing required parameter: 'messages[0].content[0].text'.",
        ),
        (
            user([{"text": "x"}]),
            "messages[0].content[0].type",
            "Missing required parameter: 'messages[0].content[0].type'.",
        ),
        (
            user([{"type": "image_url", "image_url": {"url": "no"}}]),
            "messages[0].content[0].image_url.url",
            (
                "Invalid value for 'messages[0].content[0].image_url.url': "
                "it is not a well-formed url."
            ),
        ),
        (
            {**user("x"), "reasoning_effort": "ultra"},
            "reasoning_effort",
            (
                "Invalid value for 'reasoning_effort': "
                "expected 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'."
            ),
        ),
        (
            {"model": "m", "messages": [{"role": "king"}]},
            "messages[0].role",
            (
                "Invalid value for 'messages[0].role': expected one of "
                "'developer', 'system', 'user', 'assistant', 'tool', 'function'."
            ),
        ),
        (
            {**user("x"), "logit_bias": {"1": "x"}},
            "logit_bias.1",
            "Invalid type for 'logit_bias.1': expected a number, but got a string instead.",
        ),
        (
            {**user("x"), "n": -1},
            "n",
            "Invalid value for 'n': input should be greater than or equal to 0.",
        ),
    ],
)
def test_the_sentence_names_the_member_as_the_user_wrote_it(
    body: dict[str, Any], param: str, message: str
) -> None:
    error = refused(body)
    assert (error.param, error.message) == (param, message)


def test_the_first_wrong_member_is_reported() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "fine"},
            {"role": "user", "content": 1},
            {"role": "user", "content": [{"type": "text", "text": {"deeper": 1}}]},
        ],
        "stream": "no",
    }
    assert refused(body).param == "messages[1].content"


def test_a_value_of_no_json_type_is_named_too() -> None:
    assert refused({**user("x"), "user": b"bytes"}).message.endswith(
        "expected a string, but got something else instead."
    )


def test_nothing_of_pydantic_shows() -> None:
    for body in (user(3), user([{"type": "text"}]), {"model": 1}, {**user("x"), "seed": 2**70}):
        error = refused(body)
        assert "pydantic" not in error.message
        assert "Input should" not in error.message
        assert error.__cause__ is None
