"""Histograms, as Prometheus wants to read them."""

from __future__ import annotations

from gateway.observability.histogram import LATENCY_BOUNDS, WORK_BOUNDS, Histogram


def test_an_observation_counts_under_every_bound_that_is_not_below_it() -> None:
    histogram = Histogram((0.1, 1))
    for value in (0.05, 0.1, 0.5, 2, 1):
        histogram.observe(value)
    # Prometheus: buckets are cumulative and their bounds inclusive ("le").
    assert histogram.buckets() == [("0.1", 2.0), ("1", 4.0), ("+Inf", 5.0)]
    assert histogram.sum == 3.65


def test_an_empty_histogram_has_all_its_buckets() -> None:
    assert Histogram((1, 2)).buckets() == [("1", 0.0), ("2", 0.0), ("+Inf", 0.0)]


def test_the_bounds_ascend() -> None:
    for bounds in (LATENCY_BOUNDS, WORK_BOUNDS):
        assert list(bounds) == sorted(set(bounds))


def test_its_repr_tells_count_and_sum() -> None:
    histogram = Histogram((1,))
    histogram.observe(3)
    assert repr(histogram) == "<Histogram [1 observations, sum 3]>"
