"""The events that answer an operation (profile sections 7 to 12): encoders and decoders.

One event is one JSON object. Non-terminal ones travel as the body of a PARTIAL_RESULT, the
terminal one in the typed frame of a RESULT_PUSH. Field rules of received events are in
`violations`; the order of tool events is in `tool_calls`.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from nnrp_backend.profile.errors import ErrorCode, ProfileError

_encode: Final = msgspec.json.Encoder().encode


class EventType(StrEnum):
    """Types of the profile's events; `DIAGNOSTICS` is the adapters' extension."""

    TEXT_DELTA = "response.output_text.delta"
    TOOL_STARTED = "response.tool_call.started"
    TOOL_DELTA = "response.tool_call.delta"
    TOOL_COMPLETED = "response.tool_call.completed"
    TOOL_ERROR = "response.tool_call.error"
    USAGE = "response.usage"
    COMPLETED = "response.completed"
    ERROR = "response.error"
    CANCELLED = "response.cancelled"
    DIAGNOSTICS = "response.diagnostics"


TERMINAL_TYPES: Final = frozenset({EventType.COMPLETED, EventType.ERROR, EventType.CANCELLED})


class Event(msgspec.Struct, kw_only=True):
    """One decoded event; fields that its type does not have keep their defaults."""

    type: str
    index: int = 0
    """Of a text delta: the choice. Of a tool event: the call's place in its choice."""
    choice_index: int = 0
    """Of a tool event: the choice. Our extension, sent only when it is not 0."""
    delta: str = ""
    item_id: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    arguments_delta: str = ""
    reason: str = ""
    error: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    tool_call: dict[str, Any] | None = None
    """The frozen profile's shape of a tool delta; `tool_calls.ToolCallReader` translates it."""
    usage: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()
    openai_chunk: msgspec.Raw = msgspec.Raw()


class EventHead(msgspec.Struct):
    """The part of an event that replay needs; absent members are falsy."""

    type: str
    openai_chunk: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


_decode_event: Final = msgspec.json.Decoder(Event).decode
_decode_head: Final = msgspec.json.Decoder(EventHead).decode


def text_delta(index: int, delta: str, chunk: bytes = b"") -> bytes:
    """Encode `response.output_text.delta`; `index` is the choice."""
    body = b'{"type":"response.output_text.delta","index":%d,"delta":%b' % (index, _encode(delta))
    return _with_chunk(body, chunk)


def tool_started(
    index: int, item_id: str, call_id: str, name: str, chunk: bytes = b"", *, choice: int = 0
) -> bytes:
    """Encode `response.tool_call.started`; `index` is the call's place in its choice."""
    head = _tool_head(b"started", index, item_id, call_id, choice)
    return _with_chunk(b'%b,"name":%b' % (head, _encode(name)), chunk)


def tool_delta(
    index: int,
    item_id: str,
    call_id: str,
    arguments_delta: str,
    chunk: bytes = b"",
    *,
    choice: int = 0,
) -> bytes:
    """Encode `response.tool_call.delta`."""
    head = _tool_head(b"delta", index, item_id, call_id, choice)
    return _with_chunk(b'%b,"arguments_delta":%b' % (head, _encode(arguments_delta)), chunk)


def tool_completed(
    index: int,
    item_id: str,
    call_id: str,
    name: str,
    arguments: str,
    chunk: bytes = b"",
    *,
    choice: int = 0,
) -> bytes:
    """Encode `response.tool_call.completed`; `arguments` is the concatenation of the deltas."""
    head = _tool_head(b"completed", index, item_id, call_id, choice)
    tail = b',"name":%b,"arguments":%b' % (_encode(name), _encode(arguments))
    return _with_chunk(head + tail, chunk)


def tool_error(
    index: int,
    item_id: str,
    call_id: str,
    error: ProfileError,
    chunk: bytes = b"",
    *,
    choice: int = 0,
) -> bytes:
    """Encode `response.tool_call.error`; it ends the call, not the operation."""
    head = _tool_head(b"error", index, item_id, call_id, choice)
    return _with_chunk(b'%b,"error":%b' % (head, _encode(error.to_error())), chunk)


def usage(usage: bytes, chunk: bytes = b"") -> bytes:
    """Encode `response.usage` around the bytes of a usage object."""
    return _with_chunk(b'{"type":"response.usage","usage":' + usage, chunk)


def completed(body: bytes) -> bytes:
    """Encode the terminal `response.completed` around the bytes of a response body."""
    return b'{"type":"response.completed","body":%b}' % body


