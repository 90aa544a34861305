"""Clients that leave, workers that die, and garbage on a worker's port, with real processes.

Work that nobody waits for is stopped, what was sent is not lost, and others never notice.
"""

import json
import os
import signal
import socket
import struct
from urllib.parse import urlsplit

import pytest

from tests.support.http_server import RawClient
from tests.support.processes import running
from tests.support.stack import Stack, chat_request, check_error, sse, until

MIB = 1024 * 1024

# --- clients that leave --------------------------------------------------------------------------


def leave(client: RawClient, *, abruptly: bool) -> None:
    """Close a connection, with RST in place of FIN when abruptly."""
    if abruptly:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize(
    ("script", "stream", "phase"),
    [
        ("/sim first_ms=60000", True, "first_event"),
        ("/sim hang=1", True, "first_event"),
        ("/sim tokens=10000 delay_ms=20", True, "streaming"),
        ("/sim tokens=10000 delay_ms=20", False, "whole"),
        ("/sim hang=1", False, "whole"),
    ],
)
def test_the_work_of_a_client_that_leaves_is_stopped(
    system: Stack, script: str, stream: bool, phase: str, abruptly: bool
) -> None:
    before = system.gateway_metric("nnrp_gateway_cancels_total", phase=phase)

    client = system.chat(script, stream=stream)
    until(lambda: system.worker_metric("nnrp_backend_engine_running") == 1)
    if phase == "streaming":
        client.read_head()
        client.read_chunk()
    leave(client, abruptly=abruptly)

    system.wait_idle()
    assert system.gateway_metric("nnrp_gateway_cancels_total", phase=phase) == before + 1
    assert system.gateway_metric("nnrp_gateway_unanswered_cancels_total") == 0


def test_many_clients_that_leave_at_once(system: Stack) -> None:
    clients = [system.chat("/sim tokens=10000 delay_ms=20", stream=True) for _ in range(50)]
    for client in clients:
        client.read_head()
    assert system.worker_metric("nnrp_backend_engine_running") == 50

    for number, client in enumerate(clients):
        leave(client, abruptly=bool(number % 2))

    system.wait_idle()


# --- workers that die, are absent, or are lied to ------------------------------------------------


def test_a_worker_killed_in_mid_stream(own_system: Stack) -> None:
    (worker,) = own_system.workers
    with own_system.chat("/sim tokens=10000 delay_ms=10", stream=True) as client:
        status, headers = client.read_head()
        chunks = [client.read_chunk() for _ in range(10)]
        worker.kill()
        chunks += client.read_chunks()

    assert (status, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    *tokens, error, done = sse(b"".join(chunks))
    assert done == "[DONE]"
    assert json.loads(error)["error"]["type"] == "server_error"
    texts = [json.loads(token)["choices"][0]["delta"].get("content", "") for token in tokens]
    # Every token that was sent has come, whole and in order.
    assert "".join(texts).split() == [f"tok{n}" for n in range(len("".join(texts).split()))]
    assert len(tokens) >= 10
    until(lambda: own_system.gateway_metric("nnrp_gateway_requests_in_flight") == 0)
    assert "Traceback" not in own_system.gateway.log


def test_a_worker_killed_before_its_answer(own_system: Stack) -> None:
    (worker,) = own_system.workers
    with own_system.chat("/sim hang=1") as client:
        until(lambda: own_system.worker_metric("nnrp_backend_engine_running") == 1)
        worker.kill()
        answer = client.read_response()

    assert answer[0] in (502, 503)
    check_error(answer, answer[0], type="server_error")


def test_requests_after_the_only_worker_is_gone(own_system: Stack) -> None:
    own_system.workers[0].kill()
    until(
        lambda: (
            own_system.gateway_metric("nnrp_gateway_worker_requests_in_flight") == 0
            and own_system.ask("GET", "/health")[0] == 200
        )
    )

    for stream in (False, True):
        with own_system.chat("hello", stream=stream) as client:
            answer = client.read_response()
        check_error(answer, 503, type="server_error")
        assert int(answer[1]["retry-after"]) >= 1
    # What it served is still known.
    assert own_system.ask("GET", "/v1/models")[0] == 200


def test_a_worker_that_never_was() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        gateway = running(
            "nnrp-gateway",
            *("serve", "--port", port, "--admin-port", "0"),
            *("--worker", f"tcp://127.0.0.1:{taken.getsockname()[1]}"),
            ready="",
        )
        with gateway:
            until(lambda: _listens(port))
            with RawClient(port) as client:
                client.sock.sendall(chat_request("hello"))
                answer = client.read_response()
            with RawClient(port) as client:
                client.send("GET", "/v1/models")
                models = client.read_response()

    check_error(answer, 503, type="server_error", code="no_backend")
    assert int(answer[1]["retry-after"]) >= 1
    check_error(models, 503, type="server_error", code="no_backend")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_stopped_worker_does_not_stop_the_gateway(own_system: Stack) -> None:
    worker = own_system.workers[0]
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        with own_system.chat("hello"):
            # It hangs, as its worker does; the gateway does not.
            assert own_system.ask("GET", "/health")[0] == 200
            assert own_system.ask("GET", "/v1/models")[0] == 200
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    own_system.wait_idle()
    own_system.check_well()


HEADER = struct.Struct("<4sBBBBIIIIIHHQ")


def packet(kind: int, *, meta: int = 0, body: int = 0, magic: bytes = b"NNRP") -> bytes:
    """Write a common header that announces this much, and nothing after it."""
    return HEADER.pack(magic, 1, 0, kind, 40, 0, meta, body, 1, 1, 0, 0, 0)


GARBAGE = [
    b"",
    b"\x00" * 4096,
    os.urandom(65536),
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"NNRP",
    packet(0x01, magic=b"NRNP"),
    packet(0x01, meta=2**32 - 1, body=2**32 - 1),
    packet(0x01, meta=64, body=64 * MIB),
    packet(0x10, meta=72) + bytes(72),
    packet(0x12, meta=64) + bytes(64),
    packet(0x30, meta=32) + bytes(32),
    packet(0xFF, meta=8) + bytes(8),
    packet(0x01)[:20],
]


def test_garbage_on_the_workers_port_while_streams_run(system: Stack) -> None:
    address = urlsplit(system.endpoints[0])
    streams = [system.chat("/sim tokens=100 delay_ms=10", stream=True) for _ in range(8)]
    for stream in streams:
        stream.read_head()

    strangers = []
    for garbage in GARBAGE * 3:
        stranger = socket.create_connection((address.hostname, address.port))
        strangers.append(stranger)
        stranger.settimeout(10)
        stranger.sendall(garbage)
    answers = [b"".join(stream.read_chunks()) for stream in streams]
    for connection in (*streams, *strangers):
        connection.close()

    for answer in answers:
        *chunks, done = sse(answer)
        text = "".join(json.loads(c)["choices"][0]["delta"].get("content") or "" for c in chunks)
        assert text.split() == [f"tok{n}" for n in range(100)]
        assert done == "[DONE]"
    # The gateway's own connection is the only one left.
    until(lambda: system.worker_metric("nnrp_backend_connections") == 1)
    system.check_well()
