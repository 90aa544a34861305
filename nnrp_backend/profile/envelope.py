"""The request envelope (profile section 6) and our hints inside its `nnrp` member."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import CHAT, SCHEMA_VERSION

MAX_DEPTH: Final = 64
"""Nesting that a request body may have; deeper JSON costs stack in every later parser."""

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class ChunkOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Say how the sender wants the chat chunks that come back to look."""

    reasoning: Literal["reasoning_content", "reasoning", "both"] = "reasoning_content"
    """Key that carries reasoning text in deltas and messages."""
    model: str | None = None
    """Model name to show instead of the engine's."""
    usage: Literal["null", "absent"] = "absent"
    """Chunks before the usage chunk carry `"usage": null`, or no `usage` at all."""
    terminal: Literal["full", "brief"] = "full"
    """`response.completed` of a stream carries the whole rebuilt body, or only its end."""


class NnrpOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hold policy hints for the adapter; they never enter the request body.

    Members that are not known here are ignored, and `null` means absent.
    """

    timeout_ms: _Natural | None = None
    """Longest silence of the engine between two events, in milliseconds; 0 means no bound."""
    deadline_ms: _Natural | None = None
    """Milliseconds left until the whole operation must have ended, counted from its arrival."""
    diagnostics: bool = False
    """Ask for one `response.diagnostics` event."""
    credit: _Natural | None = None
    """First window of result credit, in events."""
    traceparent: str | None = None
    """W3C trace context, whole, between endpoints of this project."""
    openai_chunk: ChunkOptions | None = None
    """How chat chunks should look; None asks for no particular form."""


class Envelope(NamedTuple):
    """One decoded request."""

    operation: str
    request_id: str
    """The client's correlation id, or one derived from the frame id; never an engine's id."""
    body: dict[str, Any]
    nnrp: NnrpOptions


def decode_envelope(
    payload: bytes,
    *,
    frame_id: int,
    max_depth: int = MAX_DEPTH,
    serves: Callable[[str], bool] | None = None,
) -> Envelope:
    """Decode and check an envelope.

    Args:
        frame_id: frame of the submit, from which an absent `request_id` is derived.
        max_depth: levels of nesting that `body` may have, itself included.
        serves: which operations the capability document advertises; None takes any name.

    Raises:
        ProfileError: in this order `invalid_submit_body`, `unsupported_schema_version`,
            `unsupported_operation`, `invalid_body`, `missing_model`, `missing_messages` (the two
            of chat), `invalid_request_id`, `invalid_nnrp_policy`. Public adapters check in the
            same order, so that one wrong request gets one code everywhere.
    """
    members = _decode_object(payload, max_depth + 1)
    version = members.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ProfileError(
            ErrorCode.UNSUPPORTED_SCHEMA_VERSION,
            f"schema_version must be {SCHEMA_VERSION!r}.",
            param="schema_version",
        )
    operation = members.get("operation")
    if not isinstance(operation, str) or (serves is not None and not serves(operation)):
        raise ProfileError(
            ErrorCode.UNSUPPORTED_OPERATION,
            f"The operation {operation!r} is not served here."
            if isinstance(operation, str)
            else "operation must be a string.",
            param="operation",
        )
    body = _checked_body(operation, members.get("body"))
    request_id = members.get("request_id")
    if request_id is not None and not isinstance(request_id, str):
        raise ProfileError(
            ErrorCode.INVALID_REQUEST_ID, "request_id must be a string.", param="request_id"
        )
    return Envelope(
        operation,
        request_id or f"nnrp-{frame_id}",
        body,
        _nnrp_options(members.get("nnrp")),
    )


def encode_envelope(
    operation: str,
    body: bytes,
    *,
    request_id: str | None = None,
    nnrp: NnrpOptions | None = None,
) -> bytes:
    """Wrap the bytes of a JSON object, unparsed, into an envelope."""
    encode = msgspec.json.encode
    parts = [b'{"schema_version":"', SCHEMA_VERSION.encode(), b'","operation":', encode(operation)]
    if request_id is not None:
        parts += b',"request_id":', encode(request_id)
    if nnrp is not None:
        parts += b',"nnrp":', encode(nnrp)
    parts += b',"body":', body, b"}"
    return b"".join(parts)


def _decode_object(payload: bytes, max_depth: int) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ProfileError(
            ErrorCode.INVALID_SUBMIT_BODY, f"The request is not valid JSON: {exc}."
        ) from None
    if not isinstance(members, dict):
        raise ProfileError(ErrorCode.INVALID_SUBMIT_BODY, "The request is not a JSON object.")
    # Counting brackets is an upper bound that most bodies, and flat token arrays, stay below.
    brackets = payload.count(b"{") + payload.count(b"[")
    if brackets > max_depth and _deeper_than(members, max_depth):
        raise ProfileError(
            ErrorCode.INVALID_SUBMIT_BODY, f"The body is nested deeper than {max_depth - 1} levels."
        )
    return members


def _deeper_than(tree: Any, limit: int) -> bool:
    level = [tree]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _checked_body(operation: str, body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ProfileError(ErrorCode.INVALID_BODY, "body must be a JSON object.", param="body")
    if operation == CHAT:
        model, messages = body.get("model"), body.get("messages")
        if not isinstance(model, str) or not model:
            raise ProfileError(
                ErrorCode.MISSING_MODEL, "model must be a non-empty string.", param="model"
            )
        if not isinstance(messages, list) or not messages:
            raise ProfileError(
                ErrorCode.MISSING_MESSAGES, "messages must be a non-empty array.", param="messages"
            )
    return body


def _nnrp_options(value: Any) -> NnrpOptions:
    if value is None:
        return NnrpOptions()
    try:
        if not isinstance(value, dict):
            raise msgspec.ValidationError("Expected `object`")
        present = {key: member for key, member in value.items() if member is not None}
        return msgspec.convert(present, NnrpOptions)
    except msgspec.ValidationError as exc:
        raise ProfileError(
            ErrorCode.INVALID_NNRP_POLICY, f"nnrp is malformed: {exc}.", param="nnrp"
        ) from None
