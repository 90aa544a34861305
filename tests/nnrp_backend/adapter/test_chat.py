import asyncio
import json
import logging
import time
from typing import Any

import pytest

from nnrp_backend.adapter.chat import ChatOperation
from nnrp_backend.adapter.engine import DropConnection, EngineDead
from nnrp_backend.adapter.outcomes import Outcome
from nnrp_backend.adapter.request import prepare_chat
from nnrp_backend.profile.envelope import Envelope, NnrpOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import CHAT
from nnrp_backend.profile.tool_calls import ToolCallRules
from nnrp_backend.protocol.constants import CancelReason, DropReason, Stage
from nnrp_backend.transport.tasks import TaskSet
from tests.support.engines import COMPLETION, USAGE, ScriptedEngine, chunk, text_chunks
from tests.support.operations import FakeOperation
from tests.support.waiting import turns, until

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}


class Harness:
    """One chat operation on a scripted engine."""

    def __init__(
        self,
        *,
        stream: bool = True,
        include_usage: bool = False,
        nnrp: NnrpOptions | None = None,
        stall_timeout: float | None = None,
        progress: bool = False,
        peer_is_ours: bool = False,
        deadline_unix_ms: int | None = None,
    ) -> None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": stream,
            "stream_options": {"include_usage": include_usage},
        }
        self.engine = ScriptedEngine()
        self.operation = FakeOperation(b"", progress=progress, peer_is_ours=peer_is_ours)
        self.operation.deadline_unix_ms = deadline_unix_ms
        self.tasks = TaskSet("test")
        self.outcomes: list[Outcome] = []
        self.deaths: list[EngineDead] = []
        work = prepare_chat(
            Envelope(CHAT, "req-1", body, nnrp or NnrpOptions()), priority_class=1, trace=None
        )
        self.chat = ChatOperation(
            self.operation,  # type: ignore[arg-type]
            work,
            self.engine,
            stall_timeout=stall_timeout,
            ended=lambda chat, outcome: self.outcomes.append(outcome),
            engine_died=self.deaths.append,
        )

    async def start(self, *items: bytes | Exception, end: bool = False) -> "Harness":
        """Start, and let the engine produce `items`."""
        self.chat.start(self.tasks)
        await until(lambda: self.engine.requests)
        self.engine.feed(*items, end=end)
        return self

    async def ended(self) -> None:
        """Wait for the task's end."""
        await until(lambda: not len(self.tasks))

    async def events(self, count: int) -> None:
        """Wait until so many events were sent."""
        await until(lambda: len(self.operation.events) >= count)


async def test_a_stream_becomes_events_and_one_terminal() -> None:
    harness = await Harness().start(*text_chunks("good", "bye"), end=True)
    await harness.ended()
    operation = harness.operation
    assert operation.text == "goodbye"
    assert [event["type"] for event in operation.events] == ["response.output_text.delta"] * 4
    assert operation.terminal is not None
    kind, event, status = operation.terminal
    assert (kind, event["type"], status) == ("complete", "response.completed", 200)
    assert event["body"]["choices"][0]["message"]["content"] == "goodbye"
    assert event["body"]["usage"] == USAGE
    assert harness.outcomes == [Outcome.COMPLETED]
    assert harness.engine.aborted == []


async def test_a_whole_answer_is_one_terminal() -> None:
    harness = await Harness(stream=False).start(json.dumps(COMPLETION).encode())
    await harness.ended()
    assert harness.operation.sent == [
        ("complete", {"type": "response.completed", "body": COMPLETION}, 200)
    ]
    assert harness.outcomes == [Outcome.COMPLETED]


async def test_progress_is_reported_in_order() -> None:
    harness = await Harness(progress=True).start(*text_chunks("a"), end=True)
    await harness.ended()
    kinds = [entry[1] if entry[0] == "progress" else entry[0] for entry in harness.operation.sent]
    assert kinds == [
        Stage.ADMITTED,
        Stage.EXECUTING,
        Stage.PRODUCING_PARTIAL,
        *["event"] * 3,
        Stage.FINALIZING,
        "complete",
    ]


