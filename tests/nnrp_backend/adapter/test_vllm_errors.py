"""Error objects as vLLM 0.32.0 makes them; recorded from it unless a comment says otherwise."""

from typing import Any

import pydantic
import pytest

from nnrp_backend.adapter.vllm_errors import (
    MESSAGE_LIMIT,
    OVERLOAD_RETRY_MS,
    from_error,
    from_validation,
)


def error(message: str, code: int, param: str | None = None, type: str = "BadRequestError") -> Any:
    return {"message": message, "type": type, "param": param, "code": code}


TOO_LONG = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains at least "
    "2049 input tokens, which exceeds this limit even without any output tokens. Please reduce the "
    "length of the input prompt. (parameter=input_tokens, value=2049)"
)


class TestErrorObjects:
    def test_an_unknown_model_is_named_without_the_list_of_the_known(self) -> None:
        refused = from_error(
            error(
                "The model `nope` does not exist. Valid aliases: tiny.",
                404,
                "model",
                "NotFoundError",
            )
        )
        assert (refused.code, refused.type) == ("unsupported_model", "invalid_request_error")
        assert (refused.message, refused.param) == ("The model `nope` does not exist.", "model")

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            (TOO_LONG, "input_tokens"),
            ("Input length (3000) exceeds model's maximum context length (2048).", None),
        ],
    )
    def test_a_prompt_that_is_too_long_is_told_apart(self, message: str, param: str | None) -> None:
        refused = from_error(error(message, 400, param))
        assert (refused.code, refused.type) == ("context_length_exceeded", "invalid_request_error")
        assert refused.param == "messages"
        assert refused.message == message.partition(" (parameter=")[0]

    def test_too_many_requested_tokens_are_no_matter_of_the_context(self) -> None:
        refused = from_error(
            error(
                "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer "
                "output tokens. (parameter=max_tokens, value=5000)",
                400,
                "max_tokens",
            )
        )
        assert (refused.code, refused.param) == ("invalid_backend_request", "max_tokens")

    def test_the_quoted_value_is_dropped_however_long_it_is(self) -> None:
        message = "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1\n(2))"
        refused = from_error(error(message, 400, "max_tokens"))
        assert refused.message == "max_tokens must be at least 1, got -1."
        assert refused.param == "max_tokens"

    def test_the_grammar_compilers_place_in_its_source_is_dropped(self) -> None:
        refused = from_error(
            error(
                "Failed to transform regex into a grammar: [22:53:28] <path>:83: Regex parsing "
                "error at position 4: The parenthesis is not closed.",
                400,
            )
        )
        assert refused.message == (
            "Failed to transform regex into a grammar: Regex parsing error at position 4: "
            "The parenthesis is not closed."
        )

    @pytest.mark.parametrize("status", [400, 413, 422, 501])
    def test_what_the_client_did_wrong_keeps_its_words(self, status: int) -> None:
        refused = from_error(error("stop cannot contain an empty string.", status))
        assert refused.code == "invalid_backend_request"
        assert refused.message == "stop cannot contain an empty string."
        assert refused.param is None

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_full_queue_asks_to_come_back(self, status: int) -> None:
        # vllm/exceptions.py, QueueOverflowError
        refused = from_error(
            error("The engine is currently busy and cannot accept new requests. ...", status)
        )
        assert (refused.code, refused.retryable) == ("backend_overload", True)
        assert refused.retry_after_ms == OVERLOAD_RETRY_MS

    @pytest.mark.parametrize(
        "body",
        [
            error("CUDA error: an illegal memory access was encountered", 500),
            error("'NoneType' object has no attribute 'shape'", 500, None, "InternalServerError"),
            {"message": "no code at all"},
            {},
        ],
    )
    def test_a_failure_of_the_engine_says_nothing_of_its_inside(self, body: Any) -> None:
        failed = from_error(body)
        assert (failed.code, failed.type) == ("backend_error", "server_error")
        assert failed.message == "the engine failed on this request"
        assert failed.param is None

    def test_a_long_message_is_cut(self) -> None:
        message = from_error(error("x" * 100_000, 400)).message
        assert len(message) == MESSAGE_LIMIT
        assert message.endswith("x…")

    def test_an_empty_message_still_says_something(self) -> None:
        assert from_error(error("", 400)).message == "the engine refused the request"


class Function(pydantic.BaseModel):
    name: str


class Tool(pydantic.BaseModel):
    type: str
    function: Function


class TextPart(pydantic.BaseModel):
    text: str


class ImagePart(pydantic.BaseModel):
    image_url: str


class Chat(pydantic.BaseModel):
    temperature: float = 1.0
    stop: str | list[str] | None = None
    tools: list[Tool] = []
    parts: list[TextPart | ImagePart] = []

    @pydantic.field_validator("temperature")
    @classmethod
    def not_negative(cls, value: float) -> float:
        if value < 0:
            raise ValueError("must not be negative")
        return value


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (
            {"temperature": "hot"},
            "temperature",
            "temperature: Input should be a valid number, unable to parse string as a number",
        ),
        ({"temperature": -1}, "temperature", "temperature: must not be negative"),
        ({"stop": 5}, "stop", "stop: is not valid"),
        ({"stop": ["a", 5]}, "stop", "stop: Input should be a valid string"),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "tools[0].function.name",
            "tools[0].function.name: Field required",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": 5}}]},
            "tools[0].function.name",
            "tools[0].function.name: Input should be a valid string",
        ),
        ({"parts": [{"text": "a"}, {"sound": "b"}]}, "parts[1]", "parts[1]: Field required"),
        ({"parts": [{"text": 5}]}, "parts[0]", "parts[0]: is not valid"),
        ("not an object", None, "Input should be a valid dictionary or instance of Chat"),
    ],
)
def test_a_validation_error_names_the_member_at_fault(
    body: Any, param: str | None, message: str
) -> None:
    with pytest.raises(pydantic.ValidationError) as invalid:
        Chat.model_validate(body)
    refused = from_validation(invalid.value.errors(), body)
    assert (refused.code, refused.type) == ("invalid_backend_request", "invalid_request_error")
    assert (refused.param, refused.message) == (param, message)
