"""Errors that a user of the HTTP API sees, and the closed list of what a worker's failure becomes.

* ApiError            a status, an OpenAI error body and the headers that steer a client's retries

Every failure of a worker passes through `from_profile` or `from_terminal`. A code of the profile
that is on the list below gets the status, type and code that OpenAI clients act on; of anything
else only "the worker failed" is said. A worker's own sentence is shown where it is about the
user's request (4xx), never where it is about the worker (5xx): stack traces, paths and host names
have a way of getting into those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.protocol.constants import DropReason

__all__ = ["DEFAULT_RETRY_AFTER_MS", "ApiError", "from_profile", "from_terminal"]

#: What a client is told to wait when nothing better is known: one second is the shortest that
#: `Retry-After` can say, and the OpenAI SDKs take it as they find it.
DEFAULT_RETRY_AFTER_MS: Final = 1000

#: Longest sentence of a worker that is passed on.
MAX_SHOWN_MESSAGE: Final = 2000

#: Longest word of a request that an answer repeats.
MAX_SHOWN_WORD: Final = 200

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"


class ApiError(Exception):
    """An error in OpenAI's shape.

    Attributes:
        status: HTTP status; meaningless once the stream has begun.
        message, type, code, param: the members of the body's `error` object. `code` is a string or
            None, never a number: OpenAI clients compare it with strings.
        retry_after_ms: milliseconds after which a retry may help, None when there is no advice.
        retryable: False tells SDKs not to retry by themselves, None leaves it to their rules.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after_ms: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.retryable = retryable

    def __repr__(self) -> str:
        return f"<ApiError {self.status} {self.type}/{self.code}: {self.message}>"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the OpenAI and Anthropic SDKs read before they retry."""
        headers: dict[str, str] = {}
        if self.retryable is not None:
            headers["x-should-retry"] = "true" if self.retryable else "false"
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(max(1, -(-self.retry_after_ms // 1000)))
            headers["retry-after-ms"] = str(self.retry_after_ms)
        return headers

    def body(self) -> bytes:
        """Return the JSON document `{"error": {...}}`, on one line: it also rides in SSE."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    # The gateway's own refusals, in the order a request can meet them.

    @classmethod
    def unknown_route(cls, method: str, path: str) -> ApiError:
        message = f"Unknown request URL: {method} {_shown(path)}."
        return cls(404, message, code="unknown_url")

    @classmethod
    def method_not_allowed(cls, method: str, path: str) -> ApiError:
        message = f"{_shown(path)} does not answer {method}."
        return cls(405, message, code="method_not_allowed")

    @classmethod
    def body_too_large(cls, limit: int) -> ApiError:
        return cls(413, f"The request body is over {limit} bytes.", code="request_too_large")

    @classmethod
    def unsupported_media_type(cls, given: str) -> ApiError:
        message = f"The request body must be application/json, not {_shown(given) or 'untyped'}."
        return cls(415, message, code="unsupported_media_type")

    @classmethod
    def unsupported_coding(cls, given: str) -> ApiError:
        message = (
            f"The request body must not be encoded, and its content-encoding is {_shown(given)}."
        )
        return cls(415, message, code="unsupported_content_encoding")

    @classmethod
    def unknown_model(cls, model: str) -> ApiError:
        message = f"The model `{_shown(model)}` does not exist."
        return cls(404, message, code="model_not_found", param="model")

    @classmethod
    def unsupported_operation(cls, model: str) -> ApiError:
        message = f"The model `{_shown(model)}` does not serve this API."
        return cls(404, message, code="unsupported_operation", param="model")

    @classmethod
    def no_worker(cls, retry_after_ms: int = DEFAULT_RETRY_AFTER_MS) -> ApiError:
        message = "No worker is available for this model. Please retry."
        return cls(503, message, type=SERVER, code="no_backend", retry_after_ms=retry_after_ms)

    @classmethod
    def queue_full(cls, retry_after_ms: int = DEFAULT_RETRY_AFTER_MS) -> ApiError:
        message = "Too many requests are waiting. Please retry."
        return cls(
            429,
            message,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_ms=retry_after_ms,
        )

    @classmethod
    def overloaded(cls, retry_after_ms: int = DEFAULT_RETRY_AFTER_MS) -> ApiError:
        message = "The server is overloaded. Please retry."
        return cls(503, message, type=SERVER, code="overloaded", retry_after_ms=retry_after_ms)

    @classmethod
    def shutting_down(cls) -> ApiError:
        message = "The server is shutting down. Please retry."
        return cls(
            503, message, type=SERVER, code="shutting_down", retry_after_ms=DEFAULT_RETRY_AFTER_MS
        )

    @classmethod
    def deadline_expired(cls) -> ApiError:
        message = "The deadline of the request passed before its answer was complete."
        return cls(504, message, type=SERVER, code="deadline_expired", retryable=False)

    @classmethod
    def worker_failed(cls, *, retryable: bool | None = None) -> ApiError:
        message = "The worker failed while it was answering."
        return cls(502, message, type=SERVER, code="backend_error", retryable=retryable)

    @classmethod
    def worker_lost(cls, *, retryable: bool | None = None) -> ApiError:
        message = "The connection to the worker was lost before the answer was complete."
        return cls(502, message, type=SERVER, code="backend_error", retryable=retryable)

    @classmethod
    def cancelled(cls) -> ApiError:
        """The client left: 499 is for logs and metrics, nobody is there to read it."""
        return cls(499, "The request was cancelled.", code="client_closed_request", retryable=False)

    @classmethod
    def internal(cls) -> ApiError:
        message = "The gateway failed on this request."
        return cls(500, message, type=SERVER, code="internal_error")


