"""Flow control, hostile peers, and what a link does with frames it refuses."""

import asyncio
import gc
import json

import pytest

from nnrp_backend.client.link import ClientLink
from nnrp_backend.protocol.config import ClientConfig
from nnrp_backend.server import NnrpServer
from nnrp_backend.transport import stream as stream_module
from nnrp_backend.transport.memory import connect_pair
from nnrp_backend.transport.stream import HIGH_WATER
from tests.support import frames
from tests.support.endpoints import Recorder, Service, connected, echo, serving
from tests.support.frames import RawPeer
from tests.support.waiting import turns, until

PAYLOAD = b'{"n":1}'


class Producer:
    """Sends numbered events as fast as readiness allows, then a result."""

    def __init__(self, operation, count, window):
        self.operation = operation
        self.count = count
        operation.handler = self
        operation.set_credit(window)
        self.task = asyncio.create_task(self.run())

    async def run(self):
        for number in range(self.count):
            await self.operation.wait_ready()
            self.operation.send_event(b"%d" % number)
            await asyncio.sleep(0)
        self.operation.complete(b"all")

    def on_cancel(self, reason, hard):
        self.task.cancel()
        self.operation.drop(3)


def numbers(count):
    return [b"%d" % number for number in range(count)]


# --- credit ---------------------------------------------------------------------------------------


async def test_a_stalled_reader_stops_its_producer_and_nobody_else():
    """The bound is the window while nothing is granted, twice the window with one grant racing."""
    window, count = 8, 100
    producers = []

    def service(operation):
        producers.append(Producer(operation, count, window))

    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        stalled, free = Recorder(), Recorder()
        stuck = client.submit(PAYLOAD, stalled)
        await until(lambda: len(stalled.events) == window)

        class Granting(Recorder):
            def on_events(self, bodies):
                super().on_events(bodies)
                running.grant(window)

        free = Granting()
        running = client.submit(PAYLOAD, free)
        await until(lambda: free.terminal)
        assert free.events == numbers(count)
        assert len(stalled.events) == window
        assert producers[0].operation.events_sent == window
        assert not producers[0].operation.ready

        stuck.grant(window)
        await until(lambda: len(stalled.events) == 2 * window)
        await turns(20)
        assert producers[0].operation.events_sent == 2 * window

        # Granting again, half a window at a time, brings all of it, in order, and the end.
        while not stalled.terminal:
            seen = len(stalled.events)
            stuck.grant(window)
            await until(lambda seen=seen: len(stalled.events) > seen or stalled.terminal)
        assert stalled.events == numbers(count)
        assert stalled.terminal.body == b"all"


async def test_a_grant_that_races_events_at_most_doubles_the_window():
    window = 8
    producers = []

    def service(operation):
        producers.append(Producer(operation, 100, window))

    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation = client.submit(PAYLOAD, recorder)
        operation.grant(window)  # before a single event was read
        await until(lambda: len(recorder.events) >= window)
        await turns(50)
        assert len(recorder.events) <= 2 * window
        assert not producers[0].operation.ready


async def test_the_end_costs_no_credit():
    service = Service()
    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        done, dropped = Recorder(), Recorder()
        for recorder in (done, dropped):
            client.submit(PAYLOAD, recorder)
        await until(lambda: len(service.operations) == 2)
        for operation in service.operations:
            operation.set_credit(1)
            operation.send_event(b"last")
            assert not operation.ready
        service.operations[0].complete(b"{}")
        service.operations[1].drop(4)
        await until(lambda: done.terminal and dropped.terminal)


async def test_a_cancel_gets_through_to_a_stalled_operation():
    producers = []

    def service(operation):
        producers.append(Producer(operation, 100, 2))

    async with serving(service) as (_, endpoint), connected(endpoint) as client:
        recorder = Recorder()
        operation = client.submit(PAYLOAD, recorder)
        await until(lambda: len(recorder.events) == 2)
        operation.cancel()
        await until(lambda: recorder.terminal)
        assert recorder.terminal.drop_reason == 3


