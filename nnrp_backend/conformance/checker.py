"""Judge one recording: the rules for every answer, then its recipe's own expectations."""

from __future__ import annotations

import msgspec

from nnrp_backend.conformance.expectations import unmet_diagnostics, unmet_events
from nnrp_backend.conformance.findings import Finding
from nnrp_backend.conformance.planner import PlannedCase
from nnrp_backend.conformance.recording import Observation, Recording, observe
from nnrp_backend.conformance.rules import broken_rules


class Verdict(msgspec.Struct, frozen=True):
    """A judged case: it passed when nothing was found."""

    seen: Observation
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Tell whether no rule was broken."""
        return not self.findings


def check(
    case: PlannedCase, recording: Recording, extensions: frozenset[str] = frozenset()
) -> Verdict:
    """Judge what came off the wire for `case`."""
    seen = observe(recording)
    findings = list(broken_rules(case, seen, extensions))
    findings += unmet_events(case.expect.events, seen.events)
    if case.expect.diagnostics is not None:
        findings += unmet_diagnostics(case.expect.diagnostics, seen.events)
    return Verdict(seen, tuple(findings))
