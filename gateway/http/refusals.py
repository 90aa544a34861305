"""What the HTTP parser refuses, answered in OpenAI's shape instead of uvicorn's plain text."""

from __future__ import annotations

import asyncio
import http
import sys
from typing import TYPE_CHECKING, Any, Final

import h11
import httptools

from gateway.errors import ApiError
from gateway.http.asgi import new_request_id

__all__ = ["MAX_HEAD", "HeadTooLargeError", "Refusing", "SlowRequestError", "refusal"]

#: Request line and headers, bytes. httptools has no bound of its own, and h11 one of 16 KiB.
MAX_HEAD: Final = 64 * 1024


class HeadTooLargeError(Exception):
    """A request's head is above `MAX_HEAD`. Raised inside the parser's callback."""

    def __init__(self) -> None:
        super().__init__(f"the request line and headers are over {MAX_HEAD} bytes")


class SlowRequestError(Exception):
    """A client takes too long over its request."""

    def __init__(self) -> None:
        super().__init__("the request did not come to its end in time")


class Refusing(asyncio.Protocol):
    """Mixin for uvicorn's HTTP/1.1 protocols, below the direct writer's."""

    __slots__ = ("_head_bytes",)

    if TYPE_CHECKING:
        cycle: Any
        transport: asyncio.Transport

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser did not understand. uvicorn calls it while it handles that."""
        self.refuse(sys.exc_info()[1])

    def refuse(self, exception: BaseException | None) -> None:
        """Answer what `exception` stands for, and close."""
        if self.cycle is None or self.cycle.response_complete:
            # With an answer under way, ours would land in the middle of it.
            self.transport.write(_answer(refusal(exception)))
        self.transport.close()


def refusal(exception: BaseException | None) -> ApiError:
    """Return what a client is told of the parser's `exception`."""
    if isinstance(exception, httptools.HttpParserCallbackError):
        exception = exception.__context__
    if isinstance(exception, HeadTooLargeError):
        return _head_too_large()
    if isinstance(exception, SlowRequestError):
        return ApiError(408, "The request was not sent in time.", code="request_timeout")
    if isinstance(exception, httptools.HttpParserInvalidMethodError):
        return ApiError(405, "There is no such HTTP method.", code="method_not_allowed")
    if isinstance(exception, h11.RemoteProtocolError) and exception.error_status_hint == 431:
        return _head_too_large()
    return ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http")


def _head_too_large() -> ApiError:
    return ApiError(431, f"The request's headers are over {MAX_HEAD} bytes.", code="head_too_large")


def _answer(error: ApiError) -> bytes:
    body = error.body()
    # The parser gave up before there was a path whose methods could be named.
    allow = "allow: GET, HEAD, POST\r\n" if error.status == 405 else ""
    head = (
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"x-request-id: {new_request_id()}\r\n"
        f"{allow}"
        "connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
