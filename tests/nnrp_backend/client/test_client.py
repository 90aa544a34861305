import asyncio
import json
import socket

import pytest

from nnrp_backend.client import (
    Congested,
    ConnectError,
    NnrpClient,
    NotConnected,
    PayloadTooLarge,
    Terminal,
    TerminalKind,
    TooManyOperations,
    WorkerDraining,
)
from nnrp_backend.client import client as client_module
from nnrp_backend.profile.capabilities import CapabilityRecord, OperationCapability
from nnrp_backend.profile.envelope import decode_envelope
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import completed, error
from nnrp_backend.protocol.config import ServerConfig
from nnrp_backend.protocol.constants import CancelReason, DropReason
from nnrp_backend.transport import stream as stream_module
from nnrp_backend.transport.endpoint import Endpoint
from tests.support.certs import make_certificates
from tests.support.endpoints import Listener, Recorder, Service, connected, echo, serving
from tests.support.waiting import turns, until

PAYLOAD = b'{"n":1}'


async def silent(host="127.0.0.1", *, say=b"", hang_up=False):
    """A server that accepts, says one thing, and then nothing (or hangs up)."""
    writers = []

    async def accept(_, writer):
        writers.append(writer)
        writer.write(say)
        if hang_up:
            writer.close()

    server = await asyncio.start_server(accept, host, 0)
    port = server.sockets[0].getsockname()[1]

    def stop():
        server.close()
        for writer in writers:
            writer.transport.abort()

    return Endpoint.parse(f"tcp://{host}:{port}"), stop


# --- connecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_connect_and_close(kind, tmp_path):
    url = {"tcp": "tcp://127.0.0.1:0", "unix": f"unix://{tmp_path}/w.sock"}[kind]
    async with serving(echo, url) as (server, endpoint):
        client = NnrpClient(str(endpoint), max_in_flight=32)
        assert repr(client) == f"<NnrpClient {endpoint} not connected [0 in flight]>"
        assert (client.granted_in_flight, client.available, client.tokens) == (0, 0, frozenset())
        assert not client.peer_is_ours
        await client.connect()
        assert repr(client) == f"<NnrpClient {endpoint} connected [0 in flight]>"
        assert client.peer_is_ours
        assert (client.granted_in_flight, client.available) == (32, 32)
        assert "control.credit_backpressure" in client.tokens
        assert server.connections == 1
        await client.close()
        assert not client.connected
        await until(lambda: server.connections == 0)


async def test_tls_with_and_without_the_right_authority(tmp_path):
    certificates = make_certificates(tmp_path)
    context = certificates.server_context()
    async with serving(echo, "tls://127.0.0.1:0", ssl=context) as (_, endpoint):
        async with connected(endpoint, ssl=certificates.client_context()) as client:
            assert (await client.request(PAYLOAD)).body == PAYLOAD
        stranger = NnrpClient(endpoint)  # trusts the system's authorities only
        with pytest.raises(ConnectError, match="certificate"):
            await stranger.connect()


async def test_tls_client_certificates(tmp_path):
    certificates = make_certificates(tmp_path)
    context = certificates.server_context(require_client=True)
    async with serving(echo, "tls://127.0.0.1:0", ssl=context) as (_, endpoint):
        known = certificates.client_context(with_certificate=True)
        async with connected(endpoint, ssl=known) as client:
            assert (await client.request(PAYLOAD)).body == PAYLOAD
        anonymous = NnrpClient(endpoint, ssl=certificates.client_context())
        with pytest.raises(ConnectError):
            await anonymous.connect()


def test_a_context_without_tls_is_refused(tmp_path):
    context = make_certificates(tmp_path).client_context()
    with pytest.raises(ValueError, match="tls://"):
        NnrpClient("tcp://127.0.0.1:1", ssl=context)


