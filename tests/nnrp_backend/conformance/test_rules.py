"""Each rule of `rules`, kept and broken. What breaks it on a real wire is in `test_runner`."""

from typing import Any

import pytest

from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.conformance.findings import Rule
from nnrp_backend.conformance.planner import PlannedCase
from nnrp_backend.conformance.recipe import TerminalState
from nnrp_backend.conformance.recording import Recording, observe
from nnrp_backend.conformance.rules import broken_rules, usage_problems
from tests.support.recordings import (
    TOOL,
    completed,
    dropped,
    error,
    event,
    lost,
    planned,
    pushed,
    recording,
    text,
    tool_call,
)

DONE = pushed(completed())
STREAM = planned()
WHOLE = planned(body={"model": "m", "messages": []})
CANCEL = planned(
    nnrp={"cancel_after_events": 1}, terminal=TerminalState.CANCELLED, body={"stream": True}
)
FAILING = planned(terminal=TerminalState.ERROR)


def broken(recorded: Recording, case: PlannedCase = STREAM) -> list[str]:
    return [str(finding) for finding in broken_rules(case, observe(recorded))]


@pytest.mark.parametrize(
    ("recorded", "case"),
    [
        (recording(terminal=DONE), STREAM),
        (recording(text("a"), text(""), terminal=DONE), STREAM),
        (recording(*tool_call('{"a"', ":1}"), terminal=DONE), STREAM),
        (recording(*tool_call(), terminal=DONE), STREAM),
        (recording(terminal=DONE), WHOLE),
        (recording(event("diagnostics", diagnostics={}), terminal=DONE), WHOLE),
        (recording(terminal=pushed(error())), FAILING),
        (recording(text("a"), terminal=pushed(error())), FAILING),
        (recording(text("a"), terminal=dropped()), CANCEL),
        (
            recording(text("a"), terminal=pushed(event("cancelled", reason="user"))),
            CANCEL,
        ),
    ],
)
def test_a_good_answer_breaks_nothing(recorded: Recording, case: PlannedCase) -> None:
    assert broken(recorded, case) == []


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        (event("output_text.delta", delta="a"), "index"),
        (event("output_text.delta", index=0), "delta"),
        (event("output_text.delta", index="0", delta="a"), "index"),
        (event("output_text.delta", index=-1, delta="a"), "index"),
        (event("output_text.delta", index=True, delta="a"), "index"),
        (event("usage"), "usage"),
        (event("usage", usage=7), "usage"),
        (event("diagnostics"), "diagnostics"),
    ],
)
def test_each_event_has_its_fields(part: dict[str, Any], detail: str) -> None:
    (found,) = broken(recording(part, terminal=DONE))

    assert found.startswith(f"event-fields: event 1: {part['type']}: ")
    assert detail in found


@pytest.mark.parametrize(
    "end",
    [
        event("completed"),
        event("completed", body="text"),
        event("error"),
        event("error", error="no"),
        event("error", error={"type": "t", "message": "m"}),
        event("error", error={"type": "t", "code": "c"}),
        event("error", error={"code": "c", "message": "m"}),
        event("cancelled"),
        event("cancelled", reason=3),
    ],
)
def test_each_terminal_has_its_fields(end: dict[str, Any]) -> None:
    state = TerminalState(
        {"completed": "success", "error": "error", "cancelled": "cancelled"}[end["type"][9:]]
    )

    (found,) = broken(recording(terminal=pushed(end)), planned(terminal=state))

    assert found.startswith(f"event-fields: the terminal: {end['type']}: ")


def test_an_unknown_type_is_a_violation_unless_it_is_declared() -> None:
    seen = observe(recording(event("thoughts", text="hm"), terminal=DONE))

    assert [str(each) for each in broken_rules(STREAM, seen)] == [
        "event-type: event 1 is of unknown type 'response.thoughts'"
    ]
    assert not list(broken_rules(STREAM, seen, frozenset({"response.thoughts"})))


@pytest.mark.parametrize(
    ("terminal", "detail"),
    [
        (None, "none came within 1.5 s"),
        (lost("connection reset"), "connection reset"),
        (lost(), "the operation was lost"),
        (Terminal(TerminalKind.FAILED), "the operation was failed"),
    ],
)
def test_an_operation_has_to_end(terminal: Terminal | None, detail: str) -> None:
    found = broken(recording(terminal=terminal, seconds=1.5), FAILING)

    assert found == [f"terminal-missing: {detail}"]


