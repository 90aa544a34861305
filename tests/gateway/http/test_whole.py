"""Answers in one piece, from submission to the last byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.http.chat_request import ChatRequest
from gateway.http.disconnect import DisconnectWatch
from gateway.http.whole import WholeResponse
from gateway.observability.metrics import CancelPhase, RequestMeter
from gateway.pool import OutcomeKind, TicketState
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from tests.support.edge import Way, edge, outcomes
from tests.support.garbage import freed_without_the_collector
from tests.support.waiting import turns, until

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


async def test_the_answer_is_the_worker_s(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        for number in (1, 2):  # on one connection
            client.chat()
            submission = await running.pool.next(number)
            assert "credit" not in json.loads(submission.request.build(submission.worker))["nnrp"]  # type: ignore[arg-type]
            submission.answer(**COMPLETION)
            status, headers, body = await client.json()
            assert (status, body) == (200, COMPLETION)
            assert headers["x-request-id"]
        assert outcomes(running) == {"ok": 2}
        assert running.metrics.in_flight == 0
        assert len(running.open) == 0
        assert running.metrics.models["m"].input_tokens == 6
        assert running.metrics.models["m"].output_tokens == 4


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError.no_worker(), 503, "no_backend"),
        (ApiError.deadline_expired(), 504, "deadline_expired"),
        (ApiError.worker_lost(), 502, "backend_error"),
        (ApiError.unknown_model("m"), 404, "model_not_found"),
    ],
)
async def test_what_the_pool_refuses(way: Way, error: ApiError, status: int, code: str) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat()
        (await running.pool.next()).fail(error)
        got, headers, body = await client.json()
        assert (got, body["error"]["code"]) == (status, code)
        assert error.headers.items() <= headers.items()
        assert running.metrics.in_flight == 0


async def test_a_refusal_may_come_from_inside_submit(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        running.pool.refuse = ApiError.queue_full()
        client.chat()
        assert (await client.json())[0] == 429
        assert outcomes(running, "") == {"overload": 1}


async def test_an_error_that_the_worker_answers(way: Way) -> None:
    error = ProfileError(ErrorCode.INVALID_BACKEND_REQUEST, "temperature must be warm")
    async with edge(way) as running, await running.connect() as client:
        client.chat()
        (await running.pool.next()).push(events.error(error))
        status, _, body = await client.json()
        assert (status, body["error"]["message"]) == (400, "temperature must be warm")


async def test_an_answer_that_is_none(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat()
        (await running.pool.next()).push(b"no json")
        assert (await client.json())[0] == 502


@pytest.mark.parametrize(
    ("state", "phase"),
    [(TicketState.QUEUED, CancelPhase.QUEUED), (TicketState.SUBMITTED, CancelPhase.WHOLE)],
)
async def test_leaving_cancels(way: Way, state: TicketState, phase: CancelPhase) -> None:
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat()
            submission = await running.pool.next()
            submission.state = state
        await until(lambda: submission.cancelled)
        await until(lambda: running.metrics.in_flight == 0)
        assert running.metrics.cancels[phase] == 1
        assert sum(running.metrics.cancels.values()) == 1
        assert outcomes(running, "") == {"cancelled": 1}
        assert len(running.open) == 0


async def test_a_client_that_has_just_left_is_not_submitted(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DisconnectWatch, "start", lambda watch: False)
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat()
            await until(lambda: outcomes(running, "") == {"cancelled": 1})
        assert running.pool.submissions == []
        assert running.metrics.in_flight == 0
        assert len(running.open) == 0


async def test_leaving_after_a_large_request_cancels(way: Way) -> None:
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat(user="x" * 300_000)
            submission = await running.pool.next()
        await until(lambda: submission.cancelled)


async def test_an_answer_that_crosses_the_cancel_still_tells_its_tokens(way: Way) -> None:
    async with edge(way) as running:
        running.pool.confirms_cancels = False
        async with await running.connect() as client:
            client.chat()
            submission = await running.pool.next()
        await until(lambda: submission.cancelled)
        assert running.metrics.in_flight == 1, "released by the terminal, not by the cancel"
        body = events.completed(json.dumps(COMPLETION).encode())
        submission.end(OutcomeKind.CANCELLED, terminal=Terminal(TerminalKind.RESULT, body))
        assert running.metrics.in_flight == 0
        assert running.metrics.models["m"].output_tokens == 2
        assert outcomes(running) == {"cancelled": 1}


async def test_a_shutdown_ends_it(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat()
        submission = await running.pool.next()
        running.open.tick(running.clock.now + 10_000)
        running.open.shut_down(ApiError.shutting_down())
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert submission.cancelled
        await turns()
        assert running.metrics.in_flight == 0


async def test_diagnostics_on_request(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(headers="x-nnrp-diagnostics: 1\r\n")
        submission = await running.pool.next()
        submission.queued_s = 0.0015
        submission.events(events.diagnostics({"transport": "unix"}))
        submission.answer(**COMPLETION)
        _, headers, _ = await client.json()
        assert headers["x-nnrp-worker"] == "worker-0"
        assert headers["server-timing"] == "gateway;dur=0.0, queue;dur=1.5"


async def test_a_failure_of_ours_is_an_error_without_detail(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    async with edge(way) as running, await running.connect() as client:
        client.chat()
        submission = await running.pool.next()
        monkeypatch.setattr(ChatRequest, "read_whole", fail)
        submission.answer(**COMPLETION)
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert "secret" not in json.dumps(body)
        assert "ZeroDivisionError" in caplog.text
        assert outcomes(running) == {"internal": 1}


@pytest.mark.parametrize("end", ["answered", "failed", "refused", "left"])
async def test_an_answer_leaves_nothing_to_the_garbage_collector(end: str) -> None:
    kinds = WholeResponse, ChatRequest, RequestMeter, ApiError
    async with (
        edge() as running,
        await running.connect() as client,
        freed_without_the_collector(*kinds),
    ):
        if end == "refused":
            running.pool.refuse = ApiError.queue_full()
        client.chat()
        submission = await running.pool.next()
        match end:
            case "answered":
                submission.answer(**COMPLETION)
            case "failed":
                submission.fail(ApiError.worker_lost())
            case "left":
                await client.close()
                await until(lambda: running.pool.submissions[0].cancelled)
        del submission
        if end != "left":
            await client.head()
        running.pool.submissions.clear()
        running.pool.refuse = None


async def test_a_pool_that_fails_is_an_error_without_detail(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(way) as running, await running.connect() as client:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(running.pool, "submit", fail)
        client.chat()
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert outcomes(running, "") == {"internal": 1}
        assert running.metrics.in_flight == len(running.open) == 0


async def test_a_server_that_gives_the_request_up_cancels(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat()
        submission = await running.pool.next()
        for task in tuple(running.server.server_state.tasks):
            task.cancel()
        await until(lambda: submission.cancelled)
        await until(lambda: running.metrics.in_flight == 0)


async def test_its_repr_tells_the_state() -> None:
    async with edge() as running, await running.connect() as client:
        client.chat()
        submission = await running.pool.next()
        (response,) = running.open._open
        assert repr(response) == "<WholeResponse [waiting]>"
        submission.answer(**COMPLETION)
        assert repr(response) == "<WholeResponse [ended]>"