@pytest.mark.parametrize("diagnostics", [False, True])
async def test_our_own_clients_hear_of_progress_when_they_ask_for_diagnostics(
    diagnostics: bool,
) -> None:
    nnrp = NnrpOptions(diagnostics=diagnostics)
    harness = Harness(stream=False, progress=True, peer_is_ours=True, nnrp=nnrp)
    await harness.start(json.dumps(COMPLETION).encode())
    await harness.ended()
    stages = [entry[1] for entry in harness.operation.sent if entry[0] == "progress"]
    heard = [Stage.ADMITTED, Stage.EXECUTING, Stage.FINALIZING]
    assert stages == (heard if diagnostics else [])


async def test_usage_that_came_early_is_an_event_of_its_own_at_the_end() -> None:
    harness = Harness(include_usage=True, nnrp=NnrpOptions(credit=2))
    await harness.start(chunk({"content": "a"}), chunk(finish="stop", usage=USAGE), end=True)
    await harness.events(2)
    await turns(10)
    assert not harness.operation.done
    harness.operation.grant(1)
    await harness.ended()
    assert harness.operation.events[-1]["type"] == "response.usage"
    assert harness.operation.events[-1]["usage"] == USAGE
    assert harness.outcomes == [Outcome.COMPLETED]


# --- diagnostics ---------------------------------------------------------------------------------


async def test_diagnostics_come_first_when_asked() -> None:
    harness = await Harness(nnrp=NnrpOptions(diagnostics=True)).start()
    await harness.events(1)
    (event,) = harness.operation.events
    assert event["type"] == "response.diagnostics"
    assert event["diagnostics"]["transport"] == "memory"
    assert event["diagnostics"]["pressure"]["capacity"] == 4


@pytest.mark.parametrize("stream", [True, False])
async def test_cache_diagnostics_come_before_the_terminal(stream: bool) -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 2}}
    harness = Harness(stream=stream, nnrp=NnrpOptions(diagnostics=True))
    if stream:
        await harness.start(*text_chunks("a", usage=usage), end=True)
    else:
        await harness.start(json.dumps({**COMPLETION, "usage": usage}).encode())
    await harness.ended()
    assert harness.operation.events[-1]["diagnostics"] == {"cache": {"cached_tokens": 2}}


async def test_no_diagnostics_unless_asked() -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 2}}
    harness = await Harness().start(*text_chunks("a", usage=usage), end=True)
    await harness.ended()
    assert all("diagnostics" not in event for event in harness.operation.events)


# --- errors --------------------------------------------------------------------------------------


async def test_an_engines_error_is_the_terminal() -> None:
    error = ProfileError(ErrorCode.BACKEND_OVERLOAD, "full", retry_after_ms=250)
    harness = await Harness().start(error)
    await harness.ended()
    assert harness.operation.sent[-2] == ("retry_after", 250)
    assert harness.operation.error["code"] == "backend_overload"
    assert harness.operation.terminal is not None
    assert harness.operation.terminal[2] == 503
    assert harness.outcomes == [Outcome.ERROR]


async def test_an_error_of_a_whole_answer() -> None:
    harness = await Harness(stream=False).start(ProfileError(ErrorCode.UNSUPPORTED_MODEL, "gone"))
    await harness.ended()
    assert harness.operation.error["code"] == "unsupported_model"
    assert ("retry_after", 1000) not in harness.operation.sent


async def test_an_error_in_the_stream_keeps_what_was_sent_and_closes_open_calls() -> None:
    harness = await Harness().start(
        chunk({"role": "assistant", "content": "so"}),
        chunk({"tool_calls": [CALL]}),
        ProfileError(ErrorCode.BACKEND_ERROR, "broken"),
    )
    await harness.ended()
    operation = harness.operation
    assert operation.text == "so"
    assert operation.events[-1]["type"] == "response.tool_call.error"
    assert operation.events[-1]["error"]["code"] == "tool_call_stream_interrupted"
    assert operation.error["code"] == "backend_error"


