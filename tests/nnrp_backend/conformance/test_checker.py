from nnrp_backend.conformance.checker import check
from nnrp_backend.conformance.findings import Rule
from tests.support.recordings import completed, event, planned, pushed, recording, text

DONE = pushed(completed())


def test_a_case_passes_when_nothing_is_found() -> None:
    case = planned({"type": "response.output_text.delta"}, {"type": "response.completed"})

    verdict = check(case, recording(text("a"), terminal=DONE))

    assert verdict.passed
    assert [each["type"] for each in verdict.seen.events] == [
        "response.output_text.delta",
        "response.completed",
    ]


def test_a_case_is_held_to_the_rules_and_to_its_own_recipe() -> None:
    case = planned(
        {"type": "response.usage"},
        diagnostics={"presence": "required"},
    )

    verdict = check(case, recording(text("a", index="0"), terminal=DONE))

    assert not verdict.passed
    assert [finding.rule for finding in verdict.findings] == [
        Rule.EVENT_FIELDS,
        Rule.EXPECTED_EVENT,
        Rule.DIAGNOSTICS,
    ]


def test_a_declared_extension_is_passed_on() -> None:
    extra = recording(event("thoughts"), terminal=DONE)

    assert not check(planned(), extra).passed
    assert check(planned(), extra, frozenset({"response.thoughts"})).passed
