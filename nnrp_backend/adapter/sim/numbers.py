"""Choose a number within the bounds of a JSON Schema."""

import math
from fractions import Fraction
from typing import Any, Final, NamedTuple

PREFERRED: Final = (Fraction(1), Fraction(0))
"""The plainest answers, where the schema allows them."""


class _Bounds(NamedTuple):
    low: Fraction | None
    low_open: bool
    high: Fraction | None
    high_open: bool

    def hold(self, value: Fraction) -> bool:
        above = self.low is None or (value > self.low if self.low_open else value >= self.low)
        below = self.high is None or (value < self.high if self.high_open else value <= self.high)
        return above and below


def choose_number(schema: dict[str, Any], *, integer: bool) -> int | float | None:
    """Return a number that satisfies the numeric keywords of `schema`; None where there is none."""
    try:
        bounds = _read_bounds(schema)
        step = _read_step(schema, integer=integer)
        for value in (*PREFERRED, *_candidates(bounds, step)):
            if bounds.hold(value) and (step is None or value % step == 0):
                return _plain(value, bounds)
    except (ValueError, OverflowError):
        pass  # Bounds that are no numbers, or past all floats, where JSON readers disagree.
    return None


def _read_bounds(schema: dict[str, Any]) -> _Bounds:
    low, low_open = _tighter(schema, "minimum", "exclusiveMinimum", sign=1)
    high, high_open = _tighter(schema, "maximum", "exclusiveMaximum", sign=-1)
    return _Bounds(low, low_open, high, high_open)


def _tighter(
    schema: dict[str, Any], closed: str, opened: str, *, sign: int
) -> tuple[Fraction | None, bool]:
    """Return the stronger one of two bounds, and whether it excludes itself."""
    limits = [
        (_exact(schema[keyword]), keyword == opened)
        for keyword in (closed, opened)
        if keyword in schema
    ]
    return max(limits, key=lambda limit: (sign * limit[0], limit[1]), default=(None, False))


def _read_step(schema: dict[str, Any], *, integer: bool) -> Fraction | None:
    if "multipleOf" not in schema:
        return Fraction(1) if integer else None
    step = _exact(schema["multipleOf"])
    if step <= 0:
        raise ValueError("multipleOf is not positive")
    # The whole multiples of p/q, in lowest terms, are the multiples of p.
    return Fraction(step.numerator) if integer else step


def _exact(number: Any) -> Fraction:
    """Read a JSON number as it was written: 0.1 is a tenth."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError("not a number")
    return Fraction(str(number))


def _candidates(bounds: _Bounds, step: Fraction | None) -> list[Fraction]:
    """Return values near the bounds, one of which holds if any value does."""
    ends = [end for end in (bounds.low, bounds.high) if end is not None]
    if step is not None:
        around = [math.floor(end / step) * step for end in ends]
        return [base + shift * step for base in around for shift in (-1, 0, 1)]
    if len(ends) == 2:
        return [*ends, (ends[0] + ends[1]) / 2]
    return [shifted for end in ends for shifted in (end, end + 1, end - 1)]


def _plain(value: Fraction, bounds: _Bounds) -> int | float | None:
    if value.denominator == 1:
        return value.numerator
    # Bounds closer together than two floats leave no number that JSON readers would agree on.
    rounded = float(value)
    return rounded if bounds.hold(_exact(rounded)) else None