def error(error: ProfileError) -> bytes:
    """Encode the terminal `response.error`."""
    return b'{"type":"response.error","error":%b}' % _encode(error.to_error())


def cancelled(reason: str) -> bytes:
    """Encode the terminal `response.cancelled`, for a cancellation the adapter itself decided."""
    return b'{"type":"response.cancelled","reason":%b}' % _encode(reason)


def diagnostics(fields: Mapping[str, Any]) -> bytes:
    """Encode `response.diagnostics`."""
    return b'{"type":"response.diagnostics","diagnostics":%b}' % _encode(fields)


def attach_chunk(event: bytes, chunk: bytes) -> bytes:
    """Add an `openai_chunk` to an encoded event that has none."""
    return _with_chunk(event[:-1], chunk)


def _tool_head(kind: bytes, index: int, item_id: str, call_id: str, choice: int) -> bytes:
    head = b'{"type":"response.tool_call.%b","index":%d,"item_id":%b,"call_id":%b' % (
        kind,
        index,
        _encode(item_id),
        _encode(call_id),
    )
    return b'%b,"choice_index":%d' % (head, choice) if choice else head


def _with_chunk(body: bytes, chunk: bytes) -> bytes:
    return b'%b,"openai_chunk":%b}' % (body, chunk) if chunk else body + b"}"


def decode_event(body: bytes) -> Event:
    """Decode one event. Unknown types and unknown members pass (profile section 11).

    Raises:
        ProfileError: `adapter_runtime_error`, when `body` is not a JSON object with a `type`, or
            a known member has the wrong JSON type.
    """
    try:
        return _decode_event(body)
    except msgspec.ValidationError as exc:
        # A later type may use one of our member names for something else.
        head = peek(body)
        if head.type in _RULES:
            raise _malformed(exc) from None
        return Event(type=head.type, openai_chunk=head.openai_chunk)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _malformed(exc) from None


def peek(body: bytes) -> EventHead:
    """Decode only what replay needs.

    Raises:
        ProfileError: `adapter_runtime_error`, as for `decode_event`.
    """
    try:
        return _decode_head(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _malformed(exc) from None


def _malformed(exc: Exception) -> ProfileError:
    return ProfileError(
        ErrorCode.ADAPTER_RUNTIME_ERROR, f"The worker sent a malformed event: {exc}."
    )


def violations(event: Mapping[str, Any]) -> list[str]:
    """Name every field rule that a decoded event breaks; empty when it conforms.

    Members beyond the required ones are free (profile section 11), except that `openai_chunk`
    is an object wherever it appears.
    """
    type_ = event.get("type")
    if not isinstance(type_, str) or type_ not in _RULES:
        return [f"{type_!r} is no event type of the profile"]
    broken = [
        f"{type_}: {field} must be {rule.wanted}"
        for field, rule in _RULES[type_].items()
        if field not in event or not rule.holds(event[field])
    ]
    if "openai_chunk" in event and not isinstance(event["openai_chunk"], dict):
        broken.append(f"{type_}: openai_chunk must be an object")
    return broken


class _Rule(NamedTuple):
    wanted: str
    holds: Callable[[Any], bool]


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(member), str) and value[member]
        for member in ("type", "code", "message")
    )


_INDEX: Final = _Rule("a whole number from 0", lambda value: type(value) is int and value >= 0)
_TEXT: Final = _Rule("a string", lambda value: isinstance(value, str))
_NAME: Final = _Rule("a non-empty string", lambda value: isinstance(value, str) and value != "")
_OBJECT: Final = _Rule("an object", lambda value: isinstance(value, dict))
_ERROR: Final = _Rule("an object with the strings type, code and message", _is_error)
_CALL: Final = {"index": _INDEX, "item_id": _NAME, "call_id": _NAME}

_RULES: Final[Mapping[str, Mapping[str, _Rule]]] = {
    EventType.TEXT_DELTA: {"index": _INDEX, "delta": _TEXT},
    EventType.TOOL_STARTED: {**_CALL, "name": _NAME},
    EventType.TOOL_DELTA: {**_CALL, "arguments_delta": _TEXT},
    EventType.TOOL_COMPLETED: {**_CALL, "name": _NAME, "arguments": _TEXT},
    EventType.TOOL_ERROR: {**_CALL, "error": _ERROR},
    EventType.USAGE: {"usage": _OBJECT},
    EventType.COMPLETED: {"body": _OBJECT},
    EventType.ERROR: {"error": _ERROR},
    EventType.CANCELLED: {"reason": _TEXT},
    EventType.DIAGNOSTICS: {"diagnostics": _OBJECT},
}
"""Required members of each event (profile section 7, and its machine-readable contract)."""
