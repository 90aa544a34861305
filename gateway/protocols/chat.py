"""`POST /v1/chat/completions`: the request.

Types only. How large a number may be, which models take images, whether tools make sense beside a
grammar: the engine knows, and says so in its own words.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.protocols.base import RequestModel
from gateway.protocols.media import AnyPart
from gateway.protocols.scalars import Int64, NullIsFalse, UInt8, UInt32

__all__ = [
    "AssistantMessage",
    "ChatRequest",
    "Message",
    "StreamOptions",
    "SystemMessage",
    "ToolCall",
]

Content: TypeAlias = str | list[AnyPart]
ReasoningText: TypeAlias = str | list[str]


def _arguments_text(value: Any) -> Any:
    """Some clients send the parsed object back; the canonical form is its compact text."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    raise PydanticCustomError("arguments_type", "function arguments must be a string or object")


class FunctionCall(RequestModel):
    name: str
    arguments: Annotated[str, BeforeValidator(_arguments_text)]


class ToolCall(RequestModel):
    id: str
    type: Literal["function", "builtin_function"] = "function"
    function: FunctionCall


class _Message(RequestModel):
    """Members that every role knows, if only to refuse them."""

    name: str | None = None
    tools: None = None
    partial: None = None


class DeveloperMessage(_Message):
    role: Literal["developer"]
    content: Content


class SystemMessage(_Message):
    """A system message may bring tools of its own; then its content may be missing."""

    role: Literal["system"]
    content: Content | None = None
    tools: list[Any] | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _content_unless_tools(self) -> Self:
        if self.content is None:
            if not self.tools:
                raise PydanticCustomError("missing_content", "missing field `content`")
            self.content = ""
        return self


class UserMessage(_Message):
    role: Literal["user"]
    content: Content


class AssistantMessage(_Message):
    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: ReasoningText | None = None
    reasoning: ReasoningText | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    partial: bool | None = None  # type: ignore[assignment]

    @field_validator("reasoning", mode="after")
    @classmethod
    def _one_reasoning(cls, value: Any, info: ValidationInfo) -> Any:
        other = info.data.get("reasoning_content")
        if value is not None and other is not None and value != other:
            raise PydanticCustomError(
                "duplicate_field", "duplicate field `reasoning_content` (also given as `reasoning`)"
            )
        return value

    @model_serializer(mode="wrap")
    def _one_name(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if (reasoning := data.pop("reasoning", None)) is not None:
            data["reasoning_content"] = reasoning
        return data


class ToolMessage(_Message):
    role: Literal["tool"]
    tool_call_id: str
    content: Content


class FunctionMessage(_Message):
    role: Literal["function"]
    content: str | None


Message: TypeAlias = Annotated[
    DeveloperMessage
    | SystemMessage
    | UserMessage
    | AssistantMessage
    | ToolMessage
    | FunctionMessage,
    Field(discriminator="role"),
]


class StreamOptions(RequestModel):
    include_usage: NullIsFalse = False
    continuous_usage_stats: NullIsFalse = False


class FunctionDefinition(RequestModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    type: Literal["function", "builtin_function"]
    function: FunctionDefinition


class FunctionName(RequestModel):
    name: str


def _check_tool_choice(value: Any) -> Any:
    match value:
        case None | "none" | "auto" | "required":
            return value
        case {"type": "function", "function": {"name": str()}}:
            return value
    raise PydanticCustomError(
        "tool_choice",
        "expected 'none', 'auto', 'required' or an object that names a function",
    )


def _check_stop(value: Any) -> Any:
    """Take text or token ids, never both: an engine reads them as different things."""
    match value:
        case None | str():
            return value
        case list() if all(type(item) is str for item in value):
            return value
        case list() if all(type(item) is int and 0 <= item < 2**32 for item in value):
            return value
    raise PydanticCustomError(
        "stop", "expected a string, an array of strings or an array of token ids"
    )


# Checked by hand: of these unions pydantic reports every branch, and the user meant only one.
ToolChoice: TypeAlias = Annotated[str | dict[str, Any] | None, PlainValidator(_check_tool_choice)]
Stop: TypeAlias = Annotated[str | list[str] | list[int] | None, PlainValidator(_check_stop)]


class ResponseFormat(RequestModel):
    """`text`, `json_object`, `json_schema` and whatever else the engine can hold a model to."""

    type: str
    json_schema: dict[str, Any] | None = None


class ChatRequest(RequestModel):
    messages: list[Message]
    model: str
    audio: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    functions: list[FunctionDefinition] | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    max_completion_tokens: UInt32 | None = None
    max_tokens: UInt32 | None = None
    metadata: Any = None
    mm_processor_kwargs: Any = None
    modalities: list[str] | None = None
    n: UInt8 | None = None
    parallel_tool_calls: bool | None = None
    prediction: Any = None
    presence_penalty: float | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    response_format: ResponseFormat | None = None
    safety_identifier: str | None = None
    seed: Int64 | None = None
    service_tier: str | None = None
    stop: Stop = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    tool_choice: ToolChoice = None
    tools: list[Tool] | None = None
    top_logprobs: int | None = None  # vLLM takes -1 for "all of them"
    top_p: float | None = None
    user: str | None = None
    web_search_options: Any = None
