"""Streamed answers, from the pool's events to the bytes on the client's socket.

Everything runs on both ways: the direct writer, and sse-starlette for other servers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from gateway.errors import ApiError
from gateway.http.chat_request import ChatRequest
from gateway.http.direct import EXTENSION, DirectWriter
from gateway.http.disconnect import DisconnectWatch
from gateway.http.stream import TokenStream
from gateway.observability.metrics import CancelPhase, RequestMeter, RequestOutcome
from gateway.pool import OutcomeKind, TicketState
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from tests.support.edge import Way, edge, outcomes
from tests.support.fake_pool import sse, text
from tests.support.garbage import freed_without_the_collector
from tests.support.waiting import turns, until

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


# The bytes.


async def test_events_become_server_sent_events(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("Hel"))
        status, headers = await client.head()
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        assert headers["x-request-id"].startswith("req_")
        assert headers["transfer-encoding"] == "chunked"
        assert await client.chunk() == sse("Hel")
        submission.events(text("lo"))
        assert await client.chunk() == sse("lo")
        submission.answer(usage=USAGE)
        assert await client.chunks() == DONE


async def test_events_of_one_read_are_one_write(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        await client.chunk()
        submission.events(text("b"), text("c"))
        assert await client.chunk() == sse("b") + sse("c")


async def test_an_answer_that_is_complete_at_once(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"), text("b"))
        submission.answer(usage=USAGE)
        assert (await client.head())[0] == 200
        assert await client.chunks() == sse("a") + sse("b") + DONE


async def test_an_answer_without_a_chunk_is_no_empty_stream(way: Way) -> None:
    # The worker declares that every chunk comes with an event.
    async with edge(way) as running, await running.connect() as client:
        for number, told in enumerate([(), (events.text_delta(0, "lost"),)], start=1):
            client.chat(stream=True)
            submission = await running.pool.next(number)
            if told:
                submission.events(*told)
                assert submission.cancelled
            else:
                submission.answer(usage=USAGE)
            status, _, body = await client.json()
            assert (status, body["error"]["code"]) == (502, "backend_error")
        await until(lambda: outcomes(running) == {"worker": 2})


async def test_the_connection_is_kept_for_the_next_request(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        for number in range(1, 4):
            client.chat(stream=True)
            submission = await running.pool.next(number)
            submission.events(text("a"))
            submission.answer(usage=USAGE)
            assert (await client.head())[0] == 200
            assert await client.chunks() == sse("a") + DONE


async def test_both_ways_give_the_same_bytes() -> None:
    bodies = []
    for way in ("direct", "ordinary"):
        async with edge(way) as running, await running.connect() as client:  # type: ignore[arg-type]
            client.chat(stream=True, headers="x-nnrp-diagnostics: 1\r\n")
            submission = await running.pool.next()
            submission.events(events.diagnostics({"transport": "unix"}))
            submission.events(text("héllo"), text("\N{PILE OF POO}"))
            status, headers = await client.head()
            running.tick(100)
            running.tick(100)
            submission.events(text("x" * 200_000))
            submission.fail(ApiError.worker_lost())
            # Dates and ids differ by nature.
            kept = {k: v for k, v in headers.items() if k not in {"date", "x-request-id"}}
            bodies.append((status, kept, await client.chunks()))
    assert bodies[0] == bodies[1]
    assert KEEP_ALIVE in bodies[0][2]


@pytest.mark.parametrize("wrap", [lambda app: BaseHTTPMiddleware(app, dispatch=_pass_on)])
async def test_a_middleware_that_rebuilds_the_response_is_served_the_ordinary_way(
    wrap: Any,
) -> None:
    async with edge("direct", wrap=wrap) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        assert (await client.head())[0] == 200
        assert await client.chunk() == sse("a")
        await client.close()
        await until(lambda: submission.cancelled)


async def _pass_on(request: Any, call_next: Any) -> Any:
    return await call_next(request)


# Errors.


async def test_what_fails_before_the_first_event_is_an_ordinary_error(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.fail(ApiError.no_worker())
        status, headers, body = await client.json()
        assert status == 503
        assert headers["retry-after"] == "1"
        assert body["error"]["code"] == "no_backend"
        assert headers["x-request-id"]
        assert outcomes(running, "") == {"overload": 1}
        assert len(running.open) == 0


async def test_a_refusal_may_come_from_inside_submit(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        running.pool.refuse = ApiError.queue_full()
        client.chat(stream=True)
        assert (await client.json())[0] == 429
        assert running.metrics.in_flight == 0


async def test_a_pool_that_fails_is_an_error_without_detail(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(way) as running, await running.connect() as client:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(running.pool, "submit", fail)
        client.chat(stream=True)
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert "secret" not in json.dumps(body)
        assert outcomes(running, "") == {"internal": 1}
        assert running.metrics.in_flight == len(running.open) == 0


async def test_an_error_that_the_worker_answers_first_decides_the_status(way: Way) -> None:
    error = ProfileError(ErrorCode.BACKEND_OVERLOAD, "busy")
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        (await running.pool.next()).push(events.error(error))
        status, headers, body = await client.json()
        assert (status, body["error"]["code"]) == (503, "overloaded")
        assert "retry-after" in headers


async def test_diagnostics_are_no_first_event(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(events.diagnostics({"transport": "unix"}))
        submission.fail(ApiError.worker_lost())
        assert (await client.json())[0] == 502


async def test_a_worker_that_dies_mid_stream_loses_no_token(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        submission.events(text("b"))
        submission.fail(ApiError.worker_lost())
        assert (await client.head())[0] == 200
        body = await client.chunks()
        assert body.startswith(sse("a") + sse("b") + b'data: {"error":')
        assert body.endswith(b"}\n\n" + DONE)
        assert body.count(b"[DONE]") == 1
        assert outcomes(running) == {"worker": 1}


async def test_an_event_that_breaks_the_profile_ends_the_stream_in_band(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"), b"{no json", text("never"))
        submission.events(text("late"))
        assert (await client.head())[0] == 200
        body = await client.chunks()
        assert body.startswith(sse("a") + b'data: {"error":')
        assert body.endswith(DONE)
        assert submission.cancelled


async def test_a_translation_that_fails_is_an_error_without_detail(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        assert await client.chunk() == sse("a")

        def fail(self: Any, body: bytes) -> bytes:
            raise ZeroDivisionError("secret")

        (stream,) = running.open._open
        monkeypatch.setattr(type(stream._events), "feed", fail)  # type: ignore[attr-defined]
        submission.events(text("b"))
        body = await client.chunks()
        assert json.loads(body.split(b"\n\n")[0].removeprefix(b"data: "))["error"]["code"] == (
            "internal_error"
        )
        assert b"secret" not in body
        assert "ZeroDivisionError" in caplog.text
        assert submission.cancelled


async def test_an_end_that_cannot_be_translated_is_an_error_without_detail(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))

        def fail(self: Any, terminal: Terminal) -> bytes:
            raise ZeroDivisionError("secret")

        (stream,) = running.open._open
        monkeypatch.setattr(type(stream._events), "end", fail)  # type: ignore[attr-defined]
        submission.answer(usage=USAGE)
        await client.head()
        body = await client.chunks()
        assert body.startswith(sse("a") + b'data: {"error":')
        assert body.endswith(DONE)
        assert "ZeroDivisionError" in caplog.text
        assert outcomes(running) == {"internal": 1}


# The client leaves.


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (TicketState.QUEUED, CancelPhase.QUEUED),
        (TicketState.SUBMITTED, CancelPhase.FIRST_EVENT),
    ],
)
async def test_leaving_before_the_first_event_cancels(
    way: Way, state: TicketState, phase: CancelPhase
) -> None:
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat(stream=True)
            submission = await running.pool.next()
            submission.state = state
        await until(lambda: submission.cancelled)
        await until(lambda: running.metrics.in_flight == 0)
        assert running.metrics.cancels[phase] == 1
        assert sum(running.metrics.cancels.values()) == 1
        assert outcomes(running, "") == {"cancelled": 1}
        assert len(running.open) == 0


async def test_leaving_mid_stream_cancels(way: Way) -> None:
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat(stream=True)
            submission = await running.pool.next()
            submission.events(text("a"))
            await client.head()
            await client.chunk()
        await until(lambda: submission.cancelled)
        await until(lambda: running.metrics.in_flight == 0)
        assert running.metrics.cancels[CancelPhase.STREAMING] == 1
        assert outcomes(running) == {"cancelled": 1}
        assert len(running.open) == 0


async def test_a_client_that_has_just_left_is_not_submitted(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DisconnectWatch, "start", lambda watch: False)
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat(stream=True)
            await until(lambda: outcomes(running, "") == {"cancelled": 1})
        assert running.pool.submissions == []
        assert running.metrics.in_flight == 0
        assert len(running.open) == 0


async def test_leaving_after_a_large_request_cancels(way: Way) -> None:
    async with edge(way) as running:
        async with await running.connect() as client:
            client.chat(stream=True, user="x" * 300_000)
            submission = await running.pool.next()
        await until(lambda: submission.cancelled)


async def test_an_answer_that_crosses_the_cancel_still_tells_its_tokens(way: Way) -> None:
    async with edge(way) as running:
        running.pool.confirms_cancels = False
        async with await running.connect() as client:
            client.chat(stream=True)
            submission = await running.pool.next()
            submission.events(text("a"))
            await client.head()
        await until(lambda: submission.cancelled)
        assert running.metrics.in_flight == 1, "released by the terminal, not by the cancel"
        body = events.completed(json.dumps({"usage": USAGE}).encode())
        submission.end(OutcomeKind.CANCELLED, terminal=Terminal(TerminalKind.RESULT, body))
        assert running.metrics.in_flight == 0
        assert running.metrics.models["m"].output_tokens == 2
        assert outcomes(running) == {"cancelled": 1}


async def test_a_request_whose_client_left_before_it_was_read_is_not_submitted(way: Way) -> None:
    async with edge(way) as running:
        client = await running.connect()
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n{"
        )
        await client.close()
        await until(lambda: not running.server.server_state.connections)
        await until(lambda: not running.server.server_state.tasks)
        assert running.pool.submissions == []
        assert running.metrics.in_flight == 0


# Silence.


async def test_a_stream_without_events_begins_after_the_grace(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        running.tick(14.9)
        running.tick(0.2)
        assert (await client.head())[0] == 200
        assert await client.chunk() == KEEP_ALIVE
        submission.events(text("a"))
        assert await client.chunk() == sse("a")
        submission.answer(usage=USAGE)
        assert await client.chunks() == DONE


async def test_after_the_grace_errors_are_in_band(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        running.tick(15)
        await client.head()
        await client.chunk()
        submission.fail(ApiError.worker_lost())
        body = await client.chunks()
        assert body.startswith(b'data: {"error":')
        assert body.endswith(DONE)


async def test_silence_is_filled_with_comments(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        assert await client.chunk() == sse("a")
        running.tick(1)  # sees the event
        running.tick(14)
        submission.events(text("b"))
        assert await client.chunk() == sse("b")
        running.tick(1)
        running.tick(14.9)
        running.tick(0.2)
        assert await client.chunk() == KEEP_ALIVE
        running.tick(15)
        assert await client.chunk() == KEEP_ALIVE


async def test_events_that_say_nothing_to_the_client_are_silence(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        assert await client.chunk() == sse("a")
        running.tick(1)  # sees the event
        running.tick(8)
        submission.events(b'{"type":"response.something_new"}')
        running.tick(7)
        assert await client.chunk() == KEEP_ALIVE


async def test_before_the_grace_nothing_is_sent(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        running.tick(14.9)
        submission.fail(ApiError.no_worker())
        assert (await client.json())[0] == 503


# Slow readers.


async def test_credit_is_granted_anew_at_half_of_the_window(way: Way) -> None:
    async with edge(way, stream={"credit": 8}) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(*[text("a")] * 3)
        await client.head()
        await client.chunk()
        assert submission.grants == []
        submission.events(text("a"))
        await client.chunk()
        await until(lambda: submission.grants == [8])
        submission.events(*[text("a")] * 4)
        await client.chunk()
        await until(lambda: submission.grants == [8, 8])


async def test_diagnostics_cost_credit_too(way: Way) -> None:
    async with edge(way, stream={"credit": 2}) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        # With the window used up and none granted, the first token would never come.
        submission.events(events.diagnostics({}), events.diagnostics({}))
        assert submission.grants == [2]


async def test_the_first_window_is_in_the_envelope(way: Way) -> None:
    async with edge(way, stream={"credit": 8}) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        assert submission.worker is not None
        envelope = json.loads(submission.request.build(submission.worker))
        assert envelope["nnrp"]["credit"] == 8


async def test_a_reader_that_reads_nothing_gets_no_credit_until_it_does(way: Way) -> None:
    async with edge(way, stream={"credit": 4}) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        big = text("x" * 400_000)
        sent = 0
        # The test's own reader takes up to its limit; then the sockets fill, and grants stop.
        while len(submission.grants) == sent // 2 and sent < 400:
            submission.events(big, big)
            sent += 2
            await turns(5)
        grants = len(submission.grants)
        assert sent < 400, "a reader that reads nothing must be noticed"
        await client.head()
        for _ in range(sent // 2):
            await client.chunk()
        await until(lambda: len(submission.grants) > grants)


async def test_a_reader_stalled_for_too_long_is_cancelled(way: Way) -> None:
    # The ordinary way has a clock of its own, and no bound on what the kernel takes.
    timeout = 0.05 if way == "ordinary" else 60
    stream = {"credit": 4, "send_timeout": timeout, "unsent_bytes": 1 << 30}
    async with edge(way, stream=stream) as running, await running.connect() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.chat(stream=True)
        submission = await running.pool.next()
        for _ in range(40):
            submission.events(text("x" * 300_000))
            await turns(5)
        if way == "direct":
            running.tick(59)
            assert not submission.cancelled
            running.tick(2)
        await until(lambda: submission.cancelled)
        await until(lambda: running.metrics.in_flight == 0)
        assert running.metrics.stalled_readers == 1
        assert outcomes(running) == {"cancelled": 1}
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        rest = await client.reader.read()
        assert not rest.endswith(b"0\r\n\r\n"), "a cut stream must not look complete"


async def test_clients_that_leave_or_stall_put_no_traceback_into_the_log(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    # Their connection breaks before the stream has become direct, or they take nothing for ever.
    stream = {"send_timeout": 0.05, "unsent_bytes": 1 << 30}
    async with (
        edge(way, wrap=_Rebuild, stream=stream) as running,
        await running.connect() as leaving,
        await running.connect() as stalled,
    ):
        leaving.chat(stream=True)
        left = await running.pool.next()
        left.events(text("a"))
        await leaving.head()
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stalled.chat(stream=True)
        given_up = await running.pool.next(2)
        await leaving.close()
        for _ in range(40):
            given_up.events(text("x" * 300_000))
            await turns(5)
        await until(lambda: left.cancelled and given_up.cancelled)
        await until(lambda: not running.server.server_state.tasks)
    assert running.metrics.in_flight == 0
    assert [record for record in caplog.records if record.exc_info] == []


class _Rebuild:
    """A middleware that makes a start message of its own: the writer stays unattached."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def rebuild(message: Any) -> None:
            await send({key: value for key, value in message.items() if key != EXTENSION})

        await self.app(scope, receive, rebuild)