@pytest.mark.parametrize(
    "upstream",
    [b'{"error":{"message":"boom","type":"InternalServerError","code":500}}', b"no JSON", b"[]"],
)
async def test_a_chunk_that_is_none_ends_the_stream_and_the_engines_work(upstream: bytes) -> None:
    harness = await Harness().start(chunk({"content": "a"}), upstream, chunk({"content": "b"}))
    await harness.ended()
    assert harness.operation.text == "a"
    assert harness.operation.error["code"] == "backend_error"


async def test_a_stream_that_ends_without_a_finish_reason_is_an_error() -> None:
    harness = await Harness().start(chunk({"role": "assistant", "content": "a"}), end=True)
    await harness.ended()
    assert harness.operation.error["code"] == "backend_error"


async def test_an_unexpected_exception_tells_the_log_and_not_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        harness = await Harness().start(RuntimeError("secret prompt"))
        await harness.ended()
    assert harness.operation.error["code"] == "adapter_runtime_error"
    assert "secret" not in json.dumps(harness.operation.error)
    assert "secret prompt" in caplog.text


async def test_the_engines_death_is_told_to_the_adapter() -> None:
    harness = await Harness().start(EngineDead("scripted", "gone"))
    await harness.ended()
    assert [death.reason for death in harness.deaths] == ["gone"]


async def test_a_dropped_connection() -> None:
    harness = await Harness().start(chunk({"content": "a"}), DropConnection())
    await harness.ended()
    assert harness.operation.terminal == ("abort_connection",)


# --- stopping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("reason", "drop", "outcome"),
    [
        (CancelReason.USER_CANCELLED, DropReason.PEER_CANCELLED, Outcome.CANCELLED),
        (CancelReason.SUPERSEDED, DropReason.SUPERSEDED, Outcome.SUPERSEDED),
        (99, DropReason.PEER_CANCELLED, Outcome.CANCELLED),
    ],
)
async def test_a_cancel_drops_at_once_and_aborts_the_engine(
    stream: bool, reason: int, drop: DropReason, outcome: Outcome
) -> None:
    harness = await Harness(stream=stream).start()
    harness.chat.on_cancel(reason, False)
    assert harness.operation.terminal == ("drop", drop)
    assert harness.outcomes == [outcome]
    await harness.ended()
    assert harness.engine.aborted == [harness.engine.requests[0].id]
    harness.chat.on_cancel(reason, False)
    assert harness.outcomes == [outcome]


async def test_a_cancel_mid_stream_stops_late_events() -> None:
    harness = await Harness().start(chunk({"content": "a"}))
    await harness.events(1)
    harness.engine.feed(*text_chunks("late"), end=True)
    harness.chat.on_cancel(CancelReason.USER_CANCELLED, False)
    await harness.ended()
    assert harness.operation.text == "a"
    assert harness.operation.terminal == ("drop", DropReason.PEER_CANCELLED)


async def test_an_engine_that_does_not_let_go_is_not_waited_for() -> None:
    harness = Harness()
    harness.engine.obedient = False
    await harness.start()
    harness.chat.on_cancel(CancelReason.USER_CANCELLED, False)
    assert harness.operation.terminal == ("drop", DropReason.PEER_CANCELLED)
    await until(lambda: harness.engine.aborted)
    harness.engine.feed(*text_chunks("late"))
    await harness.ended()
    assert harness.operation.events == []
    assert harness.outcomes == [Outcome.CANCELLED]


async def test_a_late_whole_answer_of_such_an_engine_is_dropped_too() -> None:
    harness = Harness(stream=False)
    harness.engine.obedient = False
    await harness.start()
    harness.chat.on_cancel(CancelReason.USER_CANCELLED, False)
    await until(lambda: harness.engine.aborted)
    harness.engine.feed(json.dumps(COMPLETION).encode())
    await harness.ended()
    assert harness.outcomes == [Outcome.CANCELLED]


async def test_a_lost_connection_aborts_the_engine() -> None:
    harness = await Harness().start(chunk({"content": "a"}))
    await harness.events(1)
    harness.operation.lose(CancelReason.TRANSPORT_CLOSING)
    await harness.ended()
    assert harness.outcomes == [Outcome.LOST]
    assert len(harness.engine.aborted) == 1


