"""The middleware, one class at a time, on bare ASGI."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from gateway.errors import ApiError
from gateway.http.asgi import ClientLeftError, request_id
from gateway.http.middleware import BodyLimit, Errors, RequestId
from gateway.observability.metrics import GatewayMetrics

Message = dict[str, Any]


def scope(**headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": "/p", "headers": raw, "state": {}}


async def run(app: Any, scope: dict[str, Any], *received: Message) -> list[Message]:
    """Call `app`; return what it sent."""
    sent: list[Message] = []
    messages = iter(received)

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"1")]})
    await send({"type": "http.response.body", "body": b"ok"})


def raising(exception: BaseException) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise exception

    return app


# RequestId


async def test_a_request_without_an_id_gets_one() -> None:
    request = scope()
    start, _ = await run(RequestId(ok), request)
    headers = dict(start["headers"])
    assert headers[b"x-request-id"].startswith(b"req_")
    assert headers[b"a"] == b"1"
    assert request_id(request).encode() == headers[b"x-request-id"]
    again, _ = await run(RequestId(ok), scope())
    assert dict(again["headers"])[b"x-request-id"] != headers[b"x-request-id"]


@pytest.mark.parametrize("id", ["a", "4bf92f35-77b3:4d.a6_/x@+=", "x" * 128])
async def test_a_well_formed_id_is_kept(id: str) -> None:
    start, _ = await run(RequestId(ok), scope(x_request_id=id))
    assert dict(start["headers"])[b"x-request-id"] == id.encode()


@pytest.mark.parametrize("id", ["", "x" * 129, "a b", "a\tb", "<a>", 'a"b', "é"])
async def test_any_other_id_is_replaced(id: str) -> None:
    start, _ = await run(RequestId(ok), scope(x_request_id=id))
    assert dict(start["headers"])[b"x-request-id"].startswith(b"req_")


async def test_the_start_message_is_edited_not_replaced() -> None:
    # Keys that it does not know, such as the direct writer's, must pass.
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "extra": app})

    (start,) = await run(RequestId(app), scope())
    assert start["extra"] is app


@pytest.mark.parametrize("wrap", [RequestId, lambda app: BodyLimit(app, limit=1), None])
async def test_the_lifespan_passes(wrap: Any) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    wrapped = wrap(app) if wrap else Errors(app, metrics=GatewayMetrics())
    await run(wrapped, {"type": "lifespan"})
    assert seen == ["lifespan"]


# Errors


@pytest.mark.parametrize(
    ("exception", "status", "code"),
    [
        (ApiError.queue_full(), 429, "rate_limit_exceeded"),
        (HTTPException(404), 404, "unknown_url"),
        (HTTPException(405), 405, "method_not_allowed"),
        (HTTPException(418, "teapot"), 418, None),
        (HTTPException(503), 500, "internal_error"),
        (ZeroDivisionError("secret"), 500, "internal_error"),
    ],
)
async def test_what_is_raised_is_answered(
    exception: Exception, status: int, code: str | None
) -> None:
    metrics = GatewayMetrics()
    start, body = await run(Errors(raising(exception), metrics=metrics), scope())
    assert start["status"] == status
    assert dict(start["headers"])[b"content-type"] == b"application/json"
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])
    error = json.loads(body["body"])["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert "secret" not in error["message"]
    assert sum(metrics.routes.values()) == 1


async def test_headers_of_an_error_are_sent() -> None:
    app = raising(ApiError.no_worker(retry_after_ms=2500))
    start, _ = await run(Errors(app, metrics=GatewayMetrics()), scope())
    headers = dict(start["headers"])
    assert headers[b"retry-after"] == b"3"
    assert headers[b"retry-after-ms"] == b"2500"
    app = raising(HTTPException(405, headers={"Allow": "GET"}))
    start, _ = await run(Errors(app, metrics=GatewayMetrics()), scope())
    assert dict(start["headers"])[b"allow"] == b"GET"


async def test_the_unforeseen_is_logged_with_the_request_s_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = RequestId(Errors(raising(ZeroDivisionError("secret")), metrics=GatewayMetrics()))
    await run(app, scope(x_request_id="abc"))
    assert "request abc failed" in caplog.text
    assert "ZeroDivisionError: secret" in caplog.text


@pytest.mark.parametrize("exception", [ApiError.no_worker(), HTTPException(404)])
async def test_the_foreseen_is_not_logged(
    exception: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    await run(Errors(raising(exception), metrics=GatewayMetrics()), scope())
    assert caplog.text == ""


async def test_after_the_start_an_exception_is_the_server_s() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(Errors(app, metrics=GatewayMetrics()), scope())


async def test_a_client_that_left_gets_no_answer() -> None:
    metrics = GatewayMetrics()
    assert await run(Errors(raising(ClientLeftError()), metrics=metrics), scope()) == []
    assert metrics.routes["cancelled"] == 1  # type: ignore[index]


async def test_what_a_meter_counts_is_not_counted_again() -> None:
    metrics = GatewayMetrics()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["metered"] = True
        raise ApiError.no_worker()

    await run(Errors(app, metrics=metrics), scope())
    assert sum(metrics.routes.values()) == 0
    await run(Errors(ok, metrics=metrics), scope())
    assert metrics.routes["ok"] == 1  # type: ignore[index]


# BodyLimit


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await ok(scope, receive, send)


def part(size: int, *, more: bool) -> Message:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


async def test_a_length_above_the_limit_is_refused_unread() -> None:
    with pytest.raises(ApiError) as caught:
        await run(BodyLimit(read_all, limit=10), scope(content_length="11"))
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


async def test_a_length_within_the_limit_passes() -> None:
    request = scope(content_length="10")
    assert len(await run(BodyLimit(read_all, limit=10), request, part(10, more=False))) == 2


@pytest.mark.parametrize("headers", [{}, {"content_length": "ten"}])
async def test_without_a_length_the_bytes_are_counted(headers: dict[str, str]) -> None:
    app = BodyLimit(read_all, limit=10)
    messages = part(5, more=True), part(5, more=False)
    assert len(await run(app, scope(**headers), *messages)) == 2
    messages = part(5, more=True), part(6, more=True)
    with pytest.raises(ApiError) as caught:
        await run(app, scope(**headers), *messages)
    assert caught.value.status == 413
