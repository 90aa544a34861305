"""Clients that do not go on, seen from raw sockets; time passes when the test says so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.http.direct import direct_protocol
from gateway.http.slow_requests import BODY_SECONDS, HEAD_SECONDS, SlowRequests
from tests.support.http_server import RawClient, ServerThread, request

HALF_BODY = request("POST", "/", b"x" * 100)[:-50]


class Watched:
    """A server and what looks at its connections."""

    def __init__(self, server: ServerThread) -> None:
        self.server = server
        self.connections = server.server.server_state.connections
        self.slow = SlowRequests(self.connections)

    def look(self, now: float) -> None:
        server = self.server
        server.event_loop.call_soon_threadsafe(self.slow.look, now)

    def wait_for(self, reads: int) -> None:
        deadline = time.monotonic() + 5
        while [each.reads for each in self.connections] != [reads]:
            assert time.monotonic() < deadline, "it was not read"
            time.sleep(0.002)


async def swallow(scope: Any, receive: Any, send: Any) -> None:
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture(params=["httptools", "h11"])
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with ServerThread(swallow, http=direct_protocol(request.param)) as server:
        yield Watched(server)


def send(client: RawClient, watched: Watched, data: bytes, reads: int) -> None:
    client.sock.sendall(data)
    watched.wait_for(reads)


@pytest.mark.parametrize("parts", [[], [b"POST / HT"], [b"POST / HT", b"TP/1.1\r\nhost:"]])
def test_a_head_has_its_time(watched: Watched, parts: list[bytes]) -> None:
    with watched.server.connect() as client:
        watched.wait_for(0)
        watched.look(0.0)
        for number, part in enumerate(parts, 1):
            send(client, watched, part, number)
            watched.look(HEAD_SECONDS - 1)  # to go on does not help
        watched.look(HEAD_SECONDS)
        status, _, body = client.read_response()
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert client.read_to_end() == b""


def test_a_body_that_goes_on_may_take_long(watched: Watched) -> None:
    with watched.server.connect() as client:
        send(client, watched, HALF_BODY, 1)
        for number in range(2, 52):
            watched.look(number * (BODY_SECONDS - 1))
            send(client, watched, b"x", number)
        assert client.read_head()[0] == 204


def test_a_body_that_does_not_go_on_is_given_up(watched: Watched) -> None:
    with watched.server.connect() as client:
        send(client, watched, HALF_BODY, 1)
        watched.look(0.0)
        watched.look(BODY_SECONDS)
        assert client.read_to_end() == b""


def test_an_idle_connection_is_not_its_business(watched: Watched) -> None:
    with watched.server.connect() as client:
        client.sock.sendall(request("GET", "/"))
        assert client.read_head()[0] == 204
        watched.look(0.0)
        watched.look(10 * HEAD_SECONDS)
        client.sock.sendall(request("GET", "/"))
        assert client.read_head()[0] == 204