async def test_a_shutdown_tells_the_client_to_go_elsewhere() -> None:
    harness = await Harness().start(chunk({"content": "a"}))
    await harness.events(1)
    harness.chat.on_cancel(CancelReason.SHUTDOWN, True)
    assert harness.operation.error["code"] == "backend_cancelled"
    assert harness.operation.sent[-2] == ("retry_after", 1000)
    await harness.ended()
    assert len(harness.engine.aborted) == 1


async def test_a_cancel_before_the_task_ran() -> None:
    harness = Harness()
    harness.chat.start(harness.tasks)
    harness.chat.on_cancel(CancelReason.USER_CANCELLED, False)
    await harness.ended()
    assert harness.engine.requests == []
    assert harness.operation.sent == [("drop", DropReason.PEER_CANCELLED)]


async def test_stopping_what_has_ended_changes_nothing() -> None:
    harness = await Harness().start(*text_chunks("a"), end=True)
    await harness.ended()
    before = list(harness.operation.sent)
    harness.chat.stop(ProfileError(ErrorCode.BACKEND_ERROR, "late"))
    harness.chat.on_deadline(1, True)
    harness.chat.on_priority(0, 0)
    await turns()
    assert harness.operation.sent == before
    assert harness.outcomes == [Outcome.COMPLETED]


# --- deadline and stall --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_the_envelopes_deadline_expires(stream: bool) -> None:
    harness = await Harness(stream=stream, nnrp=NnrpOptions(deadline_ms=20)).start()
    await harness.ended()
    assert harness.operation.terminal == ("drop", DropReason.DEADLINE_EXPIRED)
    assert harness.outcomes == [Outcome.EXPIRED]
    assert len(harness.engine.aborted) == 1


async def test_the_wires_deadline_expires() -> None:
    harness = await Harness(deadline_unix_ms=int(time.time() * 1000) + 20).start()
    await harness.ended()
    assert harness.operation.terminal == ("drop", DropReason.DEADLINE_EXPIRED)


async def test_a_deadline_that_comes_later_counts_too() -> None:
    harness = await Harness().start()
    harness.chat.on_deadline(int(time.time() * 1000), False)
    await harness.ended()
    assert harness.operation.terminal == ("drop", DropReason.DEADLINE_EXPIRED)


@pytest.mark.parametrize(
    "late", [{"deadline_unix_ms": 1}, {"nnrp": NnrpOptions(deadline_ms=0)}], ids=str
)
async def test_dead_work_never_reaches_the_engine(late: dict[str, Any]) -> None:
    harness = Harness(**late)
    harness.chat.start(harness.tasks)
    assert harness.operation.terminal == ("drop", DropReason.DEADLINE_EXPIRED)
    await turns()
    assert harness.engine.requests == []
    assert harness.outcomes == [Outcome.EXPIRED]


async def test_a_deadline_does_not_expire_what_is_in_time() -> None:
    options = NnrpOptions(deadline_ms=60_000)
    harness = await Harness(nnrp=options).start(*text_chunks("a"), end=True)
    await harness.ended()
    assert harness.outcomes == [Outcome.COMPLETED]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("options", "stall_timeout"), [(NnrpOptions(timeout_ms=20), None), (NnrpOptions(), 0.02)]
)
async def test_a_silent_engine_stalls(
    stream: bool, options: NnrpOptions, stall_timeout: float | None
) -> None:
    harness = await Harness(stream=stream, nnrp=options, stall_timeout=stall_timeout).start()
    await harness.ended()
    assert harness.operation.error == {
        "type": "timeout_error",
        "code": "request_timeout",
        "message": "The engine produced nothing for 0.02 s.",
    }
    assert harness.operation.terminal is not None
    assert harness.operation.terminal[2] == 504
    assert harness.outcomes == [Outcome.STALLED]
    assert len(harness.engine.aborted) == 1


async def test_a_stall_keeps_what_was_sent() -> None:
    harness = await Harness(nnrp=NnrpOptions(timeout_ms=20)).start(chunk({"content": "a"}))
    await harness.ended()
    assert harness.operation.text == "a"
    assert harness.outcomes == [Outcome.STALLED]


