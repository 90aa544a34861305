"""The published runtime's client (`nnrp-py`, in a child process) against our server."""

import asyncio
import hashlib
import json

import pytest

from nnrp_backend.protocol.constants import CancelReason
from tests.support.endpoints import Service, serving
from tests.support.native import NativePeer, matches, native_client
from tests.support.waiting import until

MIB = 1024 * 1024


@pytest.fixture(params=["tcp", "unix"])
def url(request, tmp_path):
    return {"tcp": "tcp://127.0.0.1:0", "unix": f"unix://{tmp_path}/w.sock"}[request.param]


class Orders(Service):
    """Does what the payload says: `n` events, a result of `result_bytes`, `hold`."""

    def __init__(self):
        super().__init__()
        self.tasks = set()

    def __call__(self, operation):
        super().__call__(operation)
        orders = json.loads(operation.payload)
        if not orders.get("hold"):
            self.tasks.add(asyncio.ensure_future(self.run(operation, orders)))

    async def run(self, operation, orders):
        for index in range(orders.get("n", 0)):
            await operation.wait_ready()
            operation.send_event(b'{"operation":%d,"i":%d}' % (operation.id, index))
            await asyncio.sleep(orders.get("delay_ms", 0) / 1000)
        padding = b"r" * orders.get("result_bytes", 0)
        operation.complete(b'{"type":"response.completed","pad":"%s"}' % padding)


async def results(peer: NativePeer, count: int = 1) -> list:
    return await peer.wait_for(lambda report: report["event"] == "RESULT_PUSH", count=count)


async def test_streaming(url):
    service = Orders()
    async with serving(service, url) as (_, endpoint), native_client(str(endpoint)) as peer:
        await peer.tell("submit", operation=1, payload='{"n":5}')
        [result] = await results(peer)
        partials = peer.seen("PARTIAL_RESULT")
        assert [json.loads(partial["body"])["i"] for partial in partials] == [0, 1, 2, 3, 4]
        assert [partial["sequence"] for partial in partials] == [1, 2, 3, 4, 5]
        assert {(partial["operation"], partial["frame"]) for partial in partials} == {(1, 1)}
        # The child read the body with the package's own codec: it was in the canonical form.
        assert json.loads(result["body"])["type"] == "response.completed"
        assert (result["frame"], result["status"]) == (1, 200)
        assert not service.operations[0].session.peer_is_ours


async def test_eight_operations_side_by_side(url):
    async with serving(Orders(), url) as (_, endpoint), native_client(str(endpoint)) as peer:
        for operation in range(1, 9):
            await peer.tell("submit", operation=operation, payload='{"n":40}')
        await results(peer, 8)
        for operation in range(1, 9):
            partials = peer.seen("PARTIAL_RESULT", operation=operation)
            assert [json.loads(partial["body"]) for partial in partials] == [
                {"operation": operation, "i": index} for index in range(40)
            ]


async def test_cancel_in_mid_stream(url):
    service = Orders()
    async with serving(service, url) as (server, endpoint), native_client(str(endpoint)) as peer:
        await peer.tell("submit", operation=4, payload='{"n":100000,"delay_ms":1}')
        await peer.wait_for(lambda report: matches(report, "PARTIAL_RESULT"), count=3)
        await peer.tell("cancel", operation=4)
        drop = await peer.event("RESULT_DROP_REASON", operation=4, frame=4)
        assert drop["reason"] == 3
        assert peer.seen("TRACE_CONTEXT", frame=0)
        assert service.events[0].cancels == [(CancelReason.USER_CANCELLED, False)]
        assert server.in_flight == 0
        # The session is as good as new.
        await peer.tell("submit", operation=5, payload='{"n":1}')
        await results(peer)


async def test_an_8_mib_body_each_way(url):
    service = Orders()
    async with serving(service, url) as (_, endpoint), native_client(str(endpoint)) as peer:
        orders = json.dumps({"result_bytes": 8 * MIB})
        await peer.tell("submit", operation=1, payload=orders, pad=8 * MIB)
        [result] = await results(peer)
        assert service.operations[0].payload == orders.encode() + b" " * (8 * MIB)
        expected = b'{"type":"response.completed","pad":"%s"}' % (b"r" * 8 * MIB)
        assert result["sha256"] == hashlib.sha256(expected).hexdigest()


async def test_a_killed_client(url):
    service = Orders()
    async with serving(service, url) as (server, endpoint), native_client(str(endpoint)) as peer:
        for operation in (1, 2):
            await peer.tell("submit", operation=operation, payload='{"hold":1}')
        await until(lambda: len(service.operations) == 2, timeout=20)
        peer.kill()
        await until(lambda: server.connections == 0)
        for events in service.events:
            assert events.cancels == [(CancelReason.TRANSPORT_CLOSING, True)]
            assert events.done_when_cancelled
        assert server.in_flight == 0


async def test_a_killed_server_is_noticed(url):
    service = Orders()
    async with serving(service, url) as (_, endpoint), native_client(str(endpoint)) as peer:
        await peer.tell("submit", operation=1, payload='{"hold":1}')
        await until(lambda: service.operations, timeout=20)
        service.operations[0].abort_connection()
        await peer.event("poll_error")


async def test_an_orderly_close(url):
    async with serving(Orders(), url) as (server, endpoint), native_client(str(endpoint)) as peer:
        await peer.tell("submit", operation=1, payload='{"n":1}')
        await results(peer)
        await peer.tell("close")
        await peer.event("closed")
        await until(lambda: server.connections == 0)


async def test_nothing_is_sent_that_was_not_negotiated(url):
    """No PROGRESS, no retry advice, no capacity report: all of them would be events here."""

    class Talkative(Orders):
        async def run(self, operation, orders):
            operation.send_progress(5)
            operation.retry_after(100)
            await super().run(operation, orders)

    async with (
        serving(Talkative(), url) as (server, endpoint),
        native_client(str(endpoint)) as peer,
    ):
        server.set_capacity(100)
        await peer.tell("submit", operation=1, payload='{"n":2}')
        await results(peer)
        assert [report["event"] for report in peer.reports] == [
            "ready",
            "PARTIAL_RESULT",
            "PARTIAL_RESULT",
            "RESULT_PUSH",
        ]


async def test_a_refused_operation_gets_a_terminal(url):
    service = Orders()
    async with (
        serving(service, url, max_in_flight=2) as (_, endpoint),
        native_client(str(endpoint), max_in_flight=2) as peer,
    ):
        for operation in (1, 2, 3):
            await peer.tell("submit", operation=operation, payload='{"hold":1}')
        [refusal] = await results(peer)
        assert refusal["frame"] == 3
        assert json.loads(refusal["body"])["error"]["code"] == "backend_overload"


async def test_draining_lets_a_foreign_client_finish(url):
    service = Orders()
    async with serving(service, url) as (server, endpoint), native_client(str(endpoint)) as peer:
        await peer.tell("submit", operation=1, payload='{"hold":1}')
        await until(lambda: service.operations, timeout=20)
        closing = asyncio.create_task(server.close(drain_timeout=20))
        await until(lambda: server.draining)
        await peer.tell("submit", operation=2, payload='{"n":1}')
        [refusal] = await results(peer)
        assert json.loads(refusal["body"])["error"]["code"] == "scheduler_rejected"
        service.operations[0].complete(b'{"type":"response.completed"}')
        await results(peer, 2)
        await closing
