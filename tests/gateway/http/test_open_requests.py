"""The open requests and their one timer."""

from __future__ import annotations

from gateway.errors import ApiError
from gateway.http.open_requests import OpenRequests
from tests.support.waiting import until


class Request:
    def __init__(self, requests: OpenRequests) -> None:
        self.requests = requests
        self.ticks: list[float] = []
        self.errors: list[ApiError] = []

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.requests.discard(self)  # as a request that has ended does

    def shut_down(self, error: ApiError) -> None:
        self.errors.append(error)
        self.requests.discard(self)


async def test_the_timer_looks_at_every_request() -> None:
    requests = OpenRequests(interval=0.001, clock=lambda: 42.0)
    first, second = Request(requests), Request(requests)
    requests.add(first)
    requests.start()
    await until(lambda: first.ticks)
    requests.add(second)  # the timer goes on
    await until(lambda: second.ticks)
    requests.stop()
    assert first.ticks == second.ticks == [42.0]


async def test_a_stopped_timer_looks_no_more() -> None:
    requests = OpenRequests(interval=0.001)
    request = Request(requests)
    requests.start()
    requests.stop()
    requests.stop()
    requests.add(request)
    other = OpenRequests(interval=0.002)
    mark = Request(other)
    other.add(mark)
    other.start()
    await until(lambda: mark.ticks)
    other.stop()
    assert request.ticks == []


def test_a_shutdown_ends_each_once() -> None:
    requests = OpenRequests()
    open_ones = [Request(requests) for _ in range(3)]
    for request in open_ones:
        requests.add(request)
    error = ApiError.shutting_down()
    requests.shut_down(error)
    assert [request.errors for request in open_ones] == [[error]] * 3
    assert len(requests) == 0


def test_it_counts() -> None:
    requests = OpenRequests()
    request = Request(requests)
    requests.add(request)
    requests.add(request)
    assert len(requests) == 1
    assert repr(requests) == "<OpenRequests [1 open]>"
    requests.discard(request)
    requests.discard(request)
    assert len(requests) == 0