async def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = NnrpClient(f"tcp://127.0.0.1:{port}")
    with pytest.raises(ConnectError, match="Connection refused") as caught:
        await client.connect()
    assert caught.value.endpoint == client.endpoint
    assert not client.connected


async def test_a_unix_path_without_a_socket(tmp_path):
    with pytest.raises(ConnectError, match="No such file or directory"):
        await NnrpClient(f"unix://{tmp_path}/none.sock").connect()


async def test_a_silent_server_is_given_up():
    endpoint, stop = await silent()
    client = NnrpClient(endpoint, handshake_timeout=0.1)
    with pytest.raises(ConnectError, match=r"no answer within 0\.1 s"):
        await client.connect()
    stop()


@pytest.mark.parametrize(
    "say", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100, b"SSH-2.0-x\r\n" * 9]
)
async def test_a_server_that_speaks_something_else(say):
    endpoint, stop = await silent(say=say)
    with pytest.raises(ConnectError):
        await NnrpClient(endpoint).connect()
    stop()


async def test_a_server_that_hangs_up():
    endpoint, stop = await silent(hang_up=True)
    with pytest.raises(ConnectError):
        await NnrpClient(endpoint).connect()
    stop()


async def test_a_server_without_a_session_to_spare():
    async with serving(echo, max_sessions=0) as (_, endpoint):
        with pytest.raises(ConnectError, match="session refused") as caught:
            await NnrpClient(endpoint).connect()
        assert caught.value.session_error == 0x10007


async def test_a_server_that_grants_fewer_operations():
    async with (
        serving(echo, max_in_flight=3) as (_, endpoint),
        connected(endpoint, max_in_flight=64) as client,
    ):
        assert client.granted_in_flight == 3


async def test_connecting_twice_is_a_mistake():
    async with serving(echo) as (_, endpoint), connected(endpoint) as client:
        with pytest.raises(RuntimeError, match="connection already"):
            await client.connect()
        assert client.connected


async def test_as_a_context_manager():
    async with serving(echo) as (server, endpoint):
        async with NnrpClient(endpoint) as client:
            assert (await client.request(PAYLOAD)).body == PAYLOAD
        assert not client.connected
        await until(lambda: server.connections == 0)
        await client.close()  # again, which is nothing


