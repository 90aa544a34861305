"""The rules that hold for every answer, whatever its recipe says.

Each rule is a function from a case and what was observed to findings; `RULES` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nnrp_backend.client import TerminalKind
from nnrp_backend.conformance.findings import Finding, Rule
from nnrp_backend.conformance.planner import PlannedCase
from nnrp_backend.conformance.recipe import TerminalState
from nnrp_backend.conformance.recording import JsonObject, Observation
from nnrp_backend.profile.events import TERMINAL_TYPES, EventType, violations
from nnrp_backend.profile.tool_calls import ToolCallRules

Check = Callable[[PlannedCase, Observation], Iterator[Finding]]

_KNOWN_TYPES = frozenset(EventType)
_ANSWERS = frozenset({TerminalKind.RESULT, TerminalKind.DROPPED})
_INPUT_COUNTS = ("prompt_tokens", "input_tokens")
_OUTPUT_COUNTS = ("completion_tokens", "output_tokens")


def broken_rules(
    case: PlannedCase, seen: Observation, extensions: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Yield every broken rule of one answer.

    Args:
        extensions: names that the target declares; an event type among them is not unknown.
    """
    yield from seen.malformed
    yield from _unknown_types(seen, extensions)
    for check in RULES:
        yield from check(case, seen)


def _unknown_types(seen: Observation, extensions: frozenset[str]) -> Iterator[Finding]:
    # A consumer ignores types that it does not know; a producer has to stay in the profile.
    for place, event in seen.parts:
        if event["type"] not in _KNOWN_TYPES and event["type"] not in extensions:
            yield Finding(Rule.EVENT_TYPE, f"event {place} is of unknown type {event['type']!r}")


