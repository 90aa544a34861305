import asyncio

from gateway.pool.interfaces import Client, LoopClock
from nnrp_backend.client import NnrpClient


async def test_the_loop_is_the_clock() -> None:
    clock = LoopClock()
    loop = asyncio.get_running_loop()
    assert abs(clock.time() - loop.time()) < 1
    rung = asyncio.Event()
    clock.call_later(0.0, rung.set)
    await asyncio.wait_for(rung.wait(), 5)


async def test_a_cancelled_timer_does_not_go_off() -> None:
    rung: list[str] = []
    later = asyncio.Event()
    clock = LoopClock()
    clock.call_later(0.0, rung.append, "cancelled").cancel()
    clock.call_later(0.0, rung.append, "kept")
    clock.call_later(0.001, later.set)
    await asyncio.wait_for(later.wait(), 5)
    assert rung == ["kept"]


async def test_the_real_client_is_what_the_pool_asks_for() -> None:
    client: Client = NnrpClient("unix:///nowhere")
    assert not client.connected
    assert not client.draining
    assert (client.granted_in_flight, client.available) == (0, 0)
