import asyncio
import json

import pytest

from nnrp_backend.client import ConnectError, NnrpClient, TerminalKind
from nnrp_backend.protocol.config import ServerConfig
from nnrp_backend.protocol.constants import CancelReason, Capability, DropReason
from nnrp_backend.server import NnrpServer
from nnrp_backend.server.server import REPORT_SECONDS
from nnrp_backend.transport import stream as stream_module
from tests.support import frames
from tests.support.certs import make_certificates
from tests.support.endpoints import Listener, Recorder, Service, connected, echo, serving
from tests.support.frames import RawPeer
from tests.support.waiting import until

PAYLOAD = b'{"n":1}'


async def test_several_endpoints_at_once(tmp_path):
    server = NnrpServer(echo)
    tcp = await server.listen("tcp://127.0.0.1:0")
    unix = await server.listen(f"unix://{tmp_path}/w.sock")
    assert repr(server) == (f"<NnrpServer serving on {tcp}, {unix} [0 connections, 0 in flight]>")
    for endpoint in (tcp, unix):
        async with connected(endpoint) as client:
            assert (await client.request(PAYLOAD)).body == PAYLOAD
    await server.close()
    assert repr(server).startswith("<NnrpServer draining on tcp")
    assert not (tmp_path / "w.sock").exists()


async def test_an_address_in_use():
    async with serving(echo) as (_, endpoint):
        other = NnrpServer(echo)
        assert repr(other) == "<NnrpServer serving on nowhere [0 connections, 0 in flight]>"
        with pytest.raises(OSError, match="in use"):
            await other.listen(endpoint)


async def test_connections_over_the_limit_are_closed_at_once(caplog):
    async with serving(echo, max_connections=2) as (server, endpoint):
        async with connected(endpoint) as first, connected(endpoint):
            for _ in range(3):
                with pytest.raises(ConnectError):
                    await NnrpClient(endpoint).connect()
            assert server.connections == 2
            assert server.refused_connections == 3
            assert caplog.text.count("refusing connections") == 1
            assert (await first.request(PAYLOAD)).body == PAYLOAD
        await until(lambda: server.connections == 0)
        async with connected(endpoint) as again:
            assert again.connected


async def test_sessions_over_the_limit_are_rejected_and_the_connection_lives():
    async with serving(echo, max_sessions=2) as (_, endpoint):
        peer = await RawPeer.connect(endpoint.host, endpoint.port)
        first = await peer.handshake()
        peer.send(frames.session_open() * 2)
        second, third = await peer.read(), await peer.read()
        assert second.session not in (0, first)
        assert (third.kind, third.session) == (frames.OPEN_ACK, 0)
        peer.send(frames.submit(first, 1, PAYLOAD))
        assert (await peer.read_until(frames.RESULT)).session == first
        peer.close()


@pytest.mark.parametrize("options", [{}, {"config": ServerConfig()}], ids=["plain", "configured"])
async def test_session_ids_are_unique_across_connections(options):
    async with serving(echo, **options) as (_, endpoint):
        peers = [await RawPeer.connect(endpoint.host, endpoint.port) for _ in range(3)]
        assert len({await peer.handshake() for peer in peers}) == 3
        for peer in peers:
            peer.close()


async def test_foreign_clients_are_granted_what_the_service_honours():
    granted = {Capability.CANCEL_ABORT, Capability.PROGRESS_PARTIAL}
    async with serving(echo, capabilities=frozenset(granted)) as (_, endpoint):
        peer = await RawPeer.connect(endpoint.host, endpoint.port)
        session = await peer.handshake()
        peer.send(frames.negotiate(session, *granted, Capability.SUPERSEDE))
        assert frames.tokens((await peer.read_until(frames.DEGRADE)).body) == granted
        peer.close()


