"""Say how a run went: to a person in lines, to a program as JSON, to the suite as its document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nnrp_backend.conformance.planner import Choice, Plan
from nnrp_backend.conformance.recipe import TerminalState
from nnrp_backend.conformance.runner import Outcome, Played
from nnrp_backend.profile.operations import PROFILE, SCHEMA_VERSION


class Report:
    """The outcome of every case of a plan."""

    def __init__(self, plan: Plan, played: Sequence[Played]) -> None:
        self.plan = plan
        self.played = tuple(played)

    def __repr__(self) -> str:
        return f"<Report {self.plan.adapter} [{self._counted()}]>"

    @property
    def passed(self) -> bool:
        """Tell whether something was proven and nothing failed or was skipped."""
        return bool(self.played) and all(one.outcome is Outcome.PASSED for one in self.played)

    def counts(self) -> dict[str, int]:
        """Count cases by outcome, and those that were not run by choice."""
        outcomes = [one.outcome for one in self.played]
        counts = {str(each): outcomes.count(each) for each in Outcome}
        for choice in (Choice.NOT_CLAIMED, Choice.INFORMATIONAL):
            counts[str(choice)] = len(self.plan.chosen(choice))
        return counts

    def document(self) -> dict[str, Any]:
        """Build the suite's case-results document (`api-profile-case-results`).

        Its schema wants objects with a `type` as events; what came and is not one is in the
        case's message instead.
        """
        return {
            "profile": PROFILE,
            "schema_version": SCHEMA_VERSION,
            "adapter": self.plan.adapter,
            "results": [_result(one) for one in self.played],
        }

    def summary(self) -> dict[str, Any]:
        """Build what `--json` prints: the verdict and the counts, then the document."""
        return {
            "passed": self.passed,
            "counts": self.counts(),
            "mandatory_not_claimed": self.plan.mandatory_not_claimed,
            **self.document(),
        }

    def closing(self) -> Iterator[str]:
        """Yield the lines that end the table: what was not run, the counts, the verdict."""
        width = id_width(self.plan)
        for case in self.plan.chosen(Choice.NOT_CLAIMED):
            yield f"{'-':<8}{case.id:<{width}}  not claimed: lacks {', '.join(case.lacking)}"
        for case in self.plan.chosen(Choice.INFORMATIONAL):
            yield f"{'-':<8}{case.id:<{width}}  not run: {case.status}"
        yield self._counted()
        if unclaimed := self.plan.mandatory_not_claimed:
            yield f"Mandatory, not claimed, hence not proven: {', '.join(unclaimed)}"
        if not self.played:
            yield "No case was selected: nothing is proven."
        yield "PASSED" if self.passed else "NOT PASSED"

    def _counted(self) -> str:
        return ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in self.counts().items())


def id_width(plan: Plan) -> int:
    """Give the width of a table's column of case ids."""
    return max((len(case.id) for case in plan.cases), default=0)


def rows(one: Played, width: int) -> Iterator[str]:
    """Yield a table's lines for one played case: itself, then each finding."""
    start = f"{one.outcome:<8}{one.case.id:<{width}}"
    if one.verdict is None:
        yield f"{start}  {one.reason}"
        return
    seen = one.verdict.seen
    took = f"{seen.recording.seconds * 1000:.1f} ms"
    yield f"{start}  {len(seen.events):>4} events {took:>12}"
    for finding in one.verdict.findings:
        yield f"{'':<10}{finding}"


def _result(one: Played) -> dict[str, Any]:
    head = {"id": one.case.id, "outcome": str(one.outcome)}
    if one.verdict is None:
        # The schema has no word for a case that did not run; "error" claims the least.
        return head | {"terminal": str(TerminalState.ERROR), "message": one.reason}
    seen, findings = one.verdict.seen, one.verdict.findings
    result = head | {
        "terminal": str(seen.state),
        "events": seen.events,
        "diagnostics": {
            "seconds": round(seen.recording.seconds, 6),
            "findings": [{"rule": str(each.rule), "detail": each.detail} for each in findings],
        },
    }
    if findings:
        result["message"] = "; ".join(map(str, findings))
    return result
