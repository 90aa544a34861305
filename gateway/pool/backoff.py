"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from typing import Final

__all__ = ["Backoff"]

#: A worker that restarts is found again within a second: an attempt costs one refused connect.
FIRST: Final = 0.05
LONGEST: Final = 1.0


class Backoff:
    """Double the wait with each failure, up to a bound, less a random part.

    The random part keeps the processes of a gateway from knocking at a restarted worker together.
    """

    __slots__ = ("_first", "_longest", "_random", "failures")

    def __init__(
        self, *, first: float = FIRST, longest: float = LONGEST, rng: random.Random | None = None
    ) -> None:
        self._first = first
        self._longest = longest
        self._random = rng or random.Random()
        self.failures = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait: half of the bound at least."""
        ceiling = min(self._longest, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return ceiling * self._random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        self.failures = 0
