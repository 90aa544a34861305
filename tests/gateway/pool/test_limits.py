import dataclasses

import pytest

from gateway.pool.limits import PoolCounters, PoolLimits


def test_every_bound_is_finite_and_positive() -> None:
    assert all(0 < value < 1e6 for value in dataclasses.astuple(PoolLimits()))


def test_an_absent_worker_is_told_within_a_second() -> None:
    assert PoolLimits().patience < 1


def test_limits_do_not_change_under_way() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PoolLimits().max_queue = 1  # type: ignore[misc]


def test_counters_begin_at_zero() -> None:
    assert set(dataclasses.astuple(PoolCounters())) == {0}
