"""Our client against the published runtime's server (`nnrp-py`, in a child process)."""

import asyncio
import json
import socket

import pytest

from nnrp_backend.client import TerminalKind
from nnrp_backend.protocol.constants import DropReason
from tests.support.endpoints import Listener, Recorder, connected
from tests.support.native import native_server
from tests.support.waiting import until

MIB = 1024 * 1024


@pytest.fixture(params=["tcp", "unix"])
def url(request, tmp_path):
    if request.param == "unix":
        return f"unix://{tmp_path}/w.sock"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def order(**orders):
    return json.dumps(orders).encode()


async def test_streaming(url):
    async with native_server(url) as peer, connected(url) as client:
        assert not client.peer_is_ours
        recorder = Recorder()
        operation = client.submit(order(n=5), recorder)
        await until(lambda: recorder.terminal, timeout=20)
        assert [json.loads(body) for body in recorder.events] == [
            {"operation": operation.id, "i": index} for index in range(5)
        ]
        assert recorder.terminal.kind is TerminalKind.RESULT
        assert recorder.terminal.status_code == 200
        assert json.loads(recorder.terminal.body)["type"] == "response.completed"
        submit = await peer.event("submit")
        # The child read the body with the package's own codec: it was in the canonical form.
        assert (submit["operation"], submit["frame"]) == (operation.id, operation.frame_id)
        assert submit["body"].encode() == order(n=5)


async def test_eight_operations_side_by_side(url):
    async with native_server(url), connected(url) as client:
        recorders = [Recorder() for _ in range(8)]
        operations = [client.submit(order(n=40), recorder) for recorder in recorders]
        await until(lambda: all(recorder.terminal for recorder in recorders), timeout=20)
        for operation, recorder in zip(operations, recorders, strict=True):
            assert [json.loads(body) for body in recorder.events] == [
                {"operation": operation.id, "i": index} for index in range(40)
            ]
        assert client.counters.late_events == 0


async def test_cancel_in_mid_stream(url):
    async with native_server(url) as peer, connected(url) as client:
        recorder = Recorder()
        operation = client.submit(order(n=100_000, delay_ms=1), recorder)
        await until(lambda: len(recorder.events) >= 3, timeout=20)
        operation.cancel()
        await until(lambda: recorder.terminal, timeout=20)
        assert recorder.terminal.kind is TerminalKind.DROPPED
        assert recorder.terminal.drop_reason == DropReason.PEER_CANCELLED
        assert recorder.terminal.diagnostic == "stop"
        await peer.event("dropped", operation=operation.id)
        assert (await client.request(order(n=1))).kind is TerminalKind.RESULT


async def test_an_8_mib_body_each_way(url):
    async with native_server(url) as peer, connected(url) as client:
        payload = order(result_bytes=8 * MIB) + b" " * (8 * MIB)
        terminal = await client.request(payload)
        assert terminal.body == b'{"type":"response.completed","pad":"%s"}' % (b"p" * 8 * MIB)
        assert (await peer.event("submit"))["size"] == len(payload)


async def test_a_killed_server(url):
    listener = Listener()
    async with native_server(url) as peer, connected(url, listener=listener) as client:
        recorders = [Recorder(), Recorder()]
        for recorder in recorders:
            client.submit(order(hold=1), recorder)
        await peer.wait_for(lambda report: report["event"] == "submit", count=2)
        peer.kill()
        await until(lambda: listener.lost)
        for recorder in recorders:
            [terminal] = recorder.terminals
            assert terminal.kind is TerminalKind.LOST
        assert not client.connected


async def test_a_crash_before_the_first_event(url):
    async with native_server(url), connected(url) as client:
        async with asyncio.timeout(20):
            terminal = await client.request(order(crash=1))
        assert terminal.kind is TerminalKind.LOST


async def test_a_server_with_a_smaller_limit_is_asked_again_with_its_own(url):
    async with (
        native_server(url, max_in_flight=6, credit=2),
        connected(url, max_in_flight=1024) as client,
    ):
        assert client.granted_in_flight == 6
        terminals = await asyncio.gather(*(client.request(order(n=3)) for _ in range(6)))
        assert {terminal.kind for terminal in terminals} == {TerminalKind.RESULT}


async def test_probes_while_streaming(url):
    listener = Listener()
    async with (
        native_server(url),
        connected(url, listener=listener, probe_interval=0.05) as client,
    ):
        recorder = Recorder()
        client.submit(order(n=60, delay_ms=5), recorder)
        await until(lambda: recorder.terminal and len(listener.probes) >= 3, timeout=20)
        assert len(recorder.events) == 60
        assert None not in listener.probes


async def test_a_server_that_does_not_answer_the_negotiation_grants_nothing(url):
    async with native_server(url) as peer, connected(url) as client:
        await peer.event("runtime", type="CAPABILITY_NEGOTIATION", frame=0)
        recorder = Recorder()
        operation = client.submit(order(n=2, hold=1), recorder)
        await until(lambda: len(recorder.events) == 2, timeout=20)
        operation.grant(10)
        operation.set_priority(2)
        await peer.event("submit")
        assert client.tokens == frozenset()
        operation.cancel()
        await until(lambda: recorder.terminal, timeout=20)
        kinds = [report["type"] for report in peer.seen("runtime")]
        assert kinds == ["CAPABILITY_NEGOTIATION", "CANCEL"]


async def test_a_server_that_grants_credit_hears_one_more_for_its_terminal(url):
    async with native_server(url, negotiate=True) as peer, connected(url) as client:
        await until(lambda: client.tokens)
        assert "control.credit_backpressure" in client.tokens
        recorder = Recorder()
        operation = client.submit(order(n=1, hold=1), recorder)
        await until(lambda: recorder.events, timeout=20)
        operation.grant(10)
        report = await peer.event("runtime", type="CREDIT_UPDATE")
        assert report["frame"] == operation.frame_id
        assert report["window"] == 11
        operation.cancel()
        await until(lambda: recorder.terminal, timeout=20)


async def test_an_orderly_close(url):
    async with native_server(url) as peer, connected(url) as client:
        await client.request(order(n=1))
        await client.close()
        await peer.event("session_closed")