def test_the_wire_below_has_to_be_kept() -> None:
    assert broken(recording(terminal=DONE, protocol_errors=2)) == [
        "wire: 2 packets broke the protocol"
    ]


def test_terminal_events_ride_on_result_push() -> None:
    found = broken(recording(completed(), terminal=pushed(text("a"))), FAILING)

    assert "terminal-frame: event 1 is response.completed on a PARTIAL_RESULT" in found
    assert "terminal-frame: RESULT_PUSH carries response.output_text.delta" in found


def test_there_is_one_terminal_event_and_nothing_after_it() -> None:
    found = broken(recording(text("a"), completed(), text("b"), terminal=DONE))

    assert "terminal-once: 2 terminal events came" in found
    assert "terminal-last: 1 events follow the terminal event 2" in found


def test_frames_after_the_terminal_are_found() -> None:
    assert broken(recording(terminal=DONE, late_frames=2)) == [
        "terminal-last: 2 frames follow the terminal frame"
    ]


def test_frames_for_a_lost_operation_are_not_late() -> None:
    found = broken(recording(terminal=lost("no answer to cancel"), late_frames=2), FAILING)

    assert found == ["terminal-missing: no answer to cancel"]


def test_an_empty_result_says_nothing() -> None:
    assert broken(recording(text("a"), terminal=pushed(b""))) == [
        "terminal-body: RESULT_PUSH is empty: no response.completed"
    ]


@pytest.mark.parametrize(
    ("terminal", "end"),
    [
        (pushed(error("backend_error")), "response.error (backend_error)"),
        (pushed(event("cancelled", reason="shutdown")), "response.cancelled"),
        (dropped(1), "a drop with reason 1"),
        (dropped(3), "response.cancelled"),
    ],
)
def test_the_end_is_the_expected_one(terminal: Terminal, end: str) -> None:
    assert broken(recording(terminal=terminal)) == [
        f"terminal-expected: success expected, the end was {end}"
    ]


def test_an_error_case_must_not_succeed() -> None:
    assert broken(recording(terminal=DONE), FAILING) == [
        "terminal-expected: error expected, the end was response.completed"
    ]


@pytest.mark.parametrize(
    ("recorded", "detail"),
    [
        (recording(text("a"), terminal=DONE), "1 came and the end was response.completed"),
        (recording(terminal=DONE), "0 came and the end was response.completed"),
        (recording(terminal=dropped()), "0 came and the end was response.cancelled"),
        (recording(text("a"), terminal=dropped(1)), "1 came and the end was a drop with reason 1"),
        (recording(text("a"), terminal=lost()), "1 came and the end was a lost operation"),
    ],
)
def test_a_cancel_has_to_end_the_operation(recorded: Recording, detail: str) -> None:
    found = broken(recorded, CANCEL)

    assert f"cancel-honoured: CANCEL was due after 1 events; {detail}" in found


OTHER = {"index": 1, "item_id": "item_2", "call_id": "call_2"}


def started(call: dict[str, Any] = TOOL) -> dict[str, Any]:
    return event("tool_call.started", **call, name="lookup")


def delta(arguments: str, call: dict[str, Any] = TOOL) -> dict[str, Any]:
    return event("tool_call.delta", **call, arguments_delta=arguments)


def ended(arguments: str, call: dict[str, Any] = TOOL) -> dict[str, Any]:
    return event("tool_call.completed", **call, name="lookup", arguments=arguments)


def failed(call: dict[str, Any] = TOOL) -> dict[str, Any]:
    body = {"type": "server_error", "code": "tool_call_stream_interrupted", "message": "cut"}
    return event("tool_call.error", **call, error=body)


@pytest.mark.parametrize(
    "parts",
    [
        [started(), ended("")],
        [started(), delta("{"), delta("}"), ended("{}")],
        [started(), delta("{"), failed()],
        [failed()],  # a call that never got a name cannot have started
        [started(), started(OTHER), delta("1"), delta("2", OTHER), ended("1"), ended("2", OTHER)],
        [text("a"), started(), text("b"), ended("")],
    ],
)
def test_tool_calls_in_order_are_fine(parts: list[dict[str, Any]]) -> None:
    assert broken(recording(*parts, terminal=DONE)) == []


