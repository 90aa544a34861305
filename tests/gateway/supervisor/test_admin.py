"""The admin port, over HTTP, from its own thread."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from gateway.config import DrainConfig
from gateway.lifecycle import Lifecycle, Phase
from gateway.observability.heartbeat import Heartbeat
from gateway.observability.histogram import Histogram
from gateway.supervisor.admin import AdminServer, Health, admin_app


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle(DrainConfig())


@pytest.fixture
def workers() -> list[str]:
    """Those that can serve."""
    return ["w"]


@pytest.fixture
def health(clock: Clock, lifecycle: Lifecycle, workers: list[str]) -> Health:
    return Health(
        lifecycle=lifecycle,
        heartbeat=Heartbeat(Histogram((1,)), clock=clock),
        can_serve=lambda: bool(workers),
        stall_after=10,
    )


@pytest.fixture
def client(health: Health) -> Iterator[httpx.Client]:
    registry = CollectorRegistry()
    Gauge("answer", "The answer.", registry=registry).set(42)
    sock = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    server = AdminServer(admin_app(health, registry), sock)
    server.start()
    # The event loop of this thread does not run at all: the admin port must not need it.
    with httpx.Client(base_url=url, trust_env=False) as client:
        yield client
    server.stop()


@pytest.mark.parametrize(
    ("phase", "ready", "started"),
    [
        (Phase.STARTING, 503, 503),
        (Phase.SERVING, 200, 200),
        (Phase.DRAINING, 503, 200),
        (Phase.STOPPED, 503, 200),
    ],
)
def test_probes_follow_the_phase(
    client: httpx.Client, lifecycle: Lifecycle, phase: Phase, ready: int, started: int
) -> None:
    lifecycle.phase = phase
    assert client.get("/readyz").status_code == ready
    assert client.get("/startupz").status_code == started
    assert client.get("/livez").status_code == 200


def test_it_is_ready_only_while_some_worker_can_serve(
    client: httpx.Client, lifecycle: Lifecycle, workers: list[str]
) -> None:
    lifecycle.phase = Phase.SERVING
    workers.clear()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "no worker can serve\n")
    # It has been started, and a restart would help nobody.
    assert client.get("/startupz").status_code == 200
    assert client.get("/livez").status_code == 200
    workers.append("back")
    assert client.get("/readyz").status_code == 200


def test_a_probe_says_why(client: httpx.Client, lifecycle: Lifecycle) -> None:
    lifecycle.phase = Phase.DRAINING
    assert client.get("/readyz").text == "draining\n"
    assert client.get("/livez").text == "ok\n"


def test_a_stalled_event_loop_is_not_alive(client: httpx.Client, clock: Clock) -> None:
    clock.now = 10
    assert client.get("/livez").status_code == 200
    clock.now = 10.5
    answer = client.get("/livez")
    assert (answer.status_code, answer.text) == (503, "event loop stalled\n")


def test_metrics_are_in_the_form_that_is_asked_for(client: httpx.Client) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert "answer 42.0\n" in plain.text
    asked = client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert asked.text.endswith("# EOF\n")


def test_there_is_nothing_else(client: httpx.Client) -> None:
    assert client.get("/v1/models").status_code == 404
    assert client.post("/metrics").status_code == 405
    head = client.head("/livez")
    assert (head.status_code, head.text) == (200, "")


def test_stopping_it_frees_the_port(health: Health) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = AdminServer(admin_app(health, CollectorRegistry()), sock)
    server.start()
    assert httpx.get(f"http://127.0.0.1:{port}/livez", trust_env=False).status_code == 200
    server.stop()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            break
    else:
        pytest.fail("the port still answers")
