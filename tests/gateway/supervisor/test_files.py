"""The limit on open files."""

import resource

import pytest

from gateway.supervisor import files

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((1024, 20_000), 20_000),
        ((1024, 1_000_000_000), files.ENOUGH),
        ((1024, INFINITY), files.ENOUGH),
        ((20_000, 20_000), None),
        ((INFINITY, INFINITY), None),
        ((2_000_000, 1_000_000_000), None),  # never lowered
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(
    limits: tuple[int, int], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: given.append(limit))

    now = files.raise_file_limit()

    assert now == (expected or limits[0])
    assert given == ([] if expected is None else [(expected, limits[1])])
