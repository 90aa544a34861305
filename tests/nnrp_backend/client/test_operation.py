import pytest

from nnrp_backend.client import TerminalKind
from nnrp_backend.protocol.constants import CancelReason, DropReason
from tests.support.endpoints import Recorder, Service, connected, serving
from tests.support.waiting import turns, until

PAYLOAD = b'{"n":1}'


async def submitted(client, service, recorder):
    """Submit one operation; returns both ends of it."""
    before = len(service.operations)
    operation = client.submit(PAYLOAD, recorder)
    await until(lambda: len(service.operations) > before)
    return operation, service.operations[-1]


@pytest.mark.parametrize("hard", [False, True])
async def test_cancel_is_confirmed_by_a_drop(hard):
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation, served = await submitted(client, service, recorder)
        served.send_event(b"one")
        await until(lambda: recorder.events)
        operation.cancel(hard=hard)
        assert repr(operation) == f"<ClientOperation {operation.id} cancelling>"
        await until(lambda: recorder.terminal)
        assert recorder.terminal.kind is TerminalKind.DROPPED
        assert recorder.terminal.drop_reason == DropReason.PEER_CANCELLED
        assert service.events[0].cancels == [(CancelReason.USER_CANCELLED, hard)]
        assert repr(operation) == f"<ClientOperation {operation.id} done>"


async def test_cancel_is_sent_once():
    service = Service(obey=False)
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation, served = await submitted(client, service, recorder)
        for _ in range(3):
            operation.cancel()
        await until(lambda: service.events[0].cancels)
        operation.cancel()
        served.drop(DropReason.PEER_CANCELLED)
        await until(lambda: recorder.terminal)
        operation.cancel()
        await turns()
        assert len(service.events[0].cancels) == 1
        assert client.counters.protocol_errors == 0


async def test_a_cancel_that_crosses_the_result_changes_nothing():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation, served = await submitted(client, service, recorder)
        served.complete(b"{}")
        operation.cancel()  # both are on their way now
        await until(lambda: recorder.terminal)
        assert recorder.terminal.kind is TerminalKind.RESULT
        await turns(20)
        assert len(recorder.terminals) == 1
        assert service.events[0].cancels == []
        assert client.available == client.granted_in_flight
        # The connection is as good as new.
        _, again = await submitted(client, service, Recorder())
        again.complete(b"{}")


async def test_an_unanswered_cancel_ends_here_and_frees_its_slot():
    service = Service(obey=False)
    async with (
        serving(service, max_in_flight=1) as (_, endpoint),
        connected(endpoint, cancel_grace=0.05) as client,
    ):
        recorder = Recorder()
        operation, served = await submitted(client, service, recorder)
        operation.cancel()
        await until(lambda: recorder.terminal)
        assert recorder.terminal.kind is TerminalKind.LOST
        assert recorder.terminal.diagnostic == "no answer to cancel"
        assert client.in_flight == 0
        assert client.available == 1
        # What comes after all is counted and dropped.
        served.drop(DropReason.PEER_CANCELLED)
        await until(lambda: client.counters.late_events == 1)
        assert len(recorder.terminals) == 1


async def test_an_answered_cancel_is_not_ended_twice():
    service = Service(obey=False)
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint, cancel_grace=0.3) as client,
    ):
        answered, unanswered = Recorder(), Recorder()
        first, served = await submitted(client, service, answered)
        second, _ = await submitted(client, service, unanswered)
        first.cancel()
        served.drop(DropReason.PEER_CANCELLED)
        await until(lambda: answered.terminal)
        second.cancel()
        # The first one's grace would run out before the second's.
        await until(lambda: unanswered.terminal)
        assert [terminal.kind for terminal in answered.terminals] == [TerminalKind.DROPPED]


@pytest.mark.parametrize("method", ["on_events", "on_progress"])
async def test_a_handler_that_raises_cancels_only_its_own_operation(method, caplog):
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        failing, healthy = Recorder(fail_in=method), Recorder()
        _, served = await submitted(client, service, failing)
        _, other = await submitted(client, service, healthy)
        served.send_event(b"one")
        served.send_progress(5)
        served.send_event(b"two")
        await until(lambda: failing.terminal)
        assert failing.terminal.kind is TerminalKind.DROPPED
        assert service.events[0].cancels == [(CancelReason.UNSPECIFIED, False)]
        assert f"failed in {method}" in caplog.text
        other.send_event(b"fine")
        other.complete(b"{}")
        await until(lambda: healthy.terminal)
        assert healthy.events == [b"fine"]
        assert client.connected


async def test_a_handler_that_raised_hears_only_the_end():
    service = Service(obey=False)
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        failing = Recorder(fail_in="on_events")
        _, served = await submitted(client, service, failing)
        served.send_event(b"one")
        await until(lambda: service.events[0].cancels)
        served.complete(b"{}")
        await until(lambda: failing.terminal)
        assert failing.events == [b"one"]


async def test_a_handler_that_raises_at_the_end_harms_nobody(caplog):
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        failing = Recorder(fail_in="on_terminal")
        _, served = await submitted(client, service, failing)
        served.complete(b"{}")
        await until(lambda: failing.terminal)
        assert "failed in on_terminal" in caplog.text
        assert client.connected
        assert client.in_flight == 0


async def test_verbs_after_the_end_do_nothing():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation, served = await submitted(client, service, recorder)
        served.complete(b"{}")
        await until(lambda: recorder.terminal)
        operation.cancel()
        operation.cancel(hard=True)
        operation.grant(5)
        operation.set_deadline(1)
        operation.set_priority(1)
        _, again = await submitted(client, service, Recorder())
        assert server.connections == 1
        assert client.counters.protocol_errors == 0
        assert again._link.core.counters.protocol_errors == 0
        assert again._link.core.counters.late_events == 0