@pytest.mark.parametrize(
    "parts",
    [
        [delta("{}"), started(), ended("{}")],
        [ended("")],
        [started(), started(), ended("")],
        [started(), delta("{"), ended("{}")],
        [started(), ended("{}")],
        [started(), ended(""), ended("")],
        [started(), ended(""), failed()],
        [started(), ended(""), delta("x")],
        [started(), started(OTHER), delta("1"), ended("1", OTHER), ended("1")],
        [started(), delta("{")],
    ],
)
def test_tool_calls_out_of_order_are_found(parts: list[dict[str, Any]]) -> None:
    found = broken(recording(*parts, terminal=DONE))

    assert found
    assert all(each.startswith("tool-order: ") for each in found)


@pytest.mark.parametrize(
    "part",
    [
        event("tool_call.started", **TOOL),
        event("tool_call.started", **TOOL, name=""),
        event("tool_call.started", **(TOOL | {"call_id": ""}), name="lookup"),
        event("tool_call.started", **(TOOL | {"item_id": ""}), name="lookup"),
        event("tool_call.started", **(TOOL | {"index": "0"}), name="lookup"),
        event("tool_call.delta", **TOOL, arguments_delta=None),
    ],
)
def test_tool_events_have_their_fields(part: dict[str, Any]) -> None:
    found = broken(recording(part, terminal=DONE))

    assert any(each.startswith("event-fields: event 1: response.tool_call.") for each in found)


def test_a_confirmed_cancel_may_leave_a_tool_call_open() -> None:
    opened = recording(started(), delta("{"), terminal=dropped())

    assert broken(opened, CANCEL) == []


def test_a_pushed_error_may_not_leave_a_tool_call_open() -> None:
    (found,) = broken(recording(started(), terminal=pushed(error())), FAILING)

    assert found.startswith("tool-order: ")


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        {"prompt_tokens": 3, "completion_tokens": 4},
        {"prompt_tokens": 3, "total_tokens": 3},  # embeddings
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "extra": None},
        "said elsewhere",
    ],
)
def test_usage_that_adds_up_is_fine(usage: Any) -> None:
    assert list(usage_problems(usage)) == []


@pytest.mark.parametrize(
    ("usage", "problem"),
    [
        ({}, "neither prompt_tokens nor input_tokens"),
        ({"total_tokens": 7}, "neither prompt_tokens nor input_tokens"),
        ({"prompt_tokens": "3"}, "not whole numbers"),
        ({"prompt_tokens": 3.0}, "not whole numbers"),
        ({"prompt_tokens": True}, "not whole numbers"),
        ({"prompt_tokens": -1}, "not whole numbers"),
        ({"prompt_tokens": 3, "completion_tokens": None}, "not whole numbers"),
        (
            {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 8},
            "total_tokens is 8, not 3 + 4",
        ),
    ],
)
def test_usage_that_does_not_add_up_is_found_wherever_it_is(usage: Any, problem: str) -> None:
    streamed = broken(recording(event("usage", usage=usage), terminal=DONE))
    whole = broken(recording(terminal=pushed(completed(usage=usage))), WHOLE)

    assert [each.split(": ", 2)[1] for each in streamed + whole] == ["event 1", "the final body"]
    assert all(each.startswith("usage-counts: ") and problem in each for each in streamed + whole)


def test_a_whole_answer_has_no_parts() -> None:
    (found,) = broken(recording(text("a"), text("b"), terminal=DONE), WHOLE)

    assert found.startswith("whole-answer: 2 events came (response.output_text.delta first)")


def final(*contents: Any) -> Terminal:
    choices = [{"index": n, "message": {"content": content}} for n, content in enumerate(contents)]
    return pushed(completed(choices=choices))


@pytest.mark.parametrize(
    "terminal",
    [
        final("ab", "c"),
        final("ab", None),
        final(),
        DONE,
        pushed(completed(choices=None)),
        pushed(completed(choices=[None, {"message": None}])),
    ],
)
def test_a_final_body_that_repeats_the_deltas_or_has_no_text_is_fine(terminal: Terminal) -> None:
    assert broken(recording(text("a"), text("c", 1), text("b"), terminal=terminal)) == []


def test_a_final_body_that_contradicts_the_deltas_is_found() -> None:
    found = broken(recording(text("a"), terminal=final("a" * 70, "c")))

    assert found == [
        f"final-text: choice 0: the deltas say 'a', the final body {'a' * 57 + '...'!r}",
        "final-text: choice 1: the deltas say '', the final body 'c'",
    ]


def test_what_is_no_event_is_a_broken_rule() -> None:
    (found,) = broken(recording(b"{", terminal=DONE))

    assert found.startswith(f"{Rule.EVENT_JSON}: event 1")