async def test_a_timeout_of_zero_is_no_bound_even_where_there_is_one() -> None:
    harness = await Harness(nnrp=NnrpOptions(timeout_ms=0), stall_timeout=0.001).start()
    await asyncio.sleep(0.01)  # ten times the bound that does not count
    assert not harness.operation.done
    harness.engine.feed(*text_chunks("a"), end=True)
    await harness.ended()
    assert harness.outcomes == [Outcome.COMPLETED]


async def test_waiting_for_the_client_is_no_stall() -> None:
    options = NnrpOptions(timeout_ms=200, credit=1)
    harness = await Harness(nnrp=options).start(*text_chunks("a", "b"))
    await harness.events(1)
    await asyncio.sleep(0.45)  # more than twice the bound
    assert not harness.operation.done
    harness.engine.feed(end=True)
    harness.operation.grant(None)
    await harness.ended()
    assert harness.outcomes == [Outcome.COMPLETED]


# --- credit --------------------------------------------------------------------------------------


async def test_without_credit_one_chunk_is_held_and_no_more_is_pulled() -> None:
    harness = await Harness(nnrp=NnrpOptions(credit=2)).start(*text_chunks("a", "b", "c"), end=True)
    await harness.events(2)
    await turns(10)
    assert harness.operation.text == "a"
    assert harness.engine.unread() == 4
    harness.operation.grant(1)
    await harness.events(3)
    await turns(10)
    assert harness.operation.text == "ab"
    assert harness.engine.unread() == 3
    harness.operation.grant(100)
    await harness.ended()
    assert harness.operation.text == "abc"
    assert harness.outcomes == [Outcome.COMPLETED]


async def test_one_chunk_that_is_many_events_waits_between_them() -> None:
    harness = await Harness(nnrp=NnrpOptions(credit=1)).start()
    call = {**CALL, "function": {"name": "f", "arguments": "{}"}}
    harness.engine.feed(chunk({"tool_calls": [call]}), chunk(finish="tool_calls"), end=True)
    for count, kind in enumerate(("started", "delta", "completed"), 1):
        await harness.events(count)
        await turns(10)
        assert len(harness.operation.events) == count
        assert harness.operation.events[-1]["type"] == f"response.tool_call.{kind}"
        harness.operation.grant(1)
    await harness.ended()
    assert harness.outcomes == [Outcome.COMPLETED]


async def test_an_error_is_preceded_by_what_was_already_pulled() -> None:
    """Or the client would hear of a tool call that neither completes nor fails."""
    harness = await Harness(nnrp=NnrpOptions(credit=2)).start()
    call = {**CALL, "function": {"name": "f", "arguments": "{}"}}
    harness.engine.feed(chunk({"tool_calls": [call]}), chunk(finish="tool_calls"))
    await harness.events(2)
    await turns(10)
    harness.chat.stop(ProfileError(ErrorCode.BACKEND_ERROR, "The engine died."))
    order = ToolCallRules()
    assert [problem for event in harness.operation.events for problem in order.observe(event)] == []
    assert list(order.finish()) == []
    assert harness.operation.error["code"] == "backend_error"
    await harness.ended()


async def test_a_stalled_client_can_cancel() -> None:
    harness = await Harness(nnrp=NnrpOptions(credit=1)).start(*text_chunks("a", "b"))
    await harness.events(1)
    harness.chat.on_cancel(CancelReason.USER_CANCELLED, False)
    await harness.ended()
    assert harness.operation.terminal == ("drop", DropReason.PEER_CANCELLED)


async def test_the_terminal_needs_no_credit() -> None:
    options = NnrpOptions(credit=3)
    harness = await Harness(nnrp=options).start(*text_chunks("a"), end=True)
    await harness.ended()
    assert len(harness.operation.events) == 3
    assert harness.outcomes == [Outcome.COMPLETED]


async def test_repr() -> None:
    harness = await Harness().start()
    request_id = harness.engine.requests[0].id
    assert repr(harness.chat) == f"<ChatOperation {request_id} running: <FakeOperation [0 sent]>>"
    harness.chat.on_cancel(CancelReason.USER_CANCELLED, False)
    assert repr(harness.chat) == f"<ChatOperation {request_id} cancelled: <FakeOperation [1 sent]>>"
    await harness.ended()