def _shown(word: str) -> str:
    return word if len(word) <= MAX_SHOWN_WORD else f"{word[:MAX_SHOWN_WORD]}..."


class _Rule(NamedTuple):
    """What one profile error code becomes."""

    status: int
    type: str
    code: str
    message: str | None = None
    """None: the worker's own sentence, which is about the user's request."""
    retry_after: bool = False
    retryable: bool | None = None


_OVERLOADED = _Rule(503, SERVER, "overloaded", "The server is overloaded. Please retry.", True)
_FAILED = _Rule(502, SERVER, "backend_error", "The worker failed while it was answering.")

#: Profile error code -> what the user is told. Keys: the openai-compatible/1 adapter contract.
_RULES: Final[Mapping[str, _Rule]] = {
    **{
        code: _Rule(400, INVALID, code)
        for code in (
            "context_length_exceeded",
            "invalid_backend_request",
            "invalid_body",
            "invalid_nnrp_policy",
            "invalid_request_id",
            "invalid_submit_body",
            "missing_messages",
            "missing_model",
            "unsupported_schema_version",
        )
    },
    **{
        code: _Rule(400, INVALID, code, "The request names a runtime object that is not there.")
        for code in (
            "invalid_runtime_object",
            "runtime_object_dependency_invalid",
            "runtime_object_lease_expired",
            "runtime_object_schema_mismatch",
            "runtime_object_unavailable",
            "runtime_object_version_mismatch",
        )
    },
    "unsupported_operation": _Rule(404, INVALID, "unsupported_operation"),
    "unsupported_model": _Rule(404, INVALID, "model_not_found"),
    "model_not_found": _Rule(404, INVALID, "model_not_found"),
    "invalid_api_key": _Rule(401, INVALID, "invalid_api_key"),
    "rate_limit_exceeded": _Rule(
        429, "rate_limit_error", "rate_limit_exceeded", "Rate limit exceeded. Please retry.", True
    ),
    "adapter_operation_limit": _OVERLOADED,
    "backend_overload": _OVERLOADED,
    "scheduler_rejected": _OVERLOADED,
    "request_timeout": _Rule(
        504, SERVER, "timeout", "The worker produced nothing within the time limit."
    ),
    "backend_cancelled": _Rule(
        503, SERVER, "backend_cancelled", "The worker cancelled the request. Please retry.", True
    ),
    "result_too_large": _Rule(
        502, SERVER, "result_too_large", "The answer is too large to be sent.", retryable=False
    ),
    "adapter_runtime_error": _FAILED,
    "backend_error": _FAILED,
    "invalid_tool_call_stream": _FAILED,
    "tool_call_stream_interrupted": _FAILED,
    "duplicate_operation_id": _Rule(
        500, SERVER, "internal_error", "The gateway failed on this request."
    ),
}