async def test_large_bodies_both_ways_at_once():
    """Both ends read while they write: neither waits for the other to make room."""
    body = b"x" * (8 * 1024 * 1024)
    async with serving(echo) as (_, endpoint), connected(endpoint) as client:
        async with asyncio.timeout(30):
            terminals = await asyncio.gather(*(client.request(body) for _ in range(4)))
        assert all(terminal.body == body for terminal in terminals)


# --- write pauses ---------------------------------------------------------------------------------


async def linked(service):
    server = NnrpServer(service)
    client = ClientLink(ClientConfig(), cancel_grace=1.0, listener=None)
    near, _ = connect_pair(client, server.accept())
    await client.ready
    return client, server, near


def submit(client, recorder):
    return client.submit(
        client.session, PAYLOAD, recorder, deadline_unix_ms=None, priority=None, trace=None
    )


async def test_a_peer_that_does_not_read_pauses_producers_but_is_still_heard():
    service = Service()
    client, server, near = await linked(service)
    recorder, other = Recorder(), Recorder()
    submit(client, recorder)
    await until(lambda: service.operations)
    [served] = service.operations
    near.pause_reading()
    sent = 0
    while served.ready:
        served.send_event(b"x" * 1024)
        sent += 1
        await turns()
    assert sent * 1024 < HIGH_WATER + 4096
    waiting = asyncio.create_task(served.wait_ready())
    # Submits and cancels are read while writes wait.
    second = submit(client, other)
    await until(lambda: len(service.operations) == 2)
    second.cancel()
    await until(lambda: service.events[1].cancels)
    assert not waiting.done()
    near.resume_reading()
    async with asyncio.timeout(5):
        await waiting
    await until(lambda: len(recorder.events) == sent and other.terminal)
    client.abort()
    await server.close()


async def test_a_result_is_sent_even_while_writes_are_paused():
    service = Service()
    client, server, near = await linked(service)
    recorder = Recorder()
    submit(client, recorder)
    await until(lambda: service.operations)
    near.pause_reading()
    service.operations[0].send_event(b"x" * (HIGH_WATER + 1))
    await turns()
    assert not service.operations[0].ready
    service.operations[0].complete(b"done")
    near.resume_reading()
    await until(lambda: recorder.terminal)
    assert recorder.terminal.body == b"done"
    client.abort()
    await server.close()


async def test_a_flood_of_probes_without_reading_costs_the_connection(monkeypatch):
    monkeypatch.setattr(stream_module, "CLOSE_SECONDS", 0.02)
    client, server, near = await linked(Service())
    near.pause_reading()
    probe = frames.packet(frames.PROBE, bytes(16))
    for _ in range(20):
        near.write(probe * 500)
        await turns()
    await until(lambda: server.connections == 0)
    assert client.core.counters.protocol_errors == 0
    client.abort()
    await server.close()


