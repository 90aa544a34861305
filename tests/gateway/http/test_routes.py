"""The routes, over HTTP: what is found, and what is refused in which words."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from gateway.observability.metrics import RequestOutcome
from tests.support.edge import CHAT, edge
from tests.support.fake_pool import KnownWorker
from tests.support.http_server import request

JSON_BODY = json.dumps(CHAT).encode()


class Unknown(KnownWorker):
    known = False


async def ask(method: str, path: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    async with edge() as running, await running.connect() as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        client.send(request(method, path, headers=lines))
        return await client.json()


async def test_models_in_openai_s_form() -> None:
    async with edge() as running, await running.connect() as client:
        running.pool.cards = [
            {"id": "org/model", "owned_by": "vllm", "created": 5, "max_model_len": 8},
            {"id": "m"},
        ]
        client.get("/v1/models")
        status, _, body = await client.json()
        assert status == 200
        first = {"id": "org/model", "object": "model", "created": 5, "owned_by": "vllm"}
        assert body == {
            "object": "list",
            "data": [
                {**first, "max_model_len": 8},
                {"id": "m", "object": "model", "created": 0, "owned_by": ""},
            ],
        }
        client.get("/v1/models/org/model")
        status, _, body = await client.json()
        assert (status, body) == (200, {**first, "max_model_len": 8})
        client.get("/v1/models/org%2Fmodel")
        assert (await client.json())[2] == body


async def test_a_model_that_nobody_serves() -> None:
    status, _, body = await ask("GET", "/v1/models/no/such")
    assert status == 404
    assert body["error"]["code"] == "model_not_found"
    assert body["error"]["param"] == "model"
    assert "no/such" in body["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m"])
async def test_before_any_worker_has_said_what_it_serves(path: str) -> None:
    async with edge() as running, await running.connect() as client:
        running.pool.workers = [Unknown(), Unknown()]
        running.pool.cards = []
        client.get(path)
        status, headers, _ = await client.json()
        assert status == 503
        assert headers["retry-after"] == "1"
        running.pool.workers.append(KnownWorker())
        client.get("/v1/models")
        assert (await client.json())[2] == {"object": "list", "data": []}


async def test_health() -> None:
    status, _, body = await ask("GET", "/health")
    assert (status, body) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions/", "/v1/models//", "/metrics"])
async def test_an_unknown_route(path: str) -> None:
    status, _, body = await ask("GET", path)
    assert status == 404
    expected = "model_not_found" if path == "/v1/models//" else "unknown_url"
    assert body["error"]["code"] == expected
    assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models/m", {"GET", "HEAD"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("PUT", "/health", {"GET", "HEAD"}),
    ],
)
async def test_a_method_that_is_not_allowed(method: str, path: str, allowed: set[str]) -> None:
    status, headers, body = await ask(method, path)
    assert status == 405
    assert set(headers["allow"].split(", ")) == allowed
    assert body["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "x"]
)
async def test_a_body_of_another_type(content_type: str) -> None:
    async with edge() as running, await running.connect() as client:
        header = f"content-type: {content_type}\r\n"
        client.post("/v1/chat/completions", JSON_BODY, headers=header)
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (415, "unsupported_media_type")
        assert running.pool.submissions == []


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"],
)
async def test_json_in_other_words(content_type: str) -> None:
    async with edge() as running, await running.connect() as client:
        header = f"content-type: {content_type}\r\n"
        client.post("/v1/chat/completions", JSON_BODY, headers=header)
        await running.pool.next()


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity, br"])
async def test_an_encoded_body(coding: str) -> None:
    async with edge() as running, await running.connect() as client:
        client.post(
            "/v1/chat/completions",
            gzip.compress(json.dumps(CHAT).encode()),
            headers=f"content-encoding: {coding}\r\n",
        )
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (415, "unsupported_content_encoding")
        assert running.pool.submissions == []


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_a_body_that_says_it_is_not_encoded(coding: str) -> None:
    async with edge() as running, await running.connect() as client:
        client.chat(headers=f"content-encoding: {coding}\r\n")
        (await running.pool.next()).answer(choices=[])
        assert (await client.json())[0] == 200


async def test_a_body_that_says_nothing_may_be_json() -> None:
    async with edge() as running, await running.connect() as client:
        length = len(JSON_BODY)
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (length, JSON_BODY)
        )
        await running.pool.next()


async def test_a_body_above_the_limit() -> None:
    async with (
        edge(limits={"body_bytes": 1024}) as running,
        await running.connect() as client,
    ):
        client.chat(user="x" * 1024)
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (413, "request_too_large")
        client.chat()  # the connection is still good
        await running.pool.next()


async def test_a_bad_request_is_counted_as_one() -> None:
    async with edge() as running, await running.connect() as client:
        client.post("/v1/chat/completions", b"{")
        status, headers, body = await client.json()
        assert (status, body["error"]["code"]) == (400, "json_invalid")
        assert headers["x-request-id"]
        assert running.metrics.models[""].requests[RequestOutcome.VALIDATION] == 1
        assert running.metrics.in_flight == 0
        assert sum(running.metrics.routes.values()) == 0


async def test_a_json_body_nested_too_deeply() -> None:
    async with edge(limits={"json_depth": 8}) as running, await running.connect() as client:
        client.post("/v1/chat/completions", b'{"model":"m","x":' + b"[" * 9 + b"]" * 9 + b"}")
        assert (await client.json())[0] == 400


async def test_a_failure_while_reading_the_request_is_counted_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.http.chat_request.plan_chat", fail)
    async with edge() as running, await running.connect() as client:
        client.chat()
        assert (await client.json())[0] == 500
        assert running.metrics.in_flight == 0
        assert running.metrics.models[""].requests[RequestOutcome.INTERNAL] == 1
