"""What the sim engine reads of a chat request. Sampling parameters and unknown fields are ignored.

There is no tokenizer: a token is a word with the space before it, and token ids mean nothing.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from nnrp_backend.profile.errors import ErrorCode, ProfileError

MAX_CHOICES: Final = 128
MAX_TOP_LOGPROBS: Final = 20
"""Both as in OpenAI's own description of the API."""

Positive = Annotated[int, Meta(ge=1)]


class ContentPart(Struct):
    """One part of a message; only `text` parts are read."""

    type: str
    text: str | None = None


class Message(Struct):
    """One message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    def text(self) -> str:
        """Return the message's text, of all its text parts together."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class Function(Struct):
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    """An entry of `tools`; only functions can be called."""

    type: str = "function"
    function: Function | None = None


class FunctionName(Struct):
    """The inner part of a named `tool_choice`."""

    name: str


class NamedChoice(Struct):
    """A `tool_choice` that names its function."""

    function: FunctionName


class JsonSchema(Struct):
    """The inner part of a `json_schema` response format."""

    schema: dict[str, Any] | bool = True


class ResponseFormat(Struct):
    """What the text of the answer has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Struct):
    """What a stream carries besides deltas."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ChatRequest(Struct):
    """A chat completion request, typed."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Any = None
    stream_options: StreamOptions | None = None

    @property
    def limit(self) -> int | None:
        """Return the most tokens that one choice may have; the newer field wins."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Return the stop strings, without empty ones."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    @property
    def functions(self) -> dict[str, Function]:
        """Return the callable functions by name."""
        declared = (tool.function for tool in self.tools or [])
        return {function.name: function for function in declared if function is not None}


def read_request(body: dict[str, Any]) -> ChatRequest:
    """Check the types and bounds of a request body.

    Raises:
        ProfileError: `invalid_backend_request`, with the field in `param`.
    """
    try:
        request = msgspec.convert(body, ChatRequest)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise refuse(reason, param=place.strip("`").removeprefix("$").removeprefix(".")) from None
    if request.top_logprobs is not None and not request.logprobs:
        raise refuse("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.structured_outputs is not None:
        raise refuse("the sim engine has response_format only", param="structured_outputs")
    return request


def refuse(reason: str, *, param: str | None = None) -> ProfileError:
    """Return the error of a request that this engine cannot serve as it is."""
    return ProfileError(ErrorCode.INVALID_BACKEND_REQUEST, reason, param=param or None)