async def test_a_stalled_reader_of_the_last_bytes_does_not_wait_for_ever() -> None:
    async with edge("direct") as running, await running.connect() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("x" * 4_000_000))
        await until(lambda: running.open._open and next(iter(running.open._open))._writer)
        submission.answer(usage=USAGE)
        assert len(running.open) == 1
        running.tick(61)
        await until(lambda: not running.server.server_state.connections)
        running.tick(1)
        assert len(running.open) == 0
        assert running.metrics.stalled_readers == 1


async def test_a_slow_reader_of_the_last_bytes_gets_them() -> None:
    async with edge("direct") as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        assert await client.chunk() == sse("a")
        large = "x" * 4_000_000
        submission.events(text(large))
        submission.answer(usage=USAGE)
        assert len(running.open) == 1, "what waits for its reader is kept an eye on"
        assert await client.chunks() == sse(large) + DONE
        running.tick(61)
        assert len(running.open) == 0
        assert running.metrics.stalled_readers == 0


async def test_one_event_over_the_bound_is_no_sign_of_a_slow_reader(way: Way) -> None:
    async with (
        edge(way, stream={"unsent_bytes": 65536}) as running,
        await running.connect() as client,
    ):
        client.chat(stream=True)
        submission = await running.pool.next()
        large = "x" * 1_000_000
        submission.events(text(large))  # before the answer has begun
        await client.head()
        assert await client.chunk() == sse(large)
        submission.events(text(large))
        assert await client.chunk() == sse(large)
        submission.answer(usage=USAGE)
        assert await client.chunks() == DONE
        assert running.metrics.stalled_readers == 0


