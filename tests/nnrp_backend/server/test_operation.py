import asyncio
import json

import pytest

from nnrp_backend.client import TerminalKind
from nnrp_backend.protocol.constants import CancelReason, DropReason
from nnrp_backend.server import NnrpServer
from nnrp_backend.server import operation as operation_module
from tests.support.certs import make_certificates
from tests.support.endpoints import Recorder, Service, connected, echo, serving
from tests.support.waiting import turns, until

PAYLOAD = b'{"n":1}'
NO_ROOM = 64 * 1024 * 1024


async def submitted(client, service, recorder=None, **options):
    """Submit one operation; returns both ends of it and the client's recorder."""
    recorder = recorder or Recorder()
    before = len(service.operations)
    operation = client.submit(PAYLOAD, recorder, **options)
    await until(lambda: len(service.operations) > before)
    return operation, service.operations[-1], recorder


async def test_what_a_service_knows_about_an_operation():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        sent, served, _ = await submitted(client, service, deadline_unix_ms=4_000_000_000_000)
        assert served.id == sent.id
        assert served.frame_id == sent.frame_id
        assert served.payload == PAYLOAD
        assert served.deadline_unix_ms == 4_000_000_000_000
        assert served.priority_class == 1
        assert served.session.peer_is_ours
        assert "control.progress_partial" in served.session.tokens
        assert served.transport == "tcp"
        assert served.trace is None
        assert repr(served) == f"<ServerOperation {served.id} active [0 events sent]>"
        served.send_event(b"x")
        assert served.events_sent == 1
        served.complete(b"{}")
        assert repr(served) == f"<ServerOperation {served.id} done [1 events sent]>"


async def test_transport_names(tmp_path):
    service = Service()
    certificates = make_certificates(tmp_path)
    server = NnrpServer(service)
    unix = await server.listen(f"unix://{tmp_path}/w.sock")
    tls = await server.listen("tls://127.0.0.1:0", ssl=certificates.server_context())
    for endpoint, context in ((unix, None), (tls, certificates.client_context())):
        async with connected(endpoint, ssl=context) as client:
            _, served, _ = await submitted(client, service)
            assert served.transport == endpoint.scheme
    await server.close()


async def test_verbs_after_the_end_do_nothing():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        _, served, recorder = await submitted(client, service)
        served.complete(b"first")
        assert server.in_flight == 0
        served.send_event(b"late")
        served.send_progress(9)
        served.retry_after(10)
        served.set_credit(1)
        served.complete(b"second")
        served.drop(DropReason.BACKPRESSURE)
        async with asyncio.timeout(2):
            await served.wait_ready()
        await until(lambda: recorder.terminal)
        _, again, _ = await submitted(client, service)  # everything sent has arrived by now
        assert recorder.terminals[0].body == b"first"
        assert recorder.events == []
        assert client.counters.late_events == 0
        assert server.in_flight == 1
        again.complete(b"{}")


async def test_a_result_that_fits_no_packet_is_an_error_and_the_connection_lives():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        _, served, recorder = await submitted(client, service)
        assert not served.complete(b" " * NO_ROOM)
        await until(lambda: recorder.terminal)
        error = json.loads(recorder.terminal.body)["error"]
        assert error["code"] == "result_too_large"
        assert recorder.terminal.kind is TerminalKind.RESULT
        _, again, second = await submitted(client, service)
        again.complete(b"{}")
        await until(lambda: second.terminal)


async def test_an_event_that_fits_no_packet_ends_its_operation():
    service = Service(obey=False)
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        _, served, recorder = await submitted(client, service)
        served.send_event(b" " * NO_ROOM)
        assert served.done
        assert len(service.events[0].cancels) == 1
        assert service.events[0].done_when_cancelled
        await until(lambda: recorder.terminal)
        assert json.loads(recorder.terminal.body)["error"]["code"] == "result_too_large"


# --- cancelling -----------------------------------------------------------------------------------


async def test_no_event_leaves_after_a_cancel():
    service = Service(obey=False)
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        sent, served, recorder = await submitted(client, service)
        sent.cancel()
        await until(lambda: service.events[0].cancels)
        assert repr(served) == f"<ServerOperation {served.id} cancelled [0 events sent]>"
        served.send_event(b"late")
        assert served.events_sent == 0
        served.drop(DropReason.BACKPRESSURE, "the client's reason is the one that counts")
        await until(lambda: recorder.terminal)
        assert recorder.terminal.drop_reason == DropReason.PEER_CANCELLED
        assert recorder.events == []


async def test_a_handler_is_cancelled_at_most_once():
    service = Service(obey=False)
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        sent, served, _ = await submitted(client, service)
        sent.cancel()
        await until(lambda: service.events[0].cancels)
        sent.cancel(hard=True)
        await client.close()
        await until(lambda: served.done)
        assert service.events[0].cancels == [(CancelReason.USER_CANCELLED, False)]


