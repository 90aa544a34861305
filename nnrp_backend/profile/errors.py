"""Application-facing errors of the profile (profile section 10).

Tree::

    ProfileError    a failure in OpenAI's error shape; ends an operation as `response.error`
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final


class ErrorCode(StrEnum):
    """Codes of `response.error`. A peer may send others; they are kept as plain strings."""

    # the request is wrong
    UNSUPPORTED_SCHEMA_VERSION = "unsupported_schema_version"
    UNSUPPORTED_OPERATION = "unsupported_operation"
    UNSUPPORTED_MODEL = "unsupported_model"
    INVALID_SUBMIT_BODY = "invalid_submit_body"
    INVALID_BODY = "invalid_body"
    MISSING_MODEL = "missing_model"
    MISSING_MESSAGES = "missing_messages"
    INVALID_REQUEST_ID = "invalid_request_id"
    INVALID_NNRP_POLICY = "invalid_nnrp_policy"
    INVALID_BACKEND_REQUEST = "invalid_backend_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    DUPLICATE_OPERATION_ID = "duplicate_operation_id"
    # there is no room for it now
    BACKEND_OVERLOAD = "backend_overload"
    SCHEDULER_REJECTED = "scheduler_rejected"
    ADAPTER_OPERATION_LIMIT = "adapter_operation_limit"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    REQUEST_TIMEOUT = "request_timeout"
    # it failed
    BACKEND_ERROR = "backend_error"
    BACKEND_CANCELLED = "backend_cancelled"
    ADAPTER_RUNTIME_ERROR = "adapter_runtime_error"
    RESULT_TOO_LARGE = "result_too_large"
    # one tool call failed
    INVALID_TOOL_CALL_STREAM = "invalid_tool_call_stream"
    TOOL_CALL_STREAM_INTERRUPTED = "tool_call_stream_interrupted"


SERVER_ERROR: Final = "server_error"
INVALID_REQUEST_ERROR: Final = "invalid_request_error"

_TYPES: Final[Mapping[str, str]] = {
    ErrorCode.UNSUPPORTED_SCHEMA_VERSION: INVALID_REQUEST_ERROR,
    ErrorCode.UNSUPPORTED_OPERATION: INVALID_REQUEST_ERROR,
    ErrorCode.UNSUPPORTED_MODEL: INVALID_REQUEST_ERROR,
    ErrorCode.INVALID_SUBMIT_BODY: INVALID_REQUEST_ERROR,
    ErrorCode.INVALID_BODY: INVALID_REQUEST_ERROR,
    ErrorCode.MISSING_MODEL: INVALID_REQUEST_ERROR,
    ErrorCode.MISSING_MESSAGES: INVALID_REQUEST_ERROR,
    ErrorCode.INVALID_REQUEST_ID: INVALID_REQUEST_ERROR,
    ErrorCode.INVALID_NNRP_POLICY: INVALID_REQUEST_ERROR,
    ErrorCode.INVALID_BACKEND_REQUEST: INVALID_REQUEST_ERROR,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: INVALID_REQUEST_ERROR,
    ErrorCode.INVALID_API_KEY: INVALID_REQUEST_ERROR,
    ErrorCode.DUPLICATE_OPERATION_ID: INVALID_REQUEST_ERROR,
    ErrorCode.RATE_LIMIT_EXCEEDED: "rate_limit_error",
    ErrorCode.REQUEST_TIMEOUT: "timeout_error",
}
"""OpenAI's `type` for each code; every other code is a `server_error`."""

RETRYABLE: Final = frozenset(
    {
        ErrorCode.BACKEND_OVERLOAD,
        ErrorCode.SCHEDULER_REJECTED,
        ErrorCode.ADAPTER_OPERATION_LIMIT,
        ErrorCode.RATE_LIMIT_EXCEEDED,
        ErrorCode.REQUEST_TIMEOUT,
        ErrorCode.BACKEND_CANCELLED,
    }
)

