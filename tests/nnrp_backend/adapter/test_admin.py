import asyncio
import socket
import threading

import httpx
import pytest

from nnrp_backend.adapter import admin as admin_module
from nnrp_backend.adapter.admin import STALL_SECONDS, AdminServer, Health
from nnrp_backend.transport.tasks import TaskSet
from tests.support.waiting import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


async def get(url: str, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.get(path)
    return answer.status_code, answer.text


def get_blocking(url: str, path: str) -> tuple[int, str]:
    """Ask without the loop, which stands still meanwhile."""
    answer = httpx.get(url + path, trust_env=False)
    return answer.status_code, answer.text


async def test_the_life_of_a_worker(health: Health) -> None:
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    try:
        assert await get(url, "/livez") == (200, "ok\n")
        assert await get(url, "/startupz") == (503, "starting\n")
        assert await get(url, "/readyz") == (503, "starting\n")
        assert repr(health) == "<Health starting>"
        health.ready()
        assert await get(url, "/startupz") == (200, "ok\n")
        assert await get(url, "/readyz") == (200, "ok\n")
        assert repr(health) == "<Health ready>"
        health.unready = "draining"
        assert await get(url, "/livez") == (200, "ok\n")
        assert await get(url, "/startupz") == (200, "ok\n")
        assert await get(url, "/readyz") == (503, "draining\n")
    finally:
        await admin.close()


async def test_it_answers_while_the_workers_loop_is_blocked(health: Health, clock: Clock) -> None:
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    try:
        assert get_blocking(url, "/livez") == (200, "ok\n")
        assert get_blocking(url, "/startupz") == (503, "starting\n")
        assert get_blocking(url, "/metrics") == (200, "")
        clock.now += 3600  # an engine may take its time to load
        assert get_blocking(url, "/livez") == (200, "ok\n")
    finally:
        await admin.close()


async def test_a_loop_that_stands_still_once_it_serves_is_not_alive(
    health: Health, clock: Clock
) -> None:
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    try:
        health.ready()
        clock.now += STALL_SECONDS
        assert (await get(url, "/livez"))[0] == 200
        clock.now += 1
        assert await get(url, "/livez") == (503, "the event loop stands still\n")
        health.beat()
        assert (await get(url, "/livez"))[0] == 200
    finally:
        await admin.close()


async def test_a_scrape_that_hangs_does_not_hold_the_end(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "CLOSE_SECONDS", 0.01)
    asked, hanging = threading.Event(), threading.Event()

    def hang() -> bytes:
        asked.set()
        hanging.wait(10)
        return b""

    health.metrics = hang
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    tasks = TaskSet("test")
    scrape = tasks.start(get(url, "/metrics"), name="scrape")
    await until(asked.is_set)
    async with asyncio.timeout(5):
        await admin.close()
    hanging.set()
    assert (await scrape)[0] == 200


async def test_closing_what_never_started(health: Health) -> None:
    await AdminServer(health).close()


async def test_metrics(health: Health) -> None:
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    try:
        assert await get(url, "/metrics") == (200, "")
        health.metrics = lambda: b"things 7\n"
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{url}/metrics")
        assert answer.text == "things 7\n"
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    finally:
        await admin.close()


@pytest.mark.parametrize("path", ["/", "/v1/models", "/health"])
async def test_nothing_else_is_there(health: Health, path: str) -> None:
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    try:
        assert (await get(url, path))[0] == 404
    finally:
        await admin.close()


async def test_a_taken_port_is_an_error_at_once(health: Health) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        AdminServer(health).start("127.0.0.1", taken.getsockname()[1])


async def test_an_ipv6_url_has_brackets(health: Health) -> None:
    admin = AdminServer(health)
    url = admin.start("::1", 0)
    try:
        assert url.startswith("http://[::1]:")
        assert await get(url, "/livez") == (200, "ok\n")
    finally:
        await admin.close()


async def test_once_closed_nobody_answers(health: Health) -> None:
    admin = AdminServer(health)
    url = admin.start("127.0.0.1", 0)
    await admin.close()
    with pytest.raises(httpx.ConnectError):
        await get(url, "/livez")