async def test_a_silent_peer_holds_up_nobody(tmp_path):
    certificates = make_certificates(tmp_path)
    server = NnrpServer(echo, handshake_timeout=5)
    plain = await server.listen("tcp://127.0.0.1:0")
    secure = await server.listen("tls://127.0.0.1:0", ssl=certificates.server_context())
    silent = [await RawPeer.connect(e.host, e.port) for e in (plain, secure) for _ in range(3)]
    async with (
        connected(plain) as client,
        connected(secure, ssl=certificates.client_context()) as secure_client,
    ):
        assert (await client.request(PAYLOAD)).body == PAYLOAD
        assert (await secure_client.request(PAYLOAD)).body == PAYLOAD
    for peer in silent:
        peer.close()
    await server.close()


# --- draining and closing -------------------------------------------------------------------------


async def test_close_lets_operations_end():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        client.submit(PAYLOAD, recorder)
        await until(lambda: service.operations)
        closing = asyncio.create_task(server.close(drain_timeout=10))
        await until(lambda: server.draining)
        service.operations[0].send_event(b"still here")
        service.operations[0].complete(b"{}")
        await closing
        await until(lambda: not client.connected)
        assert recorder.events == [b"still here"]
        assert recorder.terminal.kind is TerminalKind.RESULT
        assert service.events[0].cancels == []
        assert server.connections == 0


async def test_two_closers_wait_for_the_same_end():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        client.submit(PAYLOAD, Recorder())
        await until(lambda: service.operations)
        closing = [asyncio.create_task(server.close(drain_timeout=60)) for _ in range(2)]
        await until(lambda: client.draining)
        service.operations[0].complete(b"{}")
        async with asyncio.timeout(5):
            await asyncio.gather(*closing)


async def test_close_leaves_no_timer_behind():
    service = Service(obey=False)
    watcher = Listener()
    async with (
        serving(service) as (server, endpoint),
        connected(endpoint, listener=watcher) as client,
    ):
        server.set_capacity(8)
        client.submit(PAYLOAD, Recorder())
        await until(lambda: (7, 0, 0) in watcher.pressure)
        timers = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "_report_now", lambda: timers.append("report"))
            await server.close()
            await asyncio.sleep(2 * REPORT_SECONDS)
        assert timers == []


async def test_close_takes_nothing_new():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        peer = await RawPeer.connect(endpoint.host, endpoint.port)  # a foreign client
        session = await peer.handshake()
        client.submit(PAYLOAD, Recorder())
        await until(lambda: service.operations)
        closing = asyncio.create_task(server.close(drain_timeout=10))
        await until(lambda: client.draining)
        peer.send(frames.submit(session, 1))
        refusal = await peer.read()
        assert (refusal.kind, refusal.frame) == (frames.RESULT, 1)
        assert json.loads(refusal.body[56:])["error"]["code"] == "scheduler_rejected"
        with pytest.raises(ConnectError):
            await NnrpClient(endpoint).connect()
        assert len(service.operations) == 1
        service.operations[0].complete(b"{}")
        await closing
        assert await peer.closed() == b""


async def test_a_client_in_the_middle_of_its_handshake_hears_of_the_drain():
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        peer = await RawPeer.connect(endpoint.host, endpoint.port)
        await until(lambda: server.connections == 2)
        client.submit(PAYLOAD, Recorder())
        await until(lambda: service.operations)
        closing = asyncio.create_task(server.close(drain_timeout=10))
        await until(lambda: client.draining)
        peer.send(frames.hello() + frames.session_open())
        assert (await peer.read()).kind == frames.HELLO_ACK
        refusal = await peer.read()
        retry_later = 2
        assert (refusal.kind, refusal.session, refusal.meta[7]) == (frames.OPEN_ACK, 0, retry_later)
        service.operations[0].complete(b"{}")
        await closing
        assert await peer.closed() == b""


