"""What vLLM says when it refuses or fails, as errors of the profile.

It says so in three forms: an `ErrorResponse` returned in place of an answer, an exception, and an
error object in the middle of a stream. All three come down to the same object of `message`,
`type`, `param` and an HTTP status as `code`. A client's mistake keeps vLLM's words, which vLLM has
cleaned of paths and addresses; a failure of the engine's own gets ours, and its log has the rest.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nnrp_backend.profile.errors import ErrorCode, ProfileError

OVERLOAD_RETRY_MS: Final = 1000
"""How long to stay away from an engine whose queue is full; vLLM gives no number."""

MESSAGE_LIMIT: Final = 500
"""Characters of a message. A validation error can quote the whole request."""

_INTERNAL: Final = re.compile(
    r" \((?:parameter|value)=.*\)$"  # what a validation error appends: the value, however long
    r"|\[\d\d:\d\d:\d\d\] \S+:\d+: ",  # where in its source the grammar compiler stood
    re.DOTALL,
)
_PROMPT_PARAMS: Final = (None, "input_tokens", "input_text")


def from_error(error: Mapping[str, Any]) -> ProfileError:
    """Translate vLLM's error object."""
    status = error.get("code")
    message = _clean(error.get("message"))
    param = error.get("param") or None
    if status == 404:
        # The list of what is served names workers' models, which a gateway may call otherwise.
        message = message.partition(" Valid aliases:")[0]
        return ProfileError(ErrorCode.UNSUPPORTED_MODEL, message, param="model")
    if status in (429, 503):
        return ProfileError(
            ErrorCode.BACKEND_OVERLOAD,
            "the engine cannot take more requests now",
            retry_after_ms=OVERLOAD_RETRY_MS,
        )
    if status in (400, 413, 422, 501):
        if param in _PROMPT_PARAMS and "maximum context length" in message:
            return ProfileError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param="messages")
        return ProfileError(ErrorCode.INVALID_BACKEND_REQUEST, message, param=param)
    return ProfileError(ErrorCode.BACKEND_ERROR, "the engine failed on this request")


def from_validation(errors: Sequence[Mapping[str, Any]], body: Any) -> ProfileError:
    """Translate what pydantic found wrong with a request body.

    Args:
        errors: `ValidationError.errors()`. A value that fits no variant of a union has one for each
            variant, so the parameter is what all of them have in common.
        body: the request, to tell its keys from the names that pydantic gives to variants.
    """
    first = errors[0]["loc"][:1]
    same = [error for error in errors if error["loc"][:1] == first]
    param = _render(_common([_path(error, body) for error in same]))
    reasons = {str(error["msg"]).removeprefix("Value error, ") for error in same}
    reason = reasons.pop() if len(reasons) == 1 else "is not valid"
    message = _clean(f"{param}: {reason}" if param else reason)
    return ProfileError(ErrorCode.INVALID_BACKEND_REQUEST, message, param=param)


def _path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    """Return the steps of an error's location that lead somewhere in `body`."""
    path: list[str | int] = []
    here = body
    for step in error["loc"]:
        inside = isinstance(here, Mapping) and step in here
        if inside or (isinstance(here, list) and isinstance(step, int) and step < len(here)):
            path.append(step)
            here = here[step]
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return path


def _common(paths: Sequence[Sequence[str | int]]) -> list[str | int]:
    common: list[str | int] = []
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        common.append(steps[0])
    return common


def _render(path: Sequence[str | int]) -> str | None:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or None


def _clean(message: Any) -> str:
    text = " ".join(_INTERNAL.sub("", str(message or "")).split())
    if len(text) > MESSAGE_LIMIT:
        text = text[: MESSAGE_LIMIT - 1] + "…"
    return text or "the engine refused the request"
