"""The helpers of every answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.http.asgi import (
    ClientLeftError,
    header,
    new_request_id,
    read_body,
    request_id,
    send_error,
    send_json,
)


def receiving(*messages: dict[str, Any]) -> Any:
    pending = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(pending)

    return receive


class Sent(list[dict[str, Any]]):
    async def __call__(self, message: dict[str, Any]) -> None:
        self.append(message)


def test_the_first_header_of_a_name_counts() -> None:
    scope = {"headers": [(b"a", b"1"), (b"b", b"\xe9"), (b"a", b"2")]}
    assert header(scope, b"a") == "1"
    assert header(scope, b"b") == "é"
    assert header(scope, b"c") is None


def test_a_request_that_passed_no_middleware_has_no_id() -> None:
    assert request_id({}) == ""
    assert request_id({"state": {"request_id": "r"}}) == "r"


def test_new_ids_are_unique() -> None:
    assert len({new_request_id() for _ in range(100)}) == 100


async def test_a_body_is_read_to_its_end() -> None:
    whole = {"type": "http.request", "body": b"abc"}
    assert await read_body(receiving(whole)) == b"abc"
    parts = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"bc", "more_body": False},
    ]
    assert await read_body(receiving(*parts)) == b"abc"


async def test_a_client_that_leaves_before_the_end_of_its_body() -> None:
    first = {"type": "http.request", "body": b"a", "more_body": True}
    with pytest.raises(ClientLeftError):
        await read_body(receiving(first, {"type": "http.disconnect"}))


async def test_json_declares_type_and_length() -> None:
    sent = Sent()
    await send_json(sent, b"{}", status=201, headers=[(b"x", b"y")])
    start, body = sent
    assert start["status"] == 201
    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"content-length": b"2",
        b"x": b"y",
    }
    assert body == {"type": "http.response.body", "body": b"{}", "more_body": False}


async def test_an_error_brings_its_headers_and_others() -> None:
    sent = Sent()
    error = ApiError(503, "Busy.", code="overloaded", retry_after_ms=1500, retryable=True)
    await send_error(sent, error, headers={"allow": "GET"})
    start, body = sent
    headers = dict(start["headers"])
    assert start["status"] == 503
    assert headers[b"retry-after"] == b"2"
    assert headers[b"retry-after-ms"] == b"1500"
    assert headers[b"x-should-retry"] == b"true"
    assert headers[b"allow"] == b"GET"
    assert json.loads(body["body"])["error"]["code"] == "overloaded"
