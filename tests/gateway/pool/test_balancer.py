from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.balancer import LeastInFlight


@dataclass
class Worker:
    in_flight: int
    name: str = ""


def test_the_one_with_the_fewest() -> None:
    idle = Worker(0)
    assert LeastInFlight().pick([Worker(2), idle, Worker(1)]) is idle


def test_the_only_one() -> None:
    only = Worker(7)
    assert LeastInFlight().pick([only]) is only


def test_equals_take_turns() -> None:
    workers = [Worker(0, "a"), Worker(0, "b"), Worker(0, "c"), Worker(1, "busy")]
    balancer = LeastInFlight()
    picked = Counter(balancer.pick(workers).name for _ in range(30))
    assert picked == {"a": 10, "b": 10, "c": 10}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 40))
def test_a_fleet_fills_evenly(start: list[int], requests: int) -> None:
    workers = [Worker(in_flight) for in_flight in start]
    balancer = LeastInFlight()
    for _ in range(requests):
        picked = balancer.pick(workers)
        assert picked.in_flight == min(worker.in_flight for worker in workers)
        picked.in_flight += 1
    # Nobody got work while another had less.
    lowest = min(worker.in_flight for worker in workers)
    assert all(
        worker.in_flight <= max(before, lowest + 1)
        for worker, before in zip(workers, start, strict=True)
    )