async def test_cancelling_connect_leaves_no_connection():
    endpoint, stop = await silent()
    client = NnrpClient(endpoint)
    task = asyncio.create_task(client.connect())
    await turns(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not client.connected
    stop()


async def test_it_can_connect_again_after_a_loss():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        service.operations[0].abort_connection()
        await until(lambda: not client.connected)
        assert recorder.terminal.kind is TerminalKind.LOST
        await client.connect()
        client.submit(PAYLOAD, Recorder())
        await until(lambda: len(service.operations) == 2)


# --- operations -----------------------------------------------------------------------------------


async def test_events_then_one_terminal():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation = client.submit(PAYLOAD, recorder)
        assert client.in_flight == 1
        await until(lambda: service.operations)
        [served] = service.operations
        assert (served.id, served.frame_id) == (operation.id, operation.frame_id)
        assert served.payload == PAYLOAD
        for number in range(3):
            served.send_event(b'{"i":%d}' % number)
        served.complete(b'{"type":"response.completed"}', 201)
        await until(lambda: recorder.terminal)
        assert recorder.events == [b'{"i":0}', b'{"i":1}', b'{"i":2}']
        assert recorder.terminals == [
            Terminal(TerminalKind.RESULT, b'{"type":"response.completed"}', status_code=201)
        ]
        assert operation.done
        assert client.in_flight == 0


async def test_events_of_one_read_come_in_one_call_per_operation():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorders = [Recorder(), Recorder()]
        for recorder in recorders:
            client.submit(PAYLOAD, recorder)
        await until(lambda: len(service.operations) == 2)
        for number in range(4):
            for operation in service.operations:
                operation.send_event(b"%d" % number)
        await until(lambda: all(recorder.reads for recorder in recorders))
        assert [recorder.reads for recorder in recorders] == [[[b"0", b"1", b"2", b"3"]]] * 2


async def test_progress_keeps_its_place_among_events():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        [served] = service.operations
        served.send_event(b"before")
        served.send_progress(5, 2500)
        served.send_event(b"after")
        served.complete(b"{}")
        await until(lambda: recorder.terminal)
        assert recorder.reads == [[b"before"], [b"after"]]
        assert recorder.stages == [(5, 2500)]


async def test_an_empty_result():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        service.operations[0].complete(b"")
        await until(lambda: recorder.terminal)
        assert recorder.terminal == Terminal(TerminalKind.RESULT, status_code=200)


async def test_a_drop_carries_its_reason_and_advice():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        service.operations[0].retry_after(750)
        service.operations[0].drop(DropReason.DEADLINE_EXPIRED, "too late")
        await until(lambda: recorder.terminal)
        assert recorder.terminal == Terminal(
            TerminalKind.DROPPED, drop_reason=1, diagnostic="too late", retry_after_ms=750
        )


async def test_requests_run_side_by_side():
    async with serving(echo) as (_, endpoint), connected(endpoint) as client:
        payloads = [b'{"n":%d}' % number for number in range(50)]
        terminals = await asyncio.gather(*(client.request(payload) for payload in payloads))
        assert [terminal.body for terminal in terminals] == payloads


async def test_a_cancelled_request_cancels_its_operation():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        task = asyncio.create_task(client.request(PAYLOAD))
        await until(lambda: service.operations)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: service.events[0].cancels)
        assert service.events[0].cancels == [(CancelReason.USER_CANCELLED, False)]
        await until(lambda: client.in_flight == 0)


async def test_no_connection_no_operation():
    client = NnrpClient("tcp://127.0.0.1:1")
    with pytest.raises(NotConnected):
        client.submit(PAYLOAD, Recorder())
    with pytest.raises(NotConnected):
        await client.request(PAYLOAD)


async def test_the_granted_number_is_enforced_here():
    service = Service()
    async with serving(service, max_in_flight=2) as (_, endpoint), connected(endpoint) as client:
        first, second = Recorder(), Recorder()
        client.submit(PAYLOAD, first)
        client.submit(PAYLOAD, second)
        assert client.available == 0
        with pytest.raises(TooManyOperations) as caught:
            client.submit(PAYLOAD, Recorder())
        assert caught.value.limit == 2
        await until(lambda: len(service.operations) == 2)
        service.operations[0].complete(b"{}")
        await until(lambda: first.terminal)
        assert client.available == 1
        client.submit(PAYLOAD, Recorder())
        await until(lambda: len(service.operations) == 3)


async def test_a_payload_that_fits_no_packet():
    async with serving(echo) as (_, endpoint), connected(endpoint) as client:
        with pytest.raises(PayloadTooLarge):
            client.submit(b" " * (64 * 1024 * 1024), Recorder())
        assert client.in_flight == 0
        assert (await client.request(PAYLOAD)).body == PAYLOAD