async def test_a_lost_connection_reaches_the_handler_with_nothing_left_to_answer():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        _, served, _ = await submitted(client, service)
        served.abort_connection()
        await until(lambda: service.events[0].cancels)
        assert service.events[0].cancels == [(CancelReason.TRANSPORT_CLOSING, True)]
        assert service.events[0].done_when_cancelled
        assert server.in_flight == 0
        served.send_event(b"into the void")
        served.complete(b"{}")


async def test_without_a_handler_a_cancel_is_answered_all_the_same():
    operations = []
    async with serving(operations.append) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        sent = client.submit(PAYLOAD, recorder)
        await until(lambda: operations)
        sent.cancel()
        await until(lambda: recorder.terminal)
        assert recorder.terminal.drop_reason == DropReason.PEER_CANCELLED


class Failing:
    """A handler that raises in one of its methods."""

    def __init__(self, method):
        self._method = method
        self.cancelled = False

    def on_cancel(self, reason, hard):
        self.cancelled = True
        self._maybe("on_cancel")

    def on_deadline(self, unix_ms, discard):
        self._maybe("on_deadline")

    def on_priority(self, priority_class, delta):
        self._maybe("on_priority")

    def _maybe(self, method):
        if method == self._method:
            raise RuntimeError(f"failing in {method}")


@pytest.mark.parametrize("method", ["on_cancel", "on_deadline", "on_priority"])
async def test_a_handler_that_raises_ends_only_its_own_operation(method, caplog):
    operations = []
    async with serving(operations.append) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        sent = client.submit(PAYLOAD, recorder)
        await until(lambda: operations)
        handler = operations[0].handler = Failing(method)
        {
            "on_cancel": sent.cancel,
            "on_deadline": lambda: sent.set_deadline(4_000_000_000_000),
            "on_priority": lambda: sent.set_priority(2),
        }[method]()
        await until(lambda: recorder.terminal)
        expected = TerminalKind.DROPPED if method == "on_cancel" else TerminalKind.RESULT
        assert recorder.terminal.kind is expected
        assert handler.cancelled
        assert f"failed in {method}" in caplog.text or f"{method} failed" in caplog.text
        second = Recorder()
        client.submit(PAYLOAD, second)
        await until(lambda: len(operations) == 2)
        operations[1].complete(b"{}")
        await until(lambda: second.terminal)


async def test_a_service_that_raises_answers_with_a_generic_error(caplog):
    def service(operation):
        if operation.payload == b"bad":
            raise ValueError("secret detail")
        echo(operation)

    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        terminal = await client.request(b"bad")
        assert json.loads(terminal.body)["error"]["code"] == "adapter_runtime_error"
        assert b"secret" not in terminal.body
        assert "secret detail" in caplog.text
        assert (await client.request(b"good")).body == b"good"
        assert server.in_flight == 0


# --- readiness ------------------------------------------------------------------------------------


async def test_a_waiter_is_woken_by_credit():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        sent, served, _ = await submitted(client, service)
        served.set_credit(1)
        assert served.ready
        served.send_event(b"one")
        assert not served.ready
        waiting = asyncio.create_task(served.wait_ready())
        await turns(5)
        assert not waiting.done()
        sent.grant(1)
        async with asyncio.timeout(5):
            await waiting
        assert served.ready


async def test_a_grant_that_came_with_the_submit_is_newer_than_its_window():
    windows = []

    def service(operation):
        operation.set_credit(0)
        windows.append(operation.ready)

    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        client.submit(PAYLOAD, Recorder()).grant(1)  # one write, one read
        await until(lambda: windows)
        client.submit(PAYLOAD, Recorder())
        await until(lambda: len(windows) == 2)
        assert windows == [True, False]


@pytest.mark.parametrize("end", ["complete", "cancel", "loss"])
async def test_a_waiter_is_woken_by_the_end(end):
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        sent, served, _ = await submitted(client, service)
        served.set_credit(0)
        waiting = asyncio.create_task(served.wait_ready())
        await turns(5)
        assert not waiting.done()
        {
            "complete": lambda: served.complete(b"{}"),
            "cancel": sent.cancel,
            "loss": served.abort_connection,
        }[end]()
        async with asyncio.timeout(5):
            await waiting
        assert served.done


async def test_a_cancelled_waiter_leaves_nothing_behind():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        _, served, _ = await submitted(client, service)
        served.set_credit(0)
        waiting = asyncio.create_task(served.wait_ready())
        await turns(5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert served._link.waiting == set()
        served.complete(b"{}")


def test_the_handlers_protocol_is_public():
    assert set(operation_module.__all__) == {"OperationEvents", "ServerOperation"}
