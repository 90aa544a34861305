"""What is not HTTP: refused in JSON by both parsers, and never inside another answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import h11
import httptools
import pytest

from gateway.http.direct import EXTENSION, DirectWriter, direct_protocol
from gateway.http.refusals import MAX_HEAD, HeadTooLargeError, refusal
from tests.support.http_server import ServerThread, request


async def hello(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello", "more_body": False})


@pytest.fixture(scope="module", params=["httptools", "h11"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    protocol = direct_protocol(request.param)
    with ServerThread(hello, http=protocol, h11_max_incomplete_event_size=MAX_HEAD) as thread:
        yield thread


def refused(server: ServerThread, data: bytes) -> tuple[int, dict[str, Any]]:
    """Send `data`; return the status and the error of the JSON answer that must follow."""
    server.app = hello
    with server.connect() as client:
        try:
            client.sock.sendall(data)
        except ConnectionError:
            pass  # refused before its end
        status, headers, body = client.read_response()
        assert headers["content-type"] == "application/json"
        assert headers["connection"] == "close"
        assert headers["x-request-id"].startswith("req_")
        assert client.read_to_end() == b""
        error: dict[str, Any] = json.loads(body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return status, error


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: ten\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_no_request(server: ServerThread, data: bytes) -> None:
    status, error = refused(server, data)
    assert status in (400, 405)  # httptools reads methods letter by letter
    assert error["type"] == "invalid_request_error"


def test_a_head_without_end(server: ServerThread) -> None:
    data = b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 10 * MAX_HEAD
    status, error = refused(server, data)
    assert (status, error["code"]) == (431, "head_too_large")


@pytest.mark.parametrize(
    "lines",
    [b"x-long: %b\r\n" % (b"x" * MAX_HEAD), b"".join(b"x-%d: 1\r\n" % n for n in range(8000))],
    ids=["one long", "many short"],
)
def test_a_head_that_ends_above_the_bound(lines: bytes) -> None:
    # h11 bounds what is incomplete; httptools bounds nothing, and such a head is one read.
    with ServerThread(hello, http=direct_protocol("httptools")) as server:
        status, _ = refused(server, b"GET / HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n")
    assert status == 431


def test_a_large_head_within_the_bound_is_served(server: ServerThread) -> None:
    server.app = hello
    with server.connect() as client:
        for _ in range(3):  # the count starts over
            client.send("GET", headers=f"x-long: {'x' * 40_000}\r\n")
            assert client.read_response()[2] == b"hello"


def test_a_large_body_is_no_large_head(server: ServerThread) -> None:
    server.app = hello
    with server.connect() as client:
        for _ in range(2):
            client.send("POST", body=b"x" * (4 * MAX_HEAD))
            assert client.read_response()[2] == b"hello"


def test_garbage_behind_a_request_does_not_land_in_its_answer(server: ServerThread) -> None:
    writers: list[DirectWriter] = []
    lost: list[bool] = []

    class Listener:
        def on_pause(self) -> None: ...
        def on_resume(self) -> None: ...
        def on_lost(self) -> None:
            lost.append(True)

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        writer = scope["extensions"][EXTENSION]
        writers.append(writer)
        assert writer.listen(Listener())
        await send({"type": "http.response.start", "status": 200, "headers": [], EXTENSION: writer})
        writer.write(b"one")

    server.app = stream
    with server.connect() as client:
        client.send("POST")
        client.read_head()
        assert client.read_chunk() == b"one"
        client.sock.sendall(b"\x00garbage\r\n\r\n")
        if server.server.config.http.__name__ == "DirectHttpToolsProtocol":
            assert client.read_to_end() == b""
            assert lost == [True]
        else:  # h11 looks at it when the answer has ended
            server.event_loop.call_soon_threadsafe(writers[0].finish, b"two")
            assert client.read_chunks() == [b"two"]
            assert client.read_response()[0] == 400


@pytest.mark.parametrize("stream", [True, False], ids=["chunks", "one piece"])
def test_http_1_0_gets_its_body_without_chunks(server: ServerThread, stream: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert EXTENSION not in scope.get("extensions", {})
        headers = [] if stream else [(b"content-length", b"6")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server.app = app
    with server.connect() as client:
        client.sock.sendall(request("GET", version="1.0"))
        _, headers = client.read_head()
        assert "transfer-encoding" not in headers
        assert client.read_to_end() == b"onetwo"


@pytest.mark.parametrize(
    ("exception", "status"),
    [
        (None, 400),
        (httptools.HttpParserError("?"), 400),
        (httptools.HttpParserInvalidMethodError("?"), 405),
        (HeadTooLargeError(), 431),
        (h11.RemoteProtocolError("?"), 400),
        (h11.RemoteProtocolError("?", error_status_hint=431), 431),
    ],
)
def test_each_exception_has_its_status(exception: BaseException | None, status: int) -> None:
    assert refusal(exception).status == status


def test_what_a_callback_raised_is_found() -> None:
    wrapped = httptools.HttpParserCallbackError("?")
    wrapped.__context__ = HeadTooLargeError()
    assert refusal(wrapped).status == 431
