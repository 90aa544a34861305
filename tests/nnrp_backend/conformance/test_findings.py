from nnrp_backend.conformance.findings import Finding, Rule


def test_a_finding_names_its_rule_first() -> None:
    finding = Finding(Rule.TOOL_ORDER, "delta before started")

    assert str(finding) == "tool-order: delta before started"


def test_rule_names_are_what_a_shell_can_search() -> None:
    assert all(rule == rule.lower() and " " not in rule for rule in Rule)
    assert len(set(Rule)) == len(Rule)