async def test_close_ends_what_does_not_end_by_itself():
    """Handlers are told, and what they leave is dropped: the client hears a terminal of each."""
    obedient, deaf = Service(), Service(obey=False)

    def service(operation):
        (obedient if operation.payload == b"a" else deaf)(operation)

    async with serving(service) as (server, endpoint), connected(endpoint) as client:
        recorders = [Recorder(), Recorder()]
        client.submit(b"a", recorders[0])
        client.submit(b"b", recorders[1])
        await until(lambda: server.in_flight == 2)
        await server.close(drain_timeout=0.01)
        for events in (obedient.events[0], deaf.events[0]):
            assert events.cancels == [(CancelReason.SHUTDOWN, True)]
            assert not events.done_when_cancelled
        await until(lambda: all(recorder.terminal for recorder in recorders))
        reasons = [recorder.terminal.drop_reason for recorder in recorders]
        assert reasons == [DropReason.PEER_CANCELLED, DropReason.TRANSPORT_CLOSED]
        assert server.in_flight == 0
        assert server.connections == 0


async def test_close_is_not_held_up_by_a_peer_that_does_not_read(monkeypatch):
    monkeypatch.setattr(stream_module, "CLOSE_SECONDS", 0.1)
    service = Service()
    async with serving(service) as (server, endpoint), connected(endpoint):
        peer = await RawPeer.connect(endpoint.host, endpoint.port)
        session = await peer.handshake()
        peer.writer.transport.pause_reading()
        peer.send(frames.submit(session, 1))
        await until(lambda: service.operations)
        service.operations[0].complete(b'"' + b"x" * (16 << 20) + b'"')
        async with asyncio.timeout(4):
            await server.close()
        peer.close()


async def test_abort_connection_loses_that_connection_only():
    service = Service()
    async with (
        serving(service) as (_, endpoint),
        connected(endpoint) as first,
        connected(endpoint) as second,
    ):
        lost, kept = Recorder(), Recorder()
        first.submit(b"first", lost)
        second.submit(b"second", kept)
        await until(lambda: len(service.operations) == 2)
        [doomed] = [o for o in service.operations if o.payload == b"first"]
        [healthy] = [o for o in service.operations if o.payload == b"second"]
        doomed.abort_connection()
        await until(lambda: lost.terminal)
        assert lost.terminal.kind is TerminalKind.LOST
        healthy.complete(b"{}")
        await until(lambda: kept.terminal)
        assert kept.terminal.kind is TerminalKind.RESULT


# --- capacity -------------------------------------------------------------------------------------


async def test_capacity_counts_the_operations_of_every_connection():
    service = Service()
    watcher = Listener()
    async with (
        serving(service) as (server, endpoint),
        connected(endpoint, listener=watcher),
        connected(endpoint) as busy,
    ):
        server.set_capacity(3)
        await until(lambda: watcher.pressure == [(3, 0, 0)])
        for _ in range(3):
            busy.submit(PAYLOAD, Recorder())
        await until(lambda: watcher.pressure[-1][:2] == (0, 2))  # full: hard pressure
        service.operations[0].complete(b"{}")
        await until(lambda: watcher.pressure[-1] == (1, 0, 0))


async def test_a_new_client_learns_the_capacity():
    service = Service()
    watcher = Listener()
    async with serving(service) as (server, endpoint):
        server.set_capacity(7)
        async with connected(endpoint, listener=watcher):
            await until(lambda: watcher.pressure == [(7, 0, 0)])


async def test_a_draining_server_reports_no_free_slots():
    service = Service()
    watcher = Listener()
    async with (
        serving(service) as (server, endpoint),
        connected(endpoint, listener=watcher) as client,
    ):
        server.set_capacity(1)
        client.submit(PAYLOAD, Recorder())
        await until(lambda: watcher.pressure and watcher.pressure[-1][0] == 0)
        closing = asyncio.create_task(server.close(drain_timeout=10))
        await until(lambda: watcher.drains)
        service.operations[0].complete(b"{}")  # its slot is free, and not on offer
        await closing
        await until(lambda: watcher.lost)
        assert watcher.pressure[-1][0] in (0, None)


async def test_without_a_capacity_nothing_is_reported():
    watcher = Listener()
    async with serving(echo) as (_, endpoint), connected(endpoint, listener=watcher) as client:
        await client.request(PAYLOAD)
        await client.request(PAYLOAD)
        assert watcher.pressure == []
