import socket

import httpx
import pytest

from nnrp_backend.adapter.admin import AdminServer, Health


@pytest.fixture
def health() -> Health:
    return Health()


async def get(url: str, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.get(path)
    return answer.status_code, answer.text


async def test_the_life_of_a_worker(health: Health) -> None:
    admin = AdminServer(health)
    url = await admin.start("127.0.0.1", 0)
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


async def test_metrics(health: Health) -> None:
    admin = AdminServer(health)
    url = await admin.start("127.0.0.1", 0)
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
    url = await admin.start("127.0.0.1", 0)
    try:
        assert (await get(url, path))[0] == 404
    finally:
        await admin.close()


async def test_a_taken_port_is_an_error_at_once(health: Health) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await AdminServer(health).start("127.0.0.1", taken.getsockname()[1])


async def test_an_ipv6_url_has_brackets(health: Health) -> None:
    admin = AdminServer(health)
    url = await admin.start("::1", 0)
    try:
        assert url.startswith("http://[::1]:")
        assert await get(url, "/livez") == (200, "ok\n")
    finally:
        await admin.close()


async def test_once_closed_nobody_answers(health: Health) -> None:
    admin = AdminServer(health)
    url = await admin.start("127.0.0.1", 0)
    await admin.close()
    with pytest.raises(httpx.ConnectError):
        await get(url, "/livez")