async def test_payloads_do_not_pile_up_for_a_worker_that_does_not_read(monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_UNSENT_BYTES", 32 * 1024 * 1024)
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        client.submit(PAYLOAD, Recorder())
        await until(lambda: service.operations)
        service.operations[0]._link._transport.pause_reading()
        big = b" " * (24 * 1024 * 1024)
        client.submit(big, Recorder())
        with pytest.raises(Congested) as caught:
            client.submit(big, Recorder())
        assert caught.value.unsent > 8 * 1024 * 1024
        assert client.connected
        service.operations[0]._link._transport.resume_reading()
        await until(lambda: len(service.operations) == 2)
        client.submit(big, Recorder())
        await until(lambda: len(service.operations) == 3)


async def test_deadline_and_priority_reach_the_server():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        operation = client.submit(
            PAYLOAD, Recorder(), deadline_unix_ms=4_000_000_000_000, priority=2
        )
        await until(lambda: service.operations)
        assert service.operations[0].deadline_unix_ms == 4_000_000_000_000
        await until(lambda: service.operations[0].priority_class == 2)
        operation.set_deadline(4_000_000_000_001)
        operation.set_priority(0, -5)
        await until(lambda: service.events[0].deadlines and len(service.events[0].priorities) >= 1)
        assert service.events[0].deadlines[-1][0] == 4_000_000_000_001
        assert service.events[0].priorities[-1] == (0, -5)


# --- the connection as a whole --------------------------------------------------------------------


async def test_a_lost_connection_ends_every_operation_once():
    service = Service()
    listener = Listener()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint, listener=listener) as client,
    ):
        recorders = [Recorder() for _ in range(5)]
        for recorder in recorders:
            client.submit(PAYLOAD, recorder)
        await until(lambda: len(service.operations) == 5)
        service.operations[0].abort_connection()
        await until(lambda: listener.lost)
        for recorder in recorders:
            [terminal] = recorder.terminals
            assert terminal.kind is TerminalKind.LOST
        assert len(listener.lost) == 1
        assert client.in_flight == 0
        with pytest.raises(NotConnected):
            client.submit(PAYLOAD, Recorder())


async def test_close_ends_what_is_left_and_tells_no_listener():
    service = Service()
    listener = Listener()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint, listener=listener) as client,
    ):
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        await client.close()
        assert [terminal.kind for terminal in recorder.terminals] == [TerminalKind.LOST]
        assert listener.lost == []
        await until(lambda: service.events[0].cancels)
        assert service.events[0].done_when_cancelled
        assert service.operations[0].done


async def test_close_waits_for_operations_to_end():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        closing = asyncio.create_task(client.close(drain_timeout=10))
        await until(lambda: not client.connected)
        with pytest.raises(NotConnected):
            client.submit(PAYLOAD, Recorder())
        service.operations[0].complete(b"{}")
        await closing
        assert recorder.terminal.kind is TerminalKind.RESULT


async def test_close_does_not_wait_longer_than_it_was_told():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        async with asyncio.timeout(5):
            await client.close(drain_timeout=0.02)
        assert recorder.terminal.kind is TerminalKind.LOST


async def test_close_with_nothing_in_flight_waits_for_nothing():
    async with serving(echo) as (_, endpoint), connected(endpoint) as client:
        await client.request(PAYLOAD)
        async with asyncio.timeout(5):
            await client.close(drain_timeout=60)


async def test_close_does_not_wait_for_a_worker_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(client_module, "FAREWELL_SECONDS", 0.05)
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        service.operations[0]._link._transport.pause_reading()
        async with asyncio.timeout(5):
            await client.close()
        assert recorder.terminal.kind is TerminalKind.LOST
        service.operations[0].abort_connection()


async def test_a_draining_worker_takes_nothing_new():
    service = Service()
    listener = Listener()
    async with (
        serving(service) as (server, endpoint),
        connected(endpoint, listener=listener) as client,
    ):
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        closing = asyncio.create_task(server.close(drain_timeout=10))
        await until(lambda: listener.drains)
        assert client.draining
        assert client.connected
        assert client.available == 0
        with pytest.raises(WorkerDraining):
            client.submit(PAYLOAD, Recorder())
        service.operations[0].complete(b"{}")
        await closing
        assert recorder.terminal.kind is TerminalKind.RESULT
        await until(lambda: listener.lost == [None])


async def test_free_slots_reach_the_listener():
    service = Service()
    listener = Listener()
    async with (
        serving(service) as (server, endpoint),
        connected(endpoint, listener=listener) as client,
    ):
        server.set_capacity(1)
        await until(lambda: listener.pressure)
        assert listener.pressure[-1][:2] == (1, 0)
        client.submit(PAYLOAD, Recorder())
        await until(lambda: listener.pressure[-1][:2] == (0, 2))
        assert listener.pressure[-1][2] > 0