_BACKEND_TYPES: Final[Mapping[str, ErrorCode]] = {
    "badrequest": ErrorCode.INVALID_BACKEND_REQUEST,
    "unprocessableentity": ErrorCode.INVALID_BACKEND_REQUEST,
    "invalid_request": ErrorCode.INVALID_BACKEND_REQUEST,
    "notimplemented": ErrorCode.INVALID_BACKEND_REQUEST,
    "notfound": ErrorCode.UNSUPPORTED_MODEL,
    "unauthorized": ErrorCode.INVALID_API_KEY,
    "authentication": ErrorCode.INVALID_API_KEY,
    "serviceunavailable": ErrorCode.BACKEND_OVERLOAD,
    "overloaded": ErrorCode.BACKEND_OVERLOAD,
    "toomanyrequests": ErrorCode.BACKEND_OVERLOAD,
    "ratelimit": ErrorCode.BACKEND_OVERLOAD,
    "rate_limit": ErrorCode.BACKEND_OVERLOAD,
    "timeout": ErrorCode.REQUEST_TIMEOUT,
    "gatewaytimeout": ErrorCode.REQUEST_TIMEOUT,
}
"""Engines' error types (vLLM's `BadRequestError`, "Service Unavailable", ...), squeezed."""

_CODES: Final[Mapping[str, ErrorCode]] = {
    "model_not_found": ErrorCode.UNSUPPORTED_MODEL,
    **{code.value: code for code in ErrorCode},
}
"""Codes that engines may name themselves: OpenAI's where they differ from ours, and ours."""

_UNKNOWN: Final = "The engine failed and did not say why."

# vLLM tells this case apart by its sentence only.
_CONTEXT_LENGTH: Final = "maximum context length"


class ProfileError(Exception):
    """Report an application-facing failure in the familiar OpenAI shape.

    Args:
        code: an `ErrorCode`, or what a peer said instead.
        type: OpenAI's error type; follows from the code when not given.
        param: the request member at fault, as a path (`messages`, `tools[0].function`).
        retry_after_ms: when to try again, where that is known.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = message
        self.type = type or _TYPES.get(code, SERVER_ERROR)
        self.param = param
        self.retry_after_ms = retry_after_ms

    def __repr__(self) -> str:
        return f"<ProfileError {self.type}/{self.code}: {self.message}>"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, or on another worker."""
        return self.code in RETRYABLE

    def to_error(self) -> dict[str, Any]:
        """Return the `error` object of a `response.error` event."""
        error: dict[str, Any] = {"type": self.type, "code": self.code, "message": self.message}
        if self.param is not None:
            error["param"] = self.param
        if self.retry_after_ms is not None:
            error["retry_after_ms"] = self.retry_after_ms
        return error

    @classmethod
    def from_error(cls, error: Any) -> "ProfileError":
        """Rebuild from the `error` object of a received event; takes whatever a peer sends."""
        if not isinstance(error, dict):
            return cls(ErrorCode.BACKEND_ERROR, _text(error) or "The worker reported an error.")
        retry_after_ms = error.get("retry_after_ms")
        code = _text(error.get("code")) or ErrorCode.BACKEND_ERROR
        return cls(
            code,
            _text(error.get("message")) or f"The worker reported {code}.",
            type=_text(error.get("type")),
            param=_text(error.get("param")),
            retry_after_ms=retry_after_ms if type(retry_after_ms) is int else None,
        )

    @classmethod
    def from_backend(cls, error: Any) -> "ProfileError":
        """Translate an engine's error body, or the inside of its `error` member.

        The engine's number and type are private; its sentence and `param` are kept. What is not
        recognised is a `backend_error`. Sentences are not searched for words that sound like a
        cause ("overload", "cancel"), for a prompt may be quoted in them; the one exception is
        the context length, which has no other sign.
        """
        if isinstance(error, dict) and isinstance(error.get("error"), dict | str):
            error = error["error"]
        if not isinstance(error, dict):
            # vLLM's authentication middleware answers {"error": "Unauthorized"}.
            return cls(_backend_code(error, None, ""), _text(error) or _UNKNOWN)
        message = _text(error.get("message")) or _UNKNOWN
        code = _backend_code(error.get("type"), error.get("code"), message)
        return cls(code, message, param=_text(error.get("param")))


def _backend_code(type_: Any, code: Any, message: str) -> ErrorCode:
    if isinstance(code, str) and code in _CODES:
        return _CODES[code]
    squeezed = re.sub(r"[ ]|_?error$", "", type_.lower()) if isinstance(type_, str) else ""
    found = _BACKEND_TYPES.get(squeezed, ErrorCode.BACKEND_ERROR)
    if found is ErrorCode.INVALID_BACKEND_REQUEST and _CONTEXT_LENGTH in message:
        return ErrorCode.CONTEXT_LENGTH_EXCEEDED
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