def wire_is_kept(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that the client below had nothing to complain of."""
    if seen.recording.protocol_errors:
        yield Finding(Rule.WIRE, f"{seen.recording.protocol_errors} packets broke the protocol")


def fields(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check the members of each event of a known type."""
    named = [(f"event {place}", event) for place, event in seen.parts]
    if seen.end is not None:
        named.append(("the terminal", seen.end))
    for name, event in named:
        for violation in violations(event) if event["type"] in _KNOWN_TYPES else ():
            yield Finding(Rule.EVENT_FIELDS, f"{name}: {violation}")


def terminal_is_there(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that the operation ended, by an answer."""
    terminal = seen.recording.terminal
    if terminal is None:
        waited = f"{seen.recording.seconds:.1f} s"
        yield Finding(Rule.TERMINAL_MISSING, f"none came within {waited}")
    elif terminal.kind not in _ANSWERS:
        detail = terminal.diagnostic or f"the operation was {terminal.kind}"
        yield Finding(Rule.TERMINAL_MISSING, detail)


def terminal_is_in_its_frame(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that terminal events ride on RESULT_PUSH, and no others do."""
    for place, event in seen.parts:
        if event["type"] in TERMINAL_TYPES:
            yield Finding(
                Rule.TERMINAL_FRAME, f"event {place} is {event['type']} on a PARTIAL_RESULT"
            )
    if seen.end is not None and seen.end["type"] not in TERMINAL_TYPES:
        yield Finding(Rule.TERMINAL_FRAME, f"RESULT_PUSH carries {seen.end['type']}")


def terminal_is_one_and_last(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that one terminal event came, and nothing after it."""
    places = [place for place, event in seen.parts if event["type"] in TERMINAL_TYPES]
    terminals = len(places) + (seen.end is not None and seen.end["type"] in TERMINAL_TYPES)
    if terminals > 1:
        yield Finding(Rule.TERMINAL_ONCE, f"{terminals} terminal events came")
    if places and seen.parts[-1][0] > places[0]:
        after = seen.parts[-1][0] - places[0]
        yield Finding(Rule.TERMINAL_LAST, f"{after} events follow the terminal event {places[0]}")
    terminal = seen.recording.terminal
    # Without a terminal of the target's, nothing can be late for it.
    if seen.recording.late_frames and terminal and terminal.kind in _ANSWERS:
        late = seen.recording.late_frames
        yield Finding(Rule.TERMINAL_LAST, f"{late} frames follow the terminal frame")


def terminal_has_a_body(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that a RESULT_PUSH says how the operation ended."""
    terminal = seen.recording.terminal
    if terminal is not None and terminal.kind is TerminalKind.RESULT and not terminal.body:
        yield Finding(Rule.TERMINAL_BODY, "RESULT_PUSH is empty: no response.completed")


def cancel_is_honoured(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that the CANCEL of a recipe could be sent and ended the operation."""
    after = case.cancel_after_events
    came = len(seen.recording.bodies)
    if after is not None and (came < after or seen.state is not TerminalState.CANCELLED):
        detail = f"CANCEL was due after {after} events; {came} came and the end was"
        yield Finding(Rule.CANCEL_HONOURED, f"{detail} {_describe_end(seen)}")


def terminal_is_expected(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that the operation ended the way its recipe says."""
    if seen.state is not case.expect.terminal:
        detail = f"{case.expect.terminal} expected, the end was {_describe_end(seen)}"
        yield Finding(Rule.TERMINAL_EXPECTED, detail)


def tool_calls_are_in_order(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check each tool call's sequence, and that an answered operation left none open."""
    order = ToolCallRules()
    for place, event in seen.parts:
        if violations(event):
            continue  # said by `fields`
        for violation in order.observe(event):
            yield Finding(Rule.TOOL_ORDER, f"event {place}: {violation}")
    # After a CANCEL the wire takes no more events, so that a call may stay open; b.2's
    # `tool_call_stream_interrupted` is owed by everyone who can still push an answer.
    terminal = seen.recording.terminal
    if terminal is not None and terminal.kind is TerminalKind.RESULT:
        for violation in order.finish():
            yield Finding(Rule.TOOL_ORDER, violation)


def usage_adds_up(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check the counts of usage events and of the final body."""
    for place, event in seen.parts:
        if event["type"] == EventType.USAGE:
            for problem in usage_problems(event.get("usage")):
                yield Finding(Rule.USAGE_COUNTS, f"event {place}: {problem}")
    usage = _final_body(seen).get("usage")
    if usage is not None:
        for problem in usage_problems(usage):
            yield Finding(Rule.USAGE_COUNTS, f"the final body: {problem}")


def whole_answer_has_no_parts(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that what was not asked as a stream came as one terminal."""
    if case.streamed:
        return
    parts = [event["type"] for _, event in seen.parts if event["type"] != EventType.DIAGNOSTICS]
    if parts:
        detail = f"{len(parts)} events came ({parts[0]} first) for a request without `stream`"
        yield Finding(Rule.WHOLE_ANSWER, detail)


def final_text_is_the_deltas(case: PlannedCase, seen: Observation) -> Iterator[Finding]:
    """Check that a rebuilt final body repeats each choice's text; a brief one has no text."""
    if not case.streamed:
        return
    texts: dict[Any, str] = {}
    for _, event in seen.parts:
        if event["type"] == EventType.TEXT_DELTA and isinstance(event.get("delta"), str):
            choice = event.get("index")
            texts[choice] = texts.get(choice, "") + event["delta"]
    for choice, text in _final_texts(seen):
        if text != texts.get(choice, ""):
            detail = f"choice {choice}: the deltas say {_short(texts.get(choice, ''))}"
            yield Finding(Rule.FINAL_TEXT, f"{detail}, the final body {_short(text)}")


RULES: tuple[Check, ...] = (
    wire_is_kept,
    fields,
    terminal_is_there,
    terminal_is_in_its_frame,
    terminal_is_one_and_last,
    terminal_has_a_body,
    cancel_is_honoured,
    terminal_is_expected,
    tool_calls_are_in_order,
    usage_adds_up,
    whole_answer_has_no_parts,
    final_text_is_the_deltas,
)


def usage_problems(usage: Any) -> Iterator[str]:
    """Yield what is wrong with a usage object of either naming (chat's, or the profile's own)."""
    if not isinstance(usage, dict):
        return  # said by `fields`
    read = next((usage[name] for name in _INPUT_COUNTS if name in usage), None)
    written = next((usage[name] for name in _OUTPUT_COUNTS if name in usage), 0)
    total = usage.get("total_tokens")
    if read is None:
        yield "usage says neither prompt_tokens nor input_tokens"
        return
    counts = [read, written, *([] if total is None else [total])]
    if not all(type(count) is int and count >= 0 for count in counts):
        yield "usage counts are not whole numbers from 0"
    elif total is not None and total != read + written:
        yield f"total_tokens is {total}, not {read} + {written}"


def _final_body(seen: Observation) -> JsonObject:
    body = (seen.end or {}).get("body")
    return body if isinstance(body, dict) else {}


def _final_texts(seen: Observation) -> Iterator[tuple[Any, str]]:
    choices = _final_body(seen).get("choices")
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield choice.get("index"), content


def _describe_end(seen: Observation) -> str:
    terminal = seen.recording.terminal
    if seen.end is not None:
        error = seen.end.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        return f"{seen.end['type']} ({code})" if code else str(seen.end["type"])
    if terminal is None:
        return "no terminal"
    if terminal.kind is TerminalKind.DROPPED:
        return f"a drop with reason {terminal.drop_reason}"
    return (
        "a lost operation" if terminal.kind is TerminalKind.LOST else "a result that says nothing"
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