async def test_probes_are_answered():
    listener = Listener()
    async with serving(echo) as (_, endpoint):
        async with connected(endpoint, listener=listener, probe_interval=0.02):
            await until(lambda: len(listener.probes) >= 2)
        assert all(0 <= rtt < 5 for rtt in listener.probes)


async def test_silence_is_a_miss_and_long_silence_the_end():
    listener = Listener()
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint, listener=listener, probe_interval=0.03, dead_after=0.8) as client,
    ):
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        # The process lives and its kernel acknowledges, but nobody reads.
        service.operations[0]._link._transport.pause_reading()
        await until(lambda: None in listener.probes)
        assert client.connected
        assert recorder.terminal is None
        await until(lambda: listener.lost)
        assert recorder.terminal.kind is TerminalKind.LOST
        assert not client.connected


async def test_a_listener_that_raises_harms_nothing(caplog):
    class Failing(Listener):
        def on_probe(self, rtt):
            super().on_probe(rtt)
            raise RuntimeError("listener broke")

    listener = Failing()
    async with (
        serving(echo) as (_, endpoint),
        connected(endpoint, listener=listener, probe_interval=0.02) as client,
    ):
        await until(lambda: len(listener.probes) >= 2)
        assert (await client.request(PAYLOAD)).body == PAYLOAD
    assert "the client's listener failed in on_probe" in caplog.text


# --- capabilities ---------------------------------------------------------------------------------

RECORD = CapabilityRecord(
    adapter="test",
    levels=(1, 3),
    operations=(OperationCapability(name="chat.completions.create", streaming=True),),
    models=({"id": "m", "owned_by": "tests"},),
)


def answering(body):
    def service(operation):
        envelope = decode_envelope(operation.payload, frame_id=operation.frame_id)
        assert envelope.operation == "models.list"
        operation.complete(body)

    return service


async def test_capabilities_come_with_the_model_list():
    async with (
        serving(answering(completed(RECORD.models_list()))) as (_, endpoint),
        connected(endpoint) as client,
    ):
        record = await client.capabilities()
        assert record.levels == (1, 3)
        assert record.serves("chat.completions.create")
        assert [model["id"] for model in record.models] == ["m"]


@pytest.mark.parametrize(
    "body",
    [
        error(ProfileError(ErrorCode.UNSUPPORTED_OPERATION, "no such operation")),
        completed(json.dumps({"object": "list", "data": []}).encode()),
        b"",
    ],
)
async def test_a_worker_without_a_document(body):
    async with serving(answering(body)) as (_, endpoint), connected(endpoint) as client:
        assert await client.capabilities() is None


async def test_a_worker_that_drops_the_question():
    async with (
        serving(lambda operation: operation.drop(DropReason.BACKPRESSURE)) as (_, endpoint),
        connected(endpoint) as client,
    ):
        assert await client.capabilities() is None


async def test_capabilities_of_a_silent_worker_time_out():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        with pytest.raises(TimeoutError):
            await client.capabilities(timeout=0.05)
        await until(lambda: service.events[0].cancels)


async def test_capabilities_of_a_worker_that_dies():
    async with (
        serving(lambda operation: operation.abort_connection()) as (_, endpoint),
        connected(endpoint) as client,
    ):
        with pytest.raises(NotConnected):
            await client.capabilities()


# --- foreign servers ------------------------------------------------------------------------------


async def test_a_foreign_server_is_recognised():
    async with (
        serving(echo, config=ServerConfig(tag=0)) as (_, endpoint),
        connected(endpoint) as client,
    ):
        assert not client.peer_is_ours
        await until(lambda: client.tokens)  # negotiated, not presumed
        assert (await client.request(PAYLOAD)).body == PAYLOAD
