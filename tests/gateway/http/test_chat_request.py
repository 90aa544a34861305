"""A chat request's headers, and the envelope that becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import GatewayConfig
from gateway.errors import ApiError
from gateway.http.chat_request import ChatRequest
from gateway.http.edge import Edge
from gateway.http.open_requests import OpenRequests
from gateway.observability.metrics import GatewayMetrics
from gateway.pool import Worker
from nnrp_backend.transport.tasks import TaskSet
from tests.support.edge import CHAT, Clock
from tests.support.fake_pool import OURS, FakePool

FOREIGN = Worker(name="other", ours=False, final_chunks=False)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Made:
    """A request made from headers and body members, on a clock of its own."""

    def __init__(
        self, headers: dict[str, str] | None = None, body: bytes | None = None, **members: Any
    ) -> None:
        self.clock = Clock()
        self.metrics = GatewayMetrics()
        edge = Edge(
            config=GatewayConfig(),
            pool=FakePool(),
            metrics=self.metrics,
            open=OpenRequests(),
            tasks=TaskSet("test"),
            clock=self.clock,
            wall_clock=lambda: 1_700_000_000.5,
        )
        raw_headers = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {"type": "http", "headers": raw_headers, "state": {"request_id": "req_1"}}
        raw = body if body is not None else json.dumps({**CHAT, **members}).encode()
        self.request = ChatRequest(edge, scope, raw, self.metrics.begin(0.0))

    def envelope(self, worker: Worker = OURS) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(self.request.for_pool().build(worker))
        return envelope


def test_the_envelope_carries_the_client_s_body() -> None:
    made = Made(top_k=7, unknown={"a": None})
    envelope = made.envelope()
    assert envelope["schema_version"] == "openai-compatible/1"
    assert envelope["operation"] == "chat.completions.create"
    assert envelope["request_id"] == "req_1"
    assert envelope["body"] == {**CHAT, "top_k": 7, "unknown": {"a": None}}


def test_what_is_asked_of_our_own_worker() -> None:
    options = Made(stream=True, stream_options={"include_usage": True}).envelope()["nnrp"]
    assert options["credit"] == GatewayConfig().stream.credit
    assert options["openai_chunk"]["usage"] == "null"
    assert options["openai_chunk"]["terminal"] == "brief"
    assert "deadline_ms" not in options
    assert "diagnostics" not in options
    assert "traceparent" not in options


def test_a_whole_answer_needs_no_credit() -> None:
    assert "credit" not in Made().envelope()["nnrp"]


def test_a_foreign_worker_is_asked_for_nothing_of_ours() -> None:
    made = Made({"traceparent": TRACE, "x-request-deadline-ms": "100"}, stream=True)
    assert made.envelope(FOREIGN).get("nnrp", {}).keys() <= {"timeout_ms", "diagnostics"}


def test_a_deadline_counts_down_until_the_worker_gets_it() -> None:
    made = Made({"x-request-deadline-ms": "2500"})
    assert made.request.for_pool().deadline == made.clock.now + 2.5
    made.clock.now += 1
    assert made.envelope()["nnrp"]["deadline_ms"] == 1500
    made.clock.now += 10
    assert made.envelope()["nnrp"]["deadline_ms"] == 1


@pytest.mark.parametrize(
    "value", ["", "0", "-1", "1.5", "1e3", "ten", "86400001", "9" * 5000, "١", " 5"]
)
def test_a_deadline_that_is_none(value: str) -> None:
    with pytest.raises(ApiError) as caught:
        Made({"x-request-deadline-ms": value})
    assert caught.value.status == 400
    assert caught.value.param == "x-request-deadline-ms"


@pytest.mark.parametrize("value", ["1", "86400000"])
def test_a_deadline_at_the_bounds(value: str) -> None:
    assert Made({"x-request-deadline-ms": value}).envelope()["nnrp"]["deadline_ms"] == int(value)


def test_a_trace_goes_on() -> None:
    assert Made({"traceparent": TRACE}).envelope()["nnrp"]["traceparent"] == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "",
        TRACE.upper(),
        TRACE + "-00",
        TRACE.replace("00-4", "01-4"),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
def test_a_trace_that_is_none_is_ignored(value: str) -> None:
    assert "traceparent" not in Made({"traceparent": value}).envelope()["nnrp"]


@pytest.mark.parametrize(("value", "asked"), [("1", True), ("0", False), ("true", False)])
def test_diagnostics_are_for_those_who_ask(value: str, asked: bool) -> None:
    made = Made({"x-nnrp-diagnostics": value})
    assert (made.request.diagnostics is not None) is asked
    assert made.envelope()["nnrp"].get("diagnostics", False) is asked


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"m"}', b'{"model":1,"messages":[]}'])
def test_a_body_that_is_no_chat_request(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        Made(body=body)
    assert caught.value.status == 400


def test_the_body_is_let_go_of_when_the_answer_begins() -> None:
    made = Made(stream=True)
    made.request.open_stream(OURS)
    with pytest.raises(AssertionError):
        made.envelope()


def test_only_final_chunks_are_copied() -> None:
    replay = Made(stream=True).request.open_stream(OURS)
    synthesis = Made(stream=True).request.open_stream(FOREIGN)
    nobody = Made(stream=True).request.open_stream(None)
    assert type(replay).__name__ == "ReplayStream"
    assert type(synthesis).__name__ == type(nobody).__name__ == "SynthesisStream"


def test_tokens_are_counted_where_somebody_has() -> None:
    made = Made()
    made.request.count(None)
    assert "m" not in made.metrics.models
