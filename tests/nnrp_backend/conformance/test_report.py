import json
from typing import Any

import jsonschema
import pytest

from nnrp_backend.conformance.checker import check
from nnrp_backend.conformance.planner import Choice, Plan
from nnrp_backend.conformance.recipe import Status
from nnrp_backend.conformance.report import Report, id_width, rows
from nnrp_backend.conformance.runner import Played
from tests.support.case_results import CASE_RESULTS
from tests.support.recordings import completed, dropped, planned, pushed, recording, text
from tests.support.suite import SUITE

GOOD = planned(id="good")
BAD = planned({"type": "response.usage"}, id="bad-one")
GONE = planned(id="gone")
UNCLAIMED = planned(id="unclaimed", choice=Choice.NOT_CLAIMED)
LATER = planned(id="later", choice=Choice.INFORMATIONAL, status=Status.EXPERIMENTAL)

PASSED = Played(GOOD, check(GOOD, recording(text("a"), terminal=pushed(completed()), seconds=0.25)))
FAILED = Played(BAD, check(BAD, recording(b"oops", terminal=dropped())))
SKIPPED = Played(GONE, None, reason="cannot connect")


def report(*played: Played, others: tuple[Any, ...] = ()) -> Report:
    return Report(Plan("target", (*(one.case for one in played), *others)), played)


@pytest.mark.parametrize(
    ("played", "passed"),
    [
        ((PASSED,), True),
        ((PASSED, FAILED), False),
        ((PASSED, SKIPPED), False),
        ((), False),
    ],
)
def test_a_run_passes_when_every_selected_case_did_and_there_was_one(
    played: tuple[Played, ...], passed: bool
) -> None:
    assert report(*played).passed is passed


def test_cases_are_counted() -> None:
    whole = report(PASSED, FAILED, SKIPPED, others=(UNCLAIMED, LATER))

    assert whole.counts() == {
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "not_claimed": 1,
        "informational": 1,
    }
    assert repr(whole) == (
        "<Report target [1 passed, 1 failed, 1 skipped, 1 not claimed, 1 informational]>"
    )


def test_the_document_tells_each_outcome() -> None:
    document = report(PASSED, FAILED, SKIPPED, others=(UNCLAIMED,)).document()

    jsonschema.validate(document, CASE_RESULTS)
    assert document["adapter"] == "target"
    good, bad, gone = document["results"]
    assert (good["id"], good["outcome"], good["terminal"]) == ("good", "passed", "success")
    assert good["events"] == [text("a"), completed()]
    assert "message" not in good
    assert (bad["outcome"], bad["terminal"]) == ("failed", "cancelled")
    assert [event["type"] for event in bad["events"]] == ["response.cancelled"]
    assert "event-json: event 1 is not JSON" in bad["message"]
    assert {finding["rule"] for finding in bad["diagnostics"]["findings"]} == {
        "event-json",
        "terminal-expected",
        "expected-event",
    }
    assert gone == {
        "id": "gone",
        "outcome": "skipped",
        "terminal": "error",
        "message": "cannot connect",
    }


if SUITE is not None:  # its files lie beside the repository
    SCHEMA = json.loads((SUITE / "schemas/api-profile-case-results.schema.json").read_text())

    def test_the_document_satisfies_the_suites_own_schema() -> None:
        validator = jsonschema.Draft202012Validator(SCHEMA)
        document = report(PASSED, FAILED, SKIPPED, others=(UNCLAIMED, LATER)).document()

        validator.validate(document)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(document | {"extra": 1})


def test_the_summary_is_the_document_and_a_verdict() -> None:
    whole = report(PASSED, others=(UNCLAIMED,))
    summary = whole.summary()

    assert summary["passed"] is True
    assert summary["mandatory_not_claimed"] == ["unclaimed"]
    assert summary["results"] == whole.document()["results"]


def test_the_table_has_a_line_a_case_and_a_line_a_finding() -> None:
    width = id_width(report(PASSED, FAILED).plan)

    assert list(rows(PASSED, width)) == ["passed  good        2 events     250.0 ms"]
    failed, *findings = rows(FAILED, width)
    assert failed == "failed  bad-one     1 events       0.0 ms"
    assert [line.strip().partition(":")[0] for line in findings] == [
        "event-json",
        "terminal-expected",
        "expected-event",
    ]
    assert list(rows(SKIPPED, width)) == ["skipped gone     cannot connect"]


def test_the_table_ends_with_what_was_not_run_and_the_verdict() -> None:
    closing = list(report(PASSED, others=(UNCLAIMED, LATER)).closing())

    assert closing == [
        "-       unclaimed  not claimed: lacks api.level1",
        "-       later      not run: experimental",
        "1 passed, 0 failed, 0 skipped, 1 not claimed, 1 informational",
        "Mandatory, not claimed, hence not proven: unclaimed",
        "PASSED",
    ]
    assert list(report().closing())[-2:] == [
        "No case was selected: nothing is proven.",
        "NOT PASSED",
    ]