async def test_a_worker_without_credit_is_cancelled_above_the_bound(way: Way) -> None:
    sections = {"stream": {"unsent_bytes": 65536}}
    async with edge(way, **sections) as running, await running.connect() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await until(lambda: running.server.server_state.connections)
        for _ in range(40):
            if submission.cancelled:
                break
            submission.events(text("x" * 300_000))
            await turns(5)
        assert submission.cancelled
        assert running.metrics.stalled_readers == 1


# The end of the process.


async def test_a_shutdown_ends_open_streams_in_band(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        running.open.shut_down(ApiError.shutting_down())
        body = await client.chunks()
        assert body.startswith(sse("a") + b'data: {"error":')
        assert body.endswith(DONE)
        assert submission.cancelled


async def test_a_shutdown_refuses_what_has_not_begun(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        await running.pool.next()
        running.open.shut_down(ApiError.shutting_down())
        status, _, body = await client.json()
        assert (status, body["error"]["code"]) == (503, "shutting_down")


async def test_a_graceful_shutdown_lets_a_stream_end(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(text("a"))
        await client.head()
        running.server.stopping.set()
        await until(lambda: not running.server.servers[0].sockets)
        submission.events(text("b"))
        submission.answer(usage=USAGE)
        assert await client.chunks() == sse("a") + sse("b") + DONE


# Numbers and diagnostics.


async def test_a_stream_is_measured(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        assert running.metrics.in_flight == 1
        running.clock.now += 0.25
        submission.events(text("a"), text("b"))
        submission.queued_s = 0.125
        running.clock.now += 1
        submission.answer(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 1}})
        await client.head()
        await client.chunks()
        model = running.metrics.models["m"]
        assert running.metrics.in_flight == 0
        assert outcomes(running) == {RequestOutcome.OK: 1}
        assert model.time_to_first_token.sum == 0.25
        assert running.metrics.duration.sum == 1.25
        assert running.metrics.queue_wait.sum == 0.125
        assert (model.input_tokens, model.output_tokens, model.cached_tokens) == (3, 2, 1)
        assert model.events == 2


async def test_diagnostics_on_request(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True, headers="x-nnrp-diagnostics: 1\r\n")
        submission = await running.pool.next()
        submission.queued_s = 0.0025
        submission.events(events.diagnostics({"transport": "unix", "queue_delay_ms": 1}))
        submission.events(text("a"))
        _, headers = await client.head()
        assert headers["x-nnrp-worker"] == "worker-0"
        assert headers["server-timing"] == "gateway;dur=0.0, queue;dur=2.5"
        submission.events(events.diagnostics({"cache": {"cached_tokens": 2}}))
        submission.answer(usage=USAGE)
        body = await client.chunks()
        assert body.startswith(sse("a") + b": nnrp {")
        assert body.endswith(b"}\n\n" + DONE)
        comment = body.removeprefix(sse("a") + b": nnrp ").removesuffix(b"\n\n" + DONE)
        assert json.loads(comment) == {
            "worker": "worker-0",
            "attempts": 1,
            "queue_ms": 2.5,
            "gateway_ms": 0.0,
            "diagnostics": {
                "transport": "unix",
                "queue_delay_ms": 1,
                "cache": {"cached_tokens": 2},
            },
        }


async def test_nobody_else_gets_diagnostics(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        submission.events(events.diagnostics({"transport": "unix"}))
        submission.events(text("a"))
        submission.answer(usage=USAGE)
        _, headers = await client.head()
        assert "server-timing" not in headers
        assert "x-nnrp-worker" not in headers
        assert await client.chunks() == sse("a") + DONE


@pytest.mark.parametrize(
    "end", ["answered", "failed", "error", "refused", "malformed", "broken", "broken later", "left"]
)
async def test_a_stream_leaves_nothing_to_the_garbage_collector(end: str) -> None:
    kinds = TokenStream, ChatRequest, DirectWriter, RequestMeter, ApiError
    async with (
        edge() as running,
        await running.connect() as client,
        freed_without_the_collector(*kinds),
    ):
        if end == "refused":
            running.pool.refuse = ApiError.queue_full()
        client.chat(stream=True, n="two" if end == "malformed" else 1)
        if end not in ("refused", "malformed"):
            submission = await running.pool.next()
            match end:
                case "answered":
                    submission.events(text("a"))
                    submission.answer(usage=USAGE)
                case "failed":
                    submission.fail(ApiError.worker_lost())
                case "error":
                    submission.push(events.error(ProfileError(ErrorCode.BACKEND_ERROR, "no")))
                case "broken":
                    submission.events(b"{no json")
                case "broken later":
                    submission.events(text("a"), b"{no json")
                case "left":
                    await client.close()
                    await until(lambda: running.pool.submissions[0].cancelled)
            del submission
        if end != "left":
            await client.head()
        running.pool.submissions.clear()
        running.pool.refuse = None


async def test_its_repr_tells_state_and_way(way: Way) -> None:
    async with edge(way) as running, await running.connect() as client:
        client.chat(stream=True)
        submission = await running.pool.next()
        (stream,) = running.open._open
        assert repr(stream) == "<TokenStream [waiting, ordinary, 0 events]>"
        submission.events(text("a"))
        await client.head()
        await client.chunk()
        assert repr(stream) == f"<TokenStream [open, {way}, 1 events]>"
