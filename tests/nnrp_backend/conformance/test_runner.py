"""Whole runs over sockets: the scripted target passes, and each fault given to it is caught."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from nnrp_backend.client import NnrpClient
from nnrp_backend.conformance import runner
from nnrp_backend.conformance.findings import Rule
from nnrp_backend.conformance.planner import Plan, make_plan
from nnrp_backend.conformance.recipe import Recipe, builtin_recipes, load_recipes
from nnrp_backend.conformance.runner import Outcome, Played, payload_of, play_all
from nnrp_backend.transport.endpoint import Endpoint
from tests.support.broken_target import RECORD, Answer, Asked, Fault, Target, serving
from tests.support.recordings import TOOL, completed, error, event, planned, text
from tests.support.suite import SUITE

STREAM = "chat.streamed"
WHOLE = "chat.whole"
TOOLS = "chat.tools.streamed"
USAGE = "chat.usage.streamed"
CANCEL = "chat.cancel.streamed"
DIAGNOSTICS = "chat.diagnostics.asked"


def plan_of(*names: str) -> Plan:
    recipes = [recipe for recipe in builtin_recipes() if not names or _short(recipe) in names]
    assert len(recipes) == len(names) or not names
    return make_plan(recipes, RECORD)


def _short(recipe: Recipe) -> str:
    return recipe.id.removeprefix("nnrp-backend.")


async def run(plan: Plan, endpoint: Endpoint, timeout: float = 5.0) -> list[Played]:
    connect = partial(NnrpClient, endpoint, cancel_grace=0.3)
    return [one async for one in play_all(plan, connect, timeout=timeout)]


def said(played: Played) -> list[str]:
    assert played.verdict is not None, played.reason
    return [str(finding) for finding in played.verdict.findings]


async def test_the_scripted_target_passes_every_case() -> None:
    plan = plan_of()

    async with serving(Target()) as endpoint:
        played = await run(plan, endpoint)

    assert {one.case.id: said(one) for one in played if one.outcome is not Outcome.PASSED} == {}
    # Only the case about embeddings is not claimed.
    assert len(played) == len(builtin_recipes()) - 1


if SUITE is not None:  # its files lie beside the repository
    SUITE_RECIPES = load_recipes(SUITE)

    async def test_the_scripted_target_passes_the_suites_own_recipes() -> None:
        plan = make_plan(SUITE_RECIPES, RECORD)

        async with serving(Target()) as endpoint:
            played = await run(plan, endpoint)

        assert {one.case.id: said(one) for one in played if one.outcome is not Outcome.PASSED} == {}
        assert len(played) == 8


# --- faults ---------------------------------------------------------------------------------------


def parts(change: Callable[[list[Any]], list[Any]]) -> Fault:
    """Change the events of a stream."""

    def fault(asked: Asked, answer: Answer) -> Answer:
        if not asked.streamed:
            return answer
        return replace(answer, parts=tuple(change(list(answer.parts))))

    return fault


def each(kind: str, **members: Any) -> Fault:
    """Give every event `response.{kind}` other members; `...` takes one away."""

    def change(part: Any) -> Any:
        return _with(part, members) if part["type"] == f"response.{kind}" else part

    return parts(lambda events: [change(part) for part in events])


def end(change: Any, when: Callable[[Asked], bool] = lambda asked: True) -> Fault:
    """Change the terminal, of whatever `when` picks."""

    def fault(asked: Asked, answer: Answer) -> Answer:
        if not when(asked):
            return answer
        return replace(answer, end=change(answer.end) if callable(change) else change)

    return fault


def answer_with(**changes: Any) -> Fault:
    """Change anything about the answers to streams."""

    def fault(asked: Asked, answer: Answer) -> Answer:
        return replace(answer, **changes) if asked.streamed else answer

    return fault


def code(value: str) -> Fault:
    """Refuse with another code."""

    def change(body: Any) -> Any:
        return _with(body, {"error": body["error"] | {"code": value}})

    return end(change, lambda asked: not asked.streamed)


def _with(part: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    changed = part | members
    return {key: value for key, value in changed.items() if value is not ...}


def _swap(events: list[Any], first: int, second: int) -> list[Any]:
    events[first], events[second] = events[second], events[first]
    return events


TOOL_FAILED = event("tool_call.error", **TOOL, error={"type": "server_error", "message": "cut"})
OTHER_TOTAL = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 8}

FAULTS: list[tuple[str, Fault, str]] = [
    # The members of each event, one missing or ill-typed at a time.
    (STREAM, each("output_text.delta", index=...), "event-fields: event 1: "),
    (STREAM, each("output_text.delta", index="0"), "event-fields: event 1: "),
    (STREAM, each("output_text.delta", index=0.0), "event-fields: event 1: "),
    (STREAM, each("output_text.delta", delta=...), "event-fields: event 1: "),
    (STREAM, each("output_text.delta", delta=None), "event-fields: event 1: "),
    (TOOLS, each("tool_call.started", index=...), "event-fields: event 1: "),
    (TOOLS, each("tool_call.started", name=...), "event-fields: event 1: "),
    (TOOLS, each("tool_call.started", item_id=""), "event-fields: event 1: "),
    (TOOLS, each("tool_call.started", call_id=""), "event-fields: event 1: "),
    (TOOLS, each("tool_call.delta", call_id=...), "event-fields: event 2: "),
    (TOOLS, each("tool_call.delta", arguments_delta=...), "event-fields: event 2: "),
    (TOOLS, each("tool_call.completed", name=""), "event-fields: event 4: "),
    (TOOLS, each("tool_call.completed", arguments={"city": "Oslo"}), "event-fields: event 4: "),
    (TOOLS, parts(lambda events: [*events, TOOL_FAILED]), "event-fields: event 5: "),
    (USAGE, each("usage", usage=...), "event-fields: event 5: "),
    (DIAGNOSTICS, each("diagnostics", diagnostics=...), "event-fields: event 1: "),
    (WHOLE, end(event("completed")), "event-fields: the terminal: "),
    (WHOLE, end(event("error", error={"type": "t", "code": "c"})), "event-fields: the terminal: "),
    (WHOLE, end(event("cancelled")), "event-fields: the terminal: "),
    # What is no event of the profile.
    (STREAM, parts(lambda events: [*events, event("thoughts")]), "event-type: event 5 is of"),
    (STREAM, parts(lambda events: [b"tok0", *events]), "event-json: event 1 is not JSON"),
    (STREAM, parts(lambda events: [b"[]", *events]), "event-json: event 1 is not an object"),
    (STREAM, each("output_text.delta", type=...), "event-json: event 1 has no `type`"),
    (WHOLE, end(b"done"), "event-json: the terminal is not JSON"),
    # The tool contract.
    (TOOLS, parts(lambda events: _swap(events, 0, 1)), "tool-order: event 1: "),
    (TOOLS, parts(lambda events: events[1:]), "tool-order: event 1: "),
    (TOOLS, parts(lambda events: [events[0], *events]), "tool-order: event 2: "),
    (TOOLS, parts(lambda events: _swap(events, 1, 2)), "tool-order: event 4: "),
    (TOOLS, each("tool_call.completed", arguments="{}"), "tool-order: event 4: "),
    (TOOLS, each("tool_call.completed", name="other"), "tool-order: event 4: "),
    (TOOLS, parts(lambda events: [*events, events[-1]]), "tool-order: event 5: "),
    (TOOLS, parts(lambda events: _swap(events, 2, 3)), "tool-order: event 4: "),
    (TOOLS, parts(lambda events: events[:-1]), "tool-order: call "),
    ("negative.stream-order.tools", parts(lambda events: _swap(events, 0, 2)), "tool-order: "),
    # Numbers and texts that contradict each other.
    (USAGE, each("usage", usage=OTHER_TOTAL), "usage-counts: event 5: total_tokens is 8"),
    (USAGE, each("usage", usage={}), "usage-counts: event 5: "),
    (STREAM, parts(lambda events: events[:-1]), "final-text: choice 0: "),
    # The terminal.
    (STREAM, answer_with(end=None), "terminal-missing: none came within "),
    (STREAM, answer_with(dies=True), "terminal-missing: "),
    (WHOLE, end(text("late")), "terminal-frame: RESULT_PUSH carries response.output_text.delta"),
    (STREAM, parts(lambda events: [*events, completed()]), "terminal-frame: event 5 is"),
    (STREAM, parts(lambda events: [*events, completed()]), "terminal-once: 2 terminal events"),
    (STREAM, parts(lambda events: [completed(), *events]), "terminal-last: 4 events follow"),
    (STREAM, answer_with(late=(text("more"),)), "terminal-last: 1 frames follow"),
    (STREAM, answer_with(late_end=completed()), "terminal-last: 1 frames follow"),
    (STREAM, end(b""), "terminal-body: RESULT_PUSH is empty"),
    (STREAM, end(error()), "terminal-expected: success expected, the end was response.error"),
    (STREAM, answer_with(drop=1), "terminal-expected: success expected, the end was a drop"),
    ("negative.body.model-missing", end(completed()), "terminal-expected: error expected"),
    ("negative.stream-order.tools", end(error()), "terminal-expected: success expected"),
    # What a recipe expects.
    (STREAM, parts(lambda events: []), "expected-event: response.output_text.delta: at least 1"),
    (USAGE, parts(lambda events: events[:-1]), "expected-event: response.usage: at least 1"),
    ("negative.model.backend-error", code("oops"), "expected-event: response.error: error.code"),
    ("negative.body.messages-missing", code("no"), "expected-event: response.error: error.code"),
    ("negative.operation.unsupported", code("no"), "expected-event: response.error: error.code"),
    ("negative.envelope.not-json", code("no"), "expected-event: response.error: error.code"),
    # What was not asked.
    (WHOLE, lambda asked, answer: replace(answer, parts=(text("a"),)), "whole-answer: 1 events"),
    # Diagnostics.
    (DIAGNOSTICS, parts(lambda events: events[1:]), "diagnostics: response.diagnostics was asked"),
    (DIAGNOSTICS, parts(lambda events: _swap(events, 0, 1)), "is event 2, not first"),
    (
        "chat.diagnostics.unasked",
        parts(lambda events: [event("diagnostics", diagnostics={}), *events]),
        "diagnostics: response.diagnostics came without being asked",
    ),
    # Cancellation.
    (CANCEL, answer_with(deaf=True), "the end was response.completed"),
    (CANCEL, answer_with(deaf=True, end=None), "terminal-missing: no answer to cancel"),
    (CANCEL, parts(lambda events: events[:1]), "cancel-honoured: CANCEL was due after 2 events"),
    # The wire below.
    (STREAM, answer_with(garbage=True), "wire: "),
]


def test_each_rule_has_a_target_that_breaks_it() -> None:
    assert set(Rule) <= {finding.partition(":")[0] for _, _, finding in FAULTS}


def _names(value: Any) -> str:
    return value if isinstance(value, str) else "fault"


@pytest.mark.parametrize(("name", "fault", "finding"), FAULTS, ids=_names)
async def test_a_fault_is_caught_by_its_rule(name: str, fault: Fault, finding: str) -> None:
    async with serving(Target()) as endpoint:
        (good,) = await run(plan_of(name), endpoint)
    async with serving(Target(fault)) as endpoint:
        (bad,) = await run(plan_of(name), endpoint, timeout=0.5)

    assert said(good) == []
    assert bad.outcome is Outcome.FAILED
    assert any(finding in line for line in said(bad)), said(bad)


# --- what the driver does -------------------------------------------------------------------------


async def test_each_case_has_a_connection_of_its_own() -> None:
    target = Target()

    async with serving(target) as endpoint:
        await run(plan_of(STREAM, WHOLE), endpoint)

    # One case and one barrier question each.
    assert len(target.operations) == 4
    assert len({operation.session for operation in target.operations}) == 2


async def test_a_dead_connection_spoils_only_its_own_case() -> None:
    async with serving(Target(answer_with(dies=True))) as endpoint:
        played = await run(plan_of(STREAM, WHOLE), endpoint)

    assert {one.case.id: one.outcome for one in played} == {
        "nnrp-backend.chat.streamed": Outcome.FAILED,
        "nnrp-backend.chat.whole": Outcome.PASSED,
    }


async def test_cases_are_skipped_when_nobody_listens() -> None:
    async with serving(Target()) as endpoint:
        pass

    (played,) = await run(plan_of(STREAM), endpoint)

    assert played.outcome is Outcome.SKIPPED
    assert str(endpoint) in played.reason


async def test_stages_of_progress_are_no_events() -> None:
    target = Target(answer_with(stages=(1, 5)))

    async with serving(target) as endpoint:
        (played,) = await run(plan_of(STREAM), endpoint)

    assert said(played) == []


async def test_a_target_that_does_not_answer_the_question_after_a_case_is_not_at_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "BARRIER_TIMEOUT", 0.05)

    def silent_after(asked: Asked, answer: Answer) -> Answer:
        return answer if asked.streamed else Answer()

    async with serving(Target(silent_after)) as endpoint:
        (played,) = await run(plan_of(STREAM), endpoint)

    assert said(played) == []


async def test_a_cancel_goes_over_the_wire_after_the_events_that_the_recipe_says() -> None:
    target = Target()

    async with serving(target) as endpoint:
        (played,) = await run(plan_of(CANCEL), endpoint)

    assert said(played) == []
    assert played.verdict is not None
    assert len(played.verdict.seen.recording.bodies) == 2
    assert target.operations[0].events_sent == 2
    envelope = msgspec.json.decode(target.operations[0].payload)
    assert envelope["nnrp"] == {"credit": 2}


@pytest.mark.parametrize(
    ("nnrp", "credit", "expected"),
    [
        ({}, True, None),
        ({"diagnostics": True}, True, {"diagnostics": True}),
        ({"cancel_after_events": 3}, True, {"credit": 3}),
        ({"cancel_after_events": 0}, True, {"credit": 1}),
        ({"cancel_after_events": 3, "credit": 8}, True, {"credit": 8}),
        ({"cancel_after_events": 3}, False, None),
    ],
)
def test_the_envelope_keeps_what_is_the_drivers_business_out(
    nnrp: dict[str, Any], credit: bool, expected: Any
) -> None:
    case = planned(nnrp=nnrp, id="the-case", body={"model": "m"})

    envelope = msgspec.json.decode(payload_of(case, credit=credit))

    assert envelope.pop("nnrp", None) == expected
    assert envelope == {
        "schema_version": "openai-compatible/1",
        "operation": "chat.completions.create",
        "request_id": "the-case",
        "body": {"model": "m"},
    }


def test_a_recipe_may_spoil_the_envelope() -> None:
    case = planned(body={"model": "m"}, envelope={"body": "text", "request_id": 7})

    envelope = msgspec.json.decode(payload_of(case, credit=True))

    assert (envelope["body"], envelope["request_id"]) == ("text", 7)


def test_a_recipe_may_send_anything_else() -> None:
    assert payload_of(planned(payload="{"), credit=True) == b"{"
