"""The composition: what create_app makes of its arguments."""

from __future__ import annotations

import pytest

from gateway.app import create_app, tick_interval
from gateway.config import GatewayConfig, StreamConfig
from gateway.http.open_requests import OpenRequests
from gateway.observability.metrics import GatewayMetrics
from tests.support.fake_pool import FakePool
from tests.support.waiting import until


class Request:
    ticks = 0

    def tick(self, now: float) -> None:
        self.ticks += 1

    def shut_down(self, error: Exception) -> None: ...


async def test_its_lifespan_runs_the_timer_of_the_open_requests() -> None:
    requests = OpenRequests(interval=0.001)
    app = create_app(GatewayConfig(), pool=FakePool(), open_requests=requests)
    request = Request()
    requests.add(request)
    async with app.router.lifespan_context(app):
        await until(lambda: request.ticks)
    assert requests._timer is None


def test_it_can_be_made_from_configuration_and_pool_alone() -> None:
    create_app(GatewayConfig(), pool=FakePool())


def test_an_empty_collection_that_is_given_is_used() -> None:
    # OpenRequests and the like have a length, and are falsy when they are empty.
    requests, metrics = OpenRequests(), GatewayMetrics()
    app = create_app(GatewayConfig(), pool=FakePool(), open_requests=requests, metrics=metrics)
    endpoint = app.routes[0].endpoint  # type: ignore[attr-defined]
    assert endpoint._edge.open is requests
    assert endpoint._edge.metrics is metrics


@pytest.mark.parametrize(
    ("stream", "interval"),
    [
        ({}, 1.0),
        ({"keep_alive": 2}, 0.2),
        ({"first_event_grace": 0.5}, 0.05),
        ({"send_timeout": 0.001}, 0.01),
        ({"keep_alive": 1000, "first_event_grace": 1000, "send_timeout": 1000}, 1.0),
    ],
)
def test_the_timer_is_as_fine_as_the_shortest_bound(
    stream: dict[str, float], interval: float
) -> None:
    assert tick_interval(StreamConfig(**stream)) == pytest.approx(interval)  # type: ignore[arg-type]