_CODE_SHAPE = re.compile(r"[a-z][a-z0-9_]{0,63}")


def from_profile(error: ProfileError, *, retry_after_ms: int = 0) -> ApiError:
    """Translate a worker's error.

    Args:
        retry_after_ms: the wire's advice (RETRY_AFTER), for an error that brings none of its own.
    """
    message = error.message[:MAX_SHOWN_MESSAGE]
    rule = _RULES.get(error.code)
    if rule is None:
        return _off_the_list(error, message)
    if error.code == "invalid_backend_request" and "maximum context length" in message:
        # vLLM's sentence; clients compact their history when they see this code.
        rule = _RULES["context_length_exceeded"]
    retry_after_ms = error.retry_after_ms or retry_after_ms or DEFAULT_RETRY_AFTER_MS
    return ApiError(
        rule.status,
        rule.message or message,
        type=rule.type,
        code=rule.code,
        param=error.param if rule.status < 500 else None,
        retry_after_ms=retry_after_ms if rule.retry_after else None,
        retryable=rule.retryable,
    )


def _off_the_list(error: ProfileError, message: str) -> ApiError:
    """Translate an error whose code nobody knows: only its class is believed."""
    if error.type != INVALID:
        return ApiError.worker_failed()
    code = error.code if _CODE_SHAPE.fullmatch(error.code) else None
    return ApiError(400, message, code=code, param=error.param)


class _ErrorEvent(msgspec.Struct):
    """The two terminal events that are not an answer."""

    type: str = ""
    error: Any = None


_error_event = msgspec.json.Decoder(_ErrorEvent)

_CANCELLED_BY_WORKER = ProfileError("backend_cancelled", "")


def from_terminal(terminal: Terminal) -> ApiError:
    """Translate a terminal that is not an answer: an error body, a drop, a lost connection."""
    if terminal.kind is TerminalKind.LOST:
        return ApiError.worker_lost()
    if terminal.kind is TerminalKind.DROPPED:
        return _from_drop(terminal)
    if terminal.kind is TerminalKind.FAILED:
        return ApiError.worker_failed()
    try:
        event = _error_event.decode(terminal.body)
    except msgspec.MsgspecError:
        return ApiError.worker_failed()
    if event.type == "response.cancelled":
        return from_profile(_CANCELLED_BY_WORKER, retry_after_ms=terminal.retry_after_ms)
    return from_profile(
        ProfileError.from_error(event.error), retry_after_ms=terminal.retry_after_ms
    )


def _from_drop(terminal: Terminal) -> ApiError:
    match terminal.drop_reason:
        case DropReason.DEADLINE_EXPIRED:
            return ApiError.deadline_expired()
        case DropReason.SUPERSEDED:
            message = "A newer request took this one's place."
            return ApiError(409, message, type="conflict_error", code="superseded", retryable=False)
        case DropReason.BACKPRESSURE:
            return ApiError.overloaded(terminal.retry_after_ms or DEFAULT_RETRY_AFTER_MS)
        case DropReason.PEER_CANCELLED | DropReason.TRANSPORT_CLOSED:
            return from_profile(_CANCELLED_BY_WORKER, retry_after_ms=terminal.retry_after_ms)
        case _:
            return ApiError.worker_failed()
