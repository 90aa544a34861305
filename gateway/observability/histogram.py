"""A histogram that costs a bisect and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["LATENCY_BOUNDS", "WORK_BOUNDS", "Histogram"]

#: Seconds; for what a user waits for.
LATENCY_BOUNDS: Final = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0),
)
#: Seconds; for the gateway's own work.
WORK_BOUNDS: Final = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.5, 1.0),
)


class Histogram:
    """Counts of observations by upper bound, and their sum.

    Written by the event loop's thread and read by the scraping one: a scrape may see an observation
    in the counts and not yet in the sum.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram [{sum(self.counts)} observations, sum {self.sum:.6g}]>"

    def observe(self, value: float) -> None:
        """Count `value` under the first bound that is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return Prometheus's cumulative buckets: the bound as text, and the count up to it."""
        total = 0
        buckets = []
        for bound, count in zip((*self.bounds, float("inf")), list(self.counts), strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
        return buckets
