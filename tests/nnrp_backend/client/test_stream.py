import asyncio

import pytest

from nnrp_backend.client import NotConnected, OperationStream, TerminalKind
from nnrp_backend.protocol.constants import DropReason
from tests.support.endpoints import Service, connected, serving
from tests.support.waiting import turns, until

PAYLOAD = b'{"n":1}'


async def test_iterate_to_the_end():
    def service(operation):
        for number in range(5):
            operation.send_event(b"%d" % number)
        operation.complete(b"end")

    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        async with client.stream(PAYLOAD) as stream:
            assert stream.terminal is None
            assert [body async for body in stream] == [b"0", b"1", b"2", b"3", b"4"]
        assert stream.terminal.kind is TerminalKind.RESULT
        assert stream.terminal.body == b"end"
        assert client.in_flight == 0


async def test_a_slow_producer_wakes_the_reader():
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint) as client,
        client.stream(PAYLOAD) as stream,
    ):
        await until(lambda: service.operations)
        for number in range(3):
            reading = asyncio.create_task(anext(stream))
            await turns()
            assert not reading.done()
            service.operations[0].send_event(b"%d" % number)
            assert await reading == b"%d" % number
        reading = asyncio.create_task(anext(stream, None))
        await turns()
        service.operations[0].drop(DropReason.BACKPRESSURE)
        assert await reading is None
        assert stream.terminal.drop_reason == DropReason.BACKPRESSURE


async def test_leaving_early_cancels():
    service = Service(obey=False)
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        async with client.stream(PAYLOAD) as stream:
            await until(lambda: service.operations)
            service.operations[0].send_event(b"one")
            async for _ in stream:
                break
        assert repr(stream) == "<OperationStream open [0 events waiting]>"
        await until(lambda: service.events[0].cancels)
        service.operations[0].drop(DropReason.PEER_CANCELLED)
        await until(lambda: stream.terminal)
        assert repr(stream) == "<OperationStream ended [0 events waiting]>"


async def test_a_cancelled_reader_can_read_on():
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint) as client,
        client.stream(PAYLOAD) as stream,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(stream)
        service.operations[0].send_event(b"one")
        assert await anext(stream) == b"one"


async def test_two_readers_at_once_are_a_mistake():
    """Or the first would never be woken."""
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint) as client,
        client.stream(PAYLOAD) as stream,
    ):
        reading = asyncio.create_task(anext(stream))
        await until(lambda: service.operations)
        with pytest.raises(RuntimeError, match="one reader"):
            await anext(stream)
        service.operations[0].send_event(b"one")
        assert await reading == b"one"


async def test_a_window_is_granted_anew_at_each_half():
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint) as client,
        client.stream(PAYLOAD, window=4) as stream,
    ):
        await until(lambda: service.operations)
        [served] = service.operations
        served.set_credit(4)
        for number in range(4):
            assert served.ready
            served.send_event(b"%d" % number)
        assert not served.ready
        assert await anext(stream) == b"0"
        await turns(20)
        assert not served.ready  # a quarter is not half
        assert await anext(stream) == b"1"
        await until(lambda: served.ready)


async def test_without_a_window_nothing_is_granted():
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint) as client,
        client.stream(PAYLOAD) as stream,
    ):
        await until(lambda: service.operations)
        [served] = service.operations
        served.set_credit(1)
        served.send_event(b"one")
        assert await anext(stream) == b"one"
        await turns(20)
        assert not served.ready


async def test_entering_without_a_connection():
    async with serving(Service()) as (_, endpoint), connected(endpoint) as client:
        await client.close()
        with pytest.raises(NotConnected):
            async with client.stream(PAYLOAD):
                pass


def test_there_is_no_operation_before_entering():
    stream = OperationStream(lambda handler: None)
    assert repr(stream) == "<OperationStream new [0 events waiting]>"
    with pytest.raises(RuntimeError, match="async with"):
        _ = stream.operation