async def test_results_do_not_pile_up_for_a_peer_that_does_not_read(monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_UNSENT_BYTES", 1024 * 1024)
    service = Service()
    client, server, near = await linked(service)
    recorders = [Recorder() for _ in range(3)]
    for recorder in recorders:
        submit(client, recorder)
    await until(lambda: len(service.operations) == 3)
    near.pause_reading()
    for operation in service.operations:
        operation.complete(b"x" * 400_000)
    near.resume_reading()
    await until(lambda: all(recorder.terminal for recorder in recorders))
    kinds = [(recorder.terminal.kind, recorder.terminal.drop_reason) for recorder in recorders]
    assert kinds == [("result", 0), ("result", 0), ("dropped", 4)]
    client.abort()
    await server.close()


async def test_an_ended_operation_is_freed_without_the_garbage_collector():
    service = Service()
    client, server, _ = await linked(service)
    recorder = Recorder()
    operation = submit(client, recorder)
    await until(lambda: service.operations)
    service.operations[0].complete(b"{}")
    await until(lambda: recorder.terminal)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        service.operations.clear()
        service.events.clear()
        del operation
        gc.collect()
        kinds = {type(thing).__name__ for thing in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not kinds & {"Operation", "ClientOperation", "ServerOperation", "Recorder", "Events"}
    client.abort()
    await server.close()


async def test_repr_counts():
    service = Service()
    client, server, _ = await linked(service)
    submit(client, Recorder())
    await until(lambda: service.operations)
    link = service.operations[0]._link
    assert repr(link) == "<ServerLink memory [1 sessions, 1 in flight, 0 bytes unsent]>"
    client.abort()
    await server.close()


# --- hostile and odd peers ------------------------------------------------------------------------


@pytest.fixture
async def target():
    """A server under attack, an honest client beside the attacker, and a way to attack."""
    service = Service()
    attackers = []

    async def attack():
        peer = await RawPeer.connect(endpoint.host, endpoint.port)
        attackers.append(peer)
        return peer

    def route(operation):
        return echo(operation) if operation.payload == PAYLOAD else service(operation)

    async with (
        serving(route, max_in_flight=4, handshake_timeout=0.5) as (server, endpoint),
        connected(endpoint) as honest,
    ):
        yield server, service, attack
        assert (await honest.request(PAYLOAD)).body == PAYLOAD, "an honest client noticed"
        assert honest.counters.protocol_errors == 0
        for peer in attackers:
            peer.close()
        await until(lambda: server.connections == 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n" * 2,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(64),  # a TLS client
        b"\x00" * 200,
        b"NNRP" + b"\xff" * 60,
    ],
)
async def test_garbage_closes_its_own_connection(target, garbage):
    _, _, attack = target
    peer = await attack()
    peer.send(garbage)
    await peer.closed()


async def test_half_a_header_then_silence_is_given_up(target):
    _, _, attack = target
    peer = await attack()
    peer.send(frames.hello()[:20])
    await peer.closed()


async def test_a_silent_connection_is_given_up(target):
    _, _, attack = target
    peer = await attack()
    await peer.closed()


async def test_a_connection_may_wait_with_its_first_session(target):
    """The published client opens sessions when its application asks for one."""
    server, service, attack = target
    idle, patient = await attack(), await attack()
    patient.send(frames.hello())
    assert (await patient.read()).kind == frames.HELLO_ACK
    await idle.closed()  # the time for a hello is over
    patient.send(frames.session_open())
    answer = await patient.read()
    assert answer.kind == frames.OPEN_ACK
    patient.send(frames.submit(answer.session, 1, b'{"late":1}'))
    await until(lambda: service.operations)
    assert server.connections == 2


@pytest.mark.parametrize("after_handshake", [False, True])
async def test_a_packet_over_the_limit_closes_its_connection(target, after_handshake):
    _, _, attack = target
    peer = await attack()
    if after_handshake:
        await peer.handshake()
    body = 64 * 1024 * 1024 + 1
    peer.send(frames.HEADER.pack(b"NNRP", 1, 0, 0x10, 40, 0, 72, body, 1, 1, 0, 0, 0))
    await peer.closed()


async def test_a_frame_of_an_unknown_session_starts_nothing(target):
    _, service, attack = target
    peer = await attack()
    session = await peer.handshake()
    peer.send(frames.submit(session + 1000, 1))
    peer.send(frames.submit(session, 2, b'{"mine":1}'))
    await until(lambda: service.operations)
    assert [operation.id for operation in service.operations] == [2]


async def test_a_submit_flood_is_refused_one_by_one(target):
    """The limit is 4: each submit over it is answered with an error, and none of the four is."""
    _, service, attack = target
    peer = await attack()
    session = await peer.handshake()
    for operation in range(1, 51):
        peer.send(frames.submit(session, operation, b'{"flood":1}'))
    refused = {}
    while len(refused) < 46:
        packet = await peer.read()
        assert packet.kind == frames.RESULT
        refused[packet.frame] = json.loads(packet.body[56:])
    assert set(refused) == set(range(5, 51))
    assert {error["error"]["code"] for error in refused.values()} == {"backend_overload"}
    assert {error["type"] for error in refused.values()} == {"response.error"}
    assert [operation.id for operation in service.operations] == [1, 2, 3, 4]
    for operation in service.operations:
        operation.complete(b"{}")
    assert {(await peer.read()).frame for _ in range(4)} == {1, 2, 3, 4}


async def test_a_duplicate_operation_id_is_refused_and_the_first_lives(target):
    _, service, attack = target
    peer = await attack()
    session = await peer.handshake()
    peer.send(frames.submit(session, 7, b'{"first":1}'))
    peer.send(frames.submit(session, 7, b'{"second":1}', frame=8))
    refusal = await peer.read()
    assert (refusal.kind, refusal.frame) == (frames.RESULT, 8)
    assert json.loads(refusal.body[56:])["error"]["code"] == "duplicate_operation_id"
    service.operations[0].complete(b'{"ok":1}')
    answer = await peer.read()
    assert (answer.kind, answer.frame, answer.body[56:]) == (frames.RESULT, 7, b'{"ok":1}')


async def test_controls_of_an_operation_that_ended_within_the_same_read(target):
    _, _, attack = target
    peer = await attack()
    session = await peer.handshake()
    # Answered at once, in the call that hands the operation over.
    peer.send(frames.submit(session, 1, PAYLOAD) + frames.cancel(session, 1))
    assert [(await peer.read()).kind for _ in range(2)] == [frames.TRACE, frames.DROP]
    peer.send(frames.submit(session, 2, PAYLOAD))
    assert (await peer.read()).frame == 2


async def test_a_bare_json_body_is_taken_and_answered_in_the_canonical_form(target):
    _, service, attack = target
    peer = await attack()
    session = await peer.handshake()
    peer.send(frames.submit_bare(session, 1, b'{"bare":1}'))
    await until(lambda: service.operations)
    assert service.operations[0].payload == b'{"bare":1}'
    service.operations[0].complete(b'{"done":1}')
    answer = await peer.read()
    assert answer.body == frames.typed(b'{"done":1}')


async def test_an_unreadable_submit_is_answered_with_an_error(target):
    _, service, attack = target
    peer = await attack()
    session = await peer.handshake()
    broken = frames.submit(session, 1)[:-2] + b"\xff\xfe"
    peer.send(broken.replace(frames.PRELUDE.pack(0, 0, 24, 2, 0, 0, 0, 0), bytes(31) + b"\x01"))
    answer = await peer.read()
    assert (answer.kind, answer.frame) == (frames.RESULT, 1)
    assert json.loads(answer.body[56:])["error"]["code"] == "invalid_submit_body"
    assert service.operations == []


async def test_a_cancel_is_answered_as_the_published_suite_wants_it(target):
    """A session-scoped TRACE_CONTEXT, then RESULT_DROP_REASON 3 on the operation's frame."""
    _, service, attack = target
    peer = await attack()
    session = await peer.handshake()
    peer.send(frames.submit(session, 5, b'{"long":1}'))
    await until(lambda: service.operations)
    peer.send(frames.cancel(session, 5))
    trace, drop = await peer.read(), await peer.read()
    assert (trace.kind, trace.frame, trace.session) == (frames.TRACE, 0, session)
    assert (drop.kind, drop.frame, drop.session) == (frames.DROP, 5, session)
    assert frames.CONTROL.unpack(drop.meta)[2] == 3


@pytest.mark.parametrize("phase", ["connected", "hello", "session", "submitted", "streaming"])
async def test_disconnecting_in_any_phase_leaves_nothing_behind(target, phase):
    server, service, attack = target
    peer = await attack()
    if phase == "hello":
        peer.send(frames.hello())
        await peer.read()
    elif phase != "connected":
        session = await peer.handshake()
        if phase != "session":
            peer.send(frames.submit(session, 1, b'{"x":1}'))
            await until(lambda: service.operations)
        if phase == "streaming":
            service.operations[0].send_event(b"one")
            assert (await peer.read()).kind == frames.PARTIAL
    peer.close()
    await until(lambda: server.connections == 1)
    assert server.in_flight == 0
    if service.operations:
        assert service.events[0].cancels == [(6, True)]
        assert service.events[0].done_when_cancelled
