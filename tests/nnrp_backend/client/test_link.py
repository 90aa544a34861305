"""What a link does that no verb of the client shows: joined writes, the mark, foreign peers."""

import asyncio
import gc
import logging
import struct

from nnrp_backend.client.link import ClientLink
from nnrp_backend.protocol.config import ClientConfig, ServerConfig
from nnrp_backend.server import NnrpServer
from nnrp_backend.transport.memory import connect_pair
from tests.support.endpoints import Recorder, Service, echo
from tests.support.frames import packet
from tests.support.waiting import turns, until


async def linked(service, *, server_config=None, **client_options):
    """A client link and a server joined in memory."""
    server = NnrpServer(service, config=server_config)
    client = ClientLink(ClientConfig(**client_options), cancel_grace=1.0, listener=None)
    near, far = connect_pair(client, server.accept())
    await client.ready
    return client, server, near, far


def submit(client, recorder, payload=b"{}"):
    return client.submit(
        client.session, payload, recorder, deadline_unix_ms=None, priority=None, trace=None
    )


async def test_giving_up_before_the_session_is_nobodys_error(caplog):
    """A connect that is cancelled right after the dial: nobody will ask how the handshake ended."""
    client = ClientLink(ClientConfig(), cancel_grace=1.0, listener=None)
    connect_pair(client, asyncio.Protocol())
    client.leaving = True
    client.abort()
    await client.closed
    del client
    gc.collect()
    await turns()
    assert caplog.records == []


async def test_submits_of_one_turn_leave_in_one_write():
    service = Service()
    client, server, near, _ = await linked(service)
    before = near.writes
    for _ in range(10):
        submit(client, Recorder())
    await until(lambda: len(service.operations) == 10)
    assert near.writes == before + 1
    client.abort()
    await server.close()


async def test_events_of_one_turn_for_all_operations_leave_in_one_write():
    service = Service()
    client, server, _, far = await linked(service)
    recorders = [Recorder() for _ in range(16)]
    for recorder in recorders:
        submit(client, recorder)
    await until(lambda: len(service.operations) == 16)
    step = asyncio.Event()

    async def produce(operation):
        await step.wait()
        operation.send_event(b"token")

    tasks = [asyncio.create_task(produce(operation)) for operation in service.operations]
    await turns()
    before = far.writes
    step.set()
    await asyncio.gather(*tasks)
    await until(lambda: all(recorder.events == [b"token"] for recorder in recorders))
    assert far.writes == before + 1
    client.abort()
    await server.close()


async def test_cancels_and_grants_from_one_read_leave_in_one_write():
    service = Service(obey=False)
    client, server, near, _ = await linked(service)
    operations = []

    class Granting(Recorder):
        def on_events(self, bodies):
            super().on_events(bodies)
            operations[0].grant(10)
            operations[1].cancel()

    operations.extend(submit(client, Granting()) for _ in range(2))
    await until(lambda: len(service.operations) == 2)
    before = near.writes
    for operation in service.operations:
        operation.send_event(b"x")
    await until(lambda: service.events[1].cancels)
    assert near.writes == before + 1
    client.abort()
    await server.close()


async def test_nothing_is_negotiated_between_our_own():
    client, server, near, _ = await linked(echo)
    assert client.core.peer_is_ours
    # CLIENT_HELLO and SESSION_OPEN, and nothing else.
    assert near.writes == 2
    client.abort()
    await server.close()


async def test_a_server_that_breaks_the_protocol_is_logged_and_survived(caplog):
    client, server, _, far = await linked(echo)
    with caplog.at_level(logging.WARNING):
        # PROGRESS whose metadata is too short, for the open session.
        far.write(packet(0x37, b"short", b"", session=client.session.session_id, frame=1))
        await until(lambda: client.core.counters.protocol_errors == 1)
    assert "broke the protocol" in caplog.text
    recorder = Recorder()
    submit(client, recorder, b"still here")
    await until(lambda: recorder.terminal)
    assert recorder.terminal.body == b"still here"
    client.abort()
    await server.close()


async def test_a_protocol_error_is_logged_once_per_connection(caplog):
    client, server, _, far = await linked(echo)
    for _ in range(5):
        far.write(packet(0x37, b"short", b"", session=client.session.session_id, frame=1))
    await until(lambda: client.core.counters.protocol_errors == 5)
    assert caplog.text.count("broke the protocol") == 1
    client.abort()
    await server.close()


async def test_an_error_about_no_operation_is_logged(caplog):
    client, server, _, far = await linked(echo)
    session = client.session.session_id
    text = b"out of memory"
    # ERROR of session scope, not fatal: code INTERNAL_ERROR.
    far.write(
        packet(0x06, struct.pack("<8I", 0x0C, 1, 0, 0, session, 0, 0, len(text)), text, session)
    )
    await until(lambda: caplog.records)
    assert caplog.messages == ["memory reported an error: out of memory"]
    recorder = Recorder()
    submit(client, recorder)
    await until(lambda: recorder.terminal)
    client.abort()
    await server.close()


async def test_leaving_a_connection_that_has_just_ended():
    """The worker's last bytes are read, its socket is not gone yet: nothing is sent any more."""
    client, server, near, _ = await linked(echo)
    client.core.receive_eof()
    before = near.writes
    client.leaving = True
    client.close_session()
    await client.closed
    assert near.writes == before
    await server.close()


async def test_an_operation_scoped_grant_reaches_a_foreign_server_one_larger():
    """Its terminal costs it a credit."""
    service = Service()
    client, server, _, _ = await linked(service, server_config=ServerConfig(tag=0))
    await until(lambda: client.session.tokens)
    operation = submit(client, Recorder())
    await until(lambda: service.operations)
    operation.grant(5)
    await until(lambda: service.operations[0]._core.credit == 6)
    client.abort()
    await server.close()
