"""Policies that pick one of several workers. Pure: they know nothing but numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Balancer", "Candidate", "LeastInFlight"]


class Candidate(Protocol):
    """What a policy may look at."""

    @property
    def in_flight(self) -> int: ...


C = TypeVar("C", bound=Candidate)


class Balancer(Protocol):
    """Pick a worker for the next request."""

    def pick(self, candidates: Sequence[C]) -> C:
        """Return one of `candidates`, which is not empty and holds only those with room."""


class LeastInFlight:
    """Pick the worker with the fewest requests in flight; equals take turns.

    Without the turns an idle fleet would send every request to its first worker.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, candidates: Sequence[C]) -> C:
        fewest = min(candidate.in_flight for candidate in candidates)
        equals = [candidate for candidate in candidates if candidate.in_flight == fewest]
        self._turn += 1
        return equals[self._turn % len(equals)]
