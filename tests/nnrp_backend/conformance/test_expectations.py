from typing import Any

import pytest

from nnrp_backend.conformance.expectations import differences, unmet_diagnostics, unmet_events
from nnrp_backend.conformance.findings import Rule
from nnrp_backend.conformance.recipe import ExpectedDiagnostics, ExpectedEvent


def events(types: str, **members: Any) -> list[dict[str, Any]]:
    return [{"type": each, **members} for each in types.split()]


def expected(*steps: dict[str, Any]) -> list[ExpectedEvent]:
    return [ExpectedEvent(**step) for step in steps]


@pytest.mark.parametrize(
    ("steps", "came"),
    [
        ([], ""),
        ([], "a b"),
        ([{"type": "a"}], "a"),
        ([{"type": "a"}], "x a x a"),
        ([{"type": "a"}, {"type": "b"}], "a x b"),
        ([{"type": "a", "min_count": 2}, {"type": "b"}], "a b a"),  # counts are over the whole
        ([{"type": "a", "optional": True}, {"type": "b"}], "b"),
        ([{"type": "a", "min_count": 0}, {"type": "b"}], "b"),
        ([{"type": "a"}, {"type": "a"}], "a a"),
    ],
)
def test_events_come_in_order_among_others(steps: list[dict[str, Any]], came: str) -> None:
    assert list(unmet_events(expected(*steps), events(came))) == []


@pytest.mark.parametrize(
    ("steps", "came", "detail"),
    [
        ([{"type": "a"}], "", "a: at least 1 expected, 0 came"),
        ([{"type": "a", "min_count": 2}], "a", "a: at least 2 expected, 1 came"),
        ([{"type": "a", "optional": True, "min_count": 1}], "b", "a: at least 1 expected, 0 came"),
        ([{"type": "a"}, {"type": "b"}], "b a", "b came, but too early"),
        ([{"type": "a", "optional": True}, {"type": "b"}], "b a", "b came, but too early"),
        ([{"type": "a"}, {"type": "a"}], "a", "a came, but too early"),
    ],
)
def test_events_that_are_rare_or_out_of_order_are_found(
    steps: list[dict[str, Any]], came: str, detail: str
) -> None:
    findings = list(unmet_events(expected(*steps), events(came)))

    assert [(finding.rule, finding.detail) for finding in findings] == [
        (Rule.EXPECTED_EVENT, detail)
    ]


def test_only_the_match_found_must_have_the_fields() -> None:
    came = [{"type": "a", "n": 1}, {"type": "a", "n": 2}]

    assert not list(unmet_events(expected({"type": "a", "fields": {"n": 1}}), came))
    (finding,) = unmet_events(expected({"type": "a", "fields": {"n": 2}}), came)
    assert finding.detail == "a: n is 1, 2 expected"


def test_a_missing_event_does_not_hide_the_next() -> None:
    findings = unmet_events(expected({"type": "a"}, {"type": "b"}), events("x"))

    assert [finding.detail[0] for finding in findings] == ["a", "b"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, {"a": 1}),
        ({"a": {"b": "c"}}, {"a": {"b": "c", "d": 1}, "e": 2}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": [{}, {"b": 1}]}, {"a": [{"x": 1}, {"b": 1, "c": 2}, 3]}),
        ({"a": None}, {"a": None}),
        ({"a": True}, {"a": True}),
    ],
)
def test_a_subset_matches(wanted: Any, found: Any) -> None:
    assert list(differences(wanted, found)) == []


@pytest.mark.parametrize(
    ("wanted", "found", "difference"),
    [
        ({"a": 1}, {}, "a is missing"),
        ({"a": None}, {}, "a is missing"),
        ({"a": {"b": "c"}}, {"a": {"b": "d"}}, "a.b is 'd', 'c' expected"),
        ({"a": {"b": 1}}, {"a": [1]}, "a is [1], {'b': 1} expected"),
        ({"a": [1, 2]}, {"a": [1]}, "a has 1 elements, 2 expected"),
        ({"a": [1]}, {"a": [2]}, "a[0] is 2, 1 expected"),
        ({"a": 1}, {"a": True}, "a is True, 1 expected"),
        ({"a": False}, {"a": 0}, "a is 0, False expected"),
        ({"a": "1"}, {"a": 1}, "a is 1, '1' expected"),
    ],
)
def test_a_difference_is_said_with_its_path(wanted: Any, found: Any, difference: str) -> None:
    assert list(differences(wanted, found)) == [difference]


DIAGNOSED = {"type": "response.diagnostics", "diagnostics": {"transport": "unix", "retries": 0}}
OURS = {"type": "response.diagnostics", "diagnostics": {"transport": "unix"}}
DELTA = {"type": "response.output_text.delta"}


@pytest.mark.parametrize(
    ("wanted", "came"),
    [
        ({"presence": "required"}, [DELTA, DIAGNOSED]),
        ({"presence": "required", "first": True}, [DIAGNOSED, DELTA]),
        ({"presence": "required", "fields": {"transport": "unix"}}, [DIAGNOSED]),
        ({"presence": "required", "strict": True}, [OURS, DELTA]),
        ({"presence": "forbidden"}, [DELTA]),
    ],
)
def test_diagnostics_as_expected_are_fine(wanted: dict[str, Any], came: list[Any]) -> None:
    assert not list(unmet_diagnostics(ExpectedDiagnostics(**wanted), came))


@pytest.mark.parametrize(
    ("wanted", "came", "detail"),
    [
        ({"presence": "required"}, [DELTA], "asked and did not come"),
        ({"presence": "required", "first": True}, [DELTA, DIAGNOSED], "is event 2, not first"),
        (
            {"presence": "required", "fields": {"transport": "tcp"}},
            [DIAGNOSED],
            "diagnostics.transport is 'unix', 'tcp' expected",
        ),
        ({"presence": "required", "fields": {"queue": {}}}, [DIAGNOSED], "queue is missing"),
        ({"presence": "required", "strict": True}, [OURS, DIAGNOSED], "unknown field `retries`"),
        (
            {"presence": "required", "strict": True},
            [OURS | {"diagnostics": []}],
            "diagnostics is [], {} expected",
        ),
        ({"presence": "forbidden"}, [DELTA, DIAGNOSED], "without being asked"),
    ],
)
def test_diagnostics_not_as_expected_are_found(
    wanted: dict[str, Any], came: list[Any], detail: str
) -> None:
    (finding,) = unmet_diagnostics(ExpectedDiagnostics(**wanted), came)

    assert finding.rule is Rule.DIAGNOSTICS
    assert detail in finding.detail
