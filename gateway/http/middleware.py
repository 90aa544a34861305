"""What every request passes, as pure ASGI.

Starlette's ``BaseHTTPMiddleware`` hides disconnects and rebuilds the start of every response, which
would switch the direct writer off; these edit headers at most. From the outside in: `RequestId`,
`Errors`, `BodyLimit`.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.asgi import (
    ClientLeftError,
    header,
    new_request_id,
    request_id,
    send_error,
)
from gateway.observability.metrics import GatewayMetrics, RequestOutcome

__all__ = ["BodyLimit", "Errors", "RequestId"]

#: What may be echoed into a header and a log line without quoting.
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

logger = logging.getLogger(__name__)


class RequestId:
    """Give every request an id and every answer an `x-request-id`.

    A client's own id is kept when it is at most 128 characters of `A-Z a-z 0-9 . _ : / + = @ -`.
    It correlates; nothing relies on its being unique.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = header(scope, b"x-request-id")
        known = given if given and _WELL_FORMED.fullmatch(given) else None
        id = known or new_request_id()
        scope.setdefault("state", {})["request_id"] = id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The same message, edited: a copy would do as well, a new one would not.
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        await self.app(scope, receive, send_with_id)


class Errors:
    """Answer what was raised as an OpenAI error: routing's refusals, ours, and the unforeseen.

    Of an unforeseen exception the client learns nothing but that it happened. Requests that no
    meter counts (`scope["state"]["metered"]`) are counted here.
    """

    def __init__(self, app: ASGIApp, *, metrics: GatewayMetrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watching_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watching_send)
            status = 200
        except ClientLeftError:
            status = 499
        except Exception as exception:
            status = await _answer(exception, scope, None if started else send)
            if started:
                # Too late for a status. The server logs it and closes the connection: the body
                # stays incomplete, which the client sees.
                raise
        if not scope["state"].get("metered"):
            self._metrics.routes[RequestOutcome.of_status(status)] += 1


async def _answer(exception: Exception, scope: Scope, send: Send | None) -> int:
    """Answer an exception, if there is still a way, and return its status.

    Not in the frame that caught it: that one is in the traceback, and a variable of it that held
    the exception would make a reference cycle of every refused request.
    """
    error = _translate(exception, scope)
    if send is not None:
        if not isinstance(exception, ApiError | HTTPException):
            logger.error("request %s failed", request_id(scope), exc_info=exception)
        await send_error(send, error, headers=getattr(exception, "headers", None))
    return error.status


def _translate(exception: Exception, scope: Scope) -> ApiError:
    match exception:
        case ApiError():
            return exception
        case HTTPException(status_code=404):
            return ApiError.unknown_route(scope["method"], scope["path"])
        case HTTPException(status_code=405):
            return ApiError.method_not_allowed(scope["method"], scope["path"])
        case HTTPException(status_code=status, detail=detail) if status < 500:
            return ApiError(status, detail)
        case _:
            return ApiError.internal()


class BodyLimit:
    """Refuse request bodies above `limit` bytes with 413, before they are read where possible.

    The connection is kept: closing it under a client that still writes would cost it the answer.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = header(scope, b"content-length")
        if length is not None and length.isdecimal():
            # The server reads no more than it says.
            if int(length) > self.limit:
                raise ApiError.body_too_large(self.limit)
            await self.app(scope, receive, send)
            return
        read = 0

        async def counting_receive() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limit:
                raise ApiError.body_too_large(self.limit)
            return message

        await self.app(scope, counting_receive, send)
