import random

import pytest

from gateway.pool.backoff import Backoff


class Fixed(random.Random):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.share


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.1, longest=1.0, rng=Fixed(1.0))
    assert [backoff.failed() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.failures == 6


def test_at_most_half_is_random() -> None:
    backoff = Backoff(first=0.1, longest=1.0, rng=Fixed(0.0))
    assert [backoff.failed() for _ in range(3)] == pytest.approx([0.05, 0.1, 0.2])


def test_success_starts_over() -> None:
    backoff = Backoff(first=0.1, rng=Fixed(1.0))
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert backoff.failed() == pytest.approx(0.1)


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(first=0.1, longest=1.0, rng=Fixed(1.0))
    backoff.failures = 100_000
    assert backoff.failed() == 1.0
