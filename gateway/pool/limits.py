"""Bounds and counters of the pool."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolCounters", "PoolLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Bounds of one gateway process.

    Attributes:
        max_in_flight: requests given to workers at a time; each counts until its stream has ended.
        max_queue: requests that wait for room; one more is refused (429).
        queue_timeout: seconds a request waits for a busy worker (then 503).
        patience: seconds it waits when no worker for its model takes work at all (then 503): long
            enough for a reconnect, short enough not to look like a hang.
        per_worker_in_flight: asked of each worker, which may grant fewer.
    """

    max_in_flight: int = 4096
    max_queue: int = 1024
    queue_timeout: float = 30.0
    patience: float = 0.5
    per_worker_in_flight: int = 1024


@dataclass(slots=True)
class PoolCounters:
    """Plain integers, read at scrape time, also from another thread."""

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    """Requests that moved to another worker before the first event."""
    unanswered_cancels: int = 0
    """CANCELs that a connected worker did not answer in time."""
