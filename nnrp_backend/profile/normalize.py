"""The serving-adapter policy: what a chat body must lose or gain before an engine sees it.

Clients send more than engines take. The rules, each with its reason:

- `null` at the top level means absent; engines refuse it for some members.
- `stream_options` without `stream: true` is dropped; vLLM refuses it.
- An empty `tools` is dropped with its `tool_choice` (agents send it always; vLLM refuses it).
  `tool_choice` without any tools is an error, `"none"` excepted, which then says nothing.
- `text.format` becomes `response_format`; the verbosity beside it is no engine's.
- `stop` given as token ids becomes `stop_token_ids`.
- `partial: true` on the last assistant message asks to go on with it.
- Reasoning in messages goes under `reasoning`, the key that vLLM reads.
- Tool-call arguments given as an object become their JSON text; a missing type is `function`.
- A media part without a url must name a `uuid`; its url member becomes null.

Everything else, unknown members included, passes as it is.
"""

from collections.abc import Iterator
from typing import Any, Final

from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.tool_calls import arguments_text

_MEDIA: Final = ("image_url", "video_url", "audio_url")


def normalize_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return a chat body ready for the engine; the argument is not changed, but shared in part.

    Raises:
        ProfileError: `invalid_body`, for what no engine can do; `param` says where.
    """
    normal = {key: value for key, value in body.items() if value is not None}
    _stream_options(normal)
    _response_format(normal)
    _stop(normal)
    messages = normal.get("messages")
    if isinstance(messages, list) and messages:
        last = messages[-1]
        if isinstance(last, dict) and last.get("partial") is True:
            normal["continue_final_message"] = True
            normal["add_generation_prompt"] = False
        normal["messages"] = [_message(message) for message in messages]
    _tools(normal)
    return normal


def _stream_options(body: dict[str, Any]) -> None:
    if body.get("stream") is not True:
        body.pop("stream_options", None)
    elif isinstance(body.get("stream_options"), dict):
        options = body["stream_options"]
        body["stream_options"] = {k: v for k, v in options.items() if v is not None}


def _response_format(body: dict[str, Any]) -> None:
    if not isinstance(body.get("text"), dict):
        return
    format_ = body.pop("text").get("format")
    if not isinstance(format_, dict) or "response_format" in body:
        return
    if format_.get("type") == "json_schema":
        schema = {k: v for k, v in format_.items() if k != "type" and v is not None}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    else:
        body["response_format"] = format_


def _stop(body: dict[str, Any]) -> None:
    stop = body.get("stop")
    if isinstance(stop, list) and stop and all(type(token) is int for token in stop):
        del body["stop"]
        body["stop_token_ids"] = [*body.get("stop_token_ids", ()), *stop]


def _tools(body: dict[str, Any]) -> None:
    if body.get("tools") == []:
        del body["tools"]
        body.pop("tool_choice", None)
    choice = body.get("tool_choice")
    if choice is None:
        return
    names = set(_effective_tools(body))
    if choice == "none":
        if not names:
            del body["tool_choice"]
        return
    if not names and "tools" not in body:
        raise _invalid("tool_choice", "tool_choice needs tools.")
    function = choice.get("function") if isinstance(choice, dict) else None
    named = function.get("name") if isinstance(function, dict) else None
    if named is not None and named not in names:
        raise _invalid("tool_choice", f"tool_choice names {named!r}, which is none of the tools.")


def _effective_tools(body: dict[str, Any]) -> Iterator[str]:
    """Yield the names of all tools: the body's own, then those of its system messages."""
    systems = (
        message
        for message in body.get("messages", ())
        if isinstance(message, dict) and message.get("role") == "system"
    )
    for holder in (body, *systems):
        tools = holder.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict):
                function = tool.get("function")
                name = function.get("name") if isinstance(function, dict) else tool.get("name")
                if isinstance(name, str):
                    yield name


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    normal = {key: value for key, value in message.items() if key != "partial"}
    _reasoning(normal)
    calls = normal.get("tool_calls")
    if isinstance(calls, list):
        normal["tool_calls"] = [_tool_call(call) for call in calls]
    content = normal.get("content")
    if isinstance(content, list):
        normal["content"] = [_part(part) for part in content]
    elif content is None and normal.get("role") == "system" and normal.get("tools"):
        normal["content"] = ""
    return normal


def _reasoning(message: dict[str, Any]) -> None:
    given = [
        _joined_segments(message.pop(key))
        for key in ("reasoning", "reasoning_content")
        if key in message
    ]
    given = [text for text in given if text is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise _invalid("messages", "duplicate field `reasoning_content`: `reasoning` differs")
    if given:
        message["reasoning"] = given[0]


def _joined_segments(reasoning: Any) -> Any:
    """Segments are the thinking before each tool call; a template wants one text."""
    if isinstance(reasoning, list) and all(isinstance(segment, str) for segment in reasoning):
        return "\n".join(segment for segment in reasoning if segment)
    return reasoning


def _tool_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    normal = {"type": "function", **{k: v for k, v in call.items() if v is not None}}
    function = normal.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
        normal["function"] = function | {"arguments": arguments_text(function["arguments"])}
    return normal


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _MEDIA:
        return part
    media = part.get(kind)
    if isinstance(media, dict):
        if media.get("url"):
            return part
    elif media:
        return part  # a shape that only the engine can judge
    uuid = part.get("uuid") or (media or {}).get("uuid")
    if not uuid:
        raise _invalid("messages", f"{kind} needs a url, or the part a uuid.")
    return part | {kind: None, "uuid": uuid}


def _invalid(param: str, message: str) -> ProfileError:
    return ProfileError(ErrorCode.INVALID_BODY, message, param=param)
