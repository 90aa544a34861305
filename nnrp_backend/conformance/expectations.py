"""Match what came with what a recipe expects; the rules of the suite's results validator.

Expected events are found in their order, greedily, among those that came; others in between do
not matter. An expected event's count is over the whole answer, and its fields are looked at only
on the match found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nnrp_backend.client import read_diagnostics
from nnrp_backend.conformance.findings import Finding, Rule
from nnrp_backend.conformance.recipe import ExpectedDiagnostics, ExpectedEvent
from nnrp_backend.conformance.recording import JsonObject
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import Event, EventType


def unmet_events(
    expected: Sequence[ExpectedEvent], events: Sequence[JsonObject]
) -> Iterator[Finding]:
    """Yield a finding for each expected event that is too rare, out of order, or different."""
    cursor = 0
    for step in expected:
        count = sum(event["type"] == step.type for event in events)
        if count < step.least:
            detail = f"{step.type}: at least {step.least} expected, {count} came"
            yield Finding(Rule.EXPECTED_EVENT, detail)
            continue
        places = range(cursor, len(events))
        place = next((place for place in places if events[place]["type"] == step.type), None)
        if place is None:
            if step.least:
                yield Finding(Rule.EXPECTED_EVENT, f"{step.type} came, but too early")
            continue
        cursor = place + 1
        for difference in differences(step.fields, events[place]):
            yield Finding(Rule.EXPECTED_EVENT, f"{step.type}: {difference}")


def unmet_diagnostics(
    expected: ExpectedDiagnostics, events: Sequence[JsonObject]
) -> Iterator[Finding]:
    """Yield a finding for each way in which `response.diagnostics` is not as expected."""
    places = [n for n, event in enumerate(events) if event["type"] == EventType.DIAGNOSTICS]
    if expected.presence == "forbidden":
        if places:
            yield Finding(Rule.DIAGNOSTICS, "response.diagnostics came without being asked")
        return
    if not places:
        yield Finding(Rule.DIAGNOSTICS, "response.diagnostics was asked and did not come")
        return
    if expected.first and places[0]:
        yield Finding(Rule.DIAGNOSTICS, f"response.diagnostics is event {places[0] + 1}, not first")
    if expected.strict:
        for place in places:
            yield from _unknown_members(events[place].get("diagnostics"))
    found = events[places[0]].get("diagnostics")
    for difference in differences(expected.fields, found, "diagnostics"):
        yield Finding(Rule.DIAGNOSTICS, difference)


def _unknown_members(said: Any) -> Iterator[Finding]:
    try:
        if isinstance(said, dict):  # else `fields` says so
            read_diagnostics(Event(type=EventType.DIAGNOSTICS, diagnostics=said), strict=True)
    except ProfileError as error:
        yield Finding(Rule.DIAGNOSTICS, error.message)


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield where `found` does not contain `expected`.

    Objects need the members named, arrays the first elements given; everything else is equal, or
    different. `true` is not 1.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            inner = f"{path}.{key}" if path else key
            if key in found:
                yield from differences(value, found[key], inner)
            else:
                yield f"{inner} is missing"
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) < len(expected):
            yield f"{path} has {len(found)} elements, {len(expected)} expected"
        for place, (value, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(value, other, f"{path}[{place}]")
    elif isinstance(expected, bool) is not isinstance(found, bool) or expected != found:
        yield f"{path} is {found!r}, {expected!r} expected"
