"""The direct writer under real uvicorn servers, seen from raw sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware

from gateway.http.direct import EXTENSION, DirectWriter, direct_protocol
from tests.support.http_server import RawClient, ServerThread, request

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
VARIANTS = [(http, loop) for http in ("httptools", "h11") for loop in ("asyncio", "uvloop")]


@pytest.fixture(scope="module", params=VARIANTS, ids="-".join)
def server(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    http, loop = request.param
    with ServerThread(http=direct_protocol(http), loop=loop) as thread:
        yield thread


@pytest.fixture(params=VARIANTS, ids="-".join)
def own_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerThread]]:
    """Start servers that a test shuts down itself."""
    http, loop = request.param
    threads: list[ServerThread] = []

    def start(app: Any, **config: Any) -> ServerThread:
        threads.append(ServerThread(app, http=direct_protocol(http), loop=loop, **config))
        return threads[-1].__enter__()

    yield start
    for thread in threads:
        thread.stop()


def wait_for(predicate: Callable[[], object], timeout: float = 5.0) -> None:
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.002)


class Recorder:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_pause(self) -> None:
        self.heard.append("pause")

    def on_resume(self) -> None:
        self.heard.append("resume")

    def on_lost(self) -> None:
        self.heard.append("lost")


class Stream(Recorder):
    """An application that streams detached: `on_attached` runs in the loop, then it returns."""

    def __init__(
        self,
        on_attached: Callable[[DirectWriter], None] = lambda writer: None,
        *,
        status: int = 200,
        headers: list[tuple[bytes, bytes]] = HEADERS,
    ) -> None:
        super().__init__()
        self.on_attached = on_attached
        self.status = status
        self.headers = headers
        self.writer: DirectWriter | None = None
        self.attached: list[bool] = []
        self.returned = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        self.writer = scope["extensions"][EXTENSION]
        assert self.writer.listen(self)
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": self.headers,
                EXTENSION: self.writer,
            }
        )
        self.attached.append(self.writer.attached)
        if self.writer.attached:
            self.on_attached(self.writer)
        else:
            self.writer.abandon()
            await send({"type": "http.response.body", "body": b"ordinary", "more_body": False})
        self.returned.set()


def later(*steps: Callable[[DirectWriter], None]) -> Callable[[DirectWriter], None]:
    """Run each step in a turn of the loop of its own, after the application has returned."""

    def start(writer: DirectWriter) -> None:
        loop = asyncio.get_running_loop()
        for number, step in enumerate(steps, 1):
            loop.call_later(number * 0.005, step, writer)

    return start


def write(data: bytes) -> Callable[[DirectWriter], None]:
    return lambda writer: writer.write(data)


def finish(tail: bytes = b"") -> Callable[[DirectWriter], None]:
    return lambda writer: writer.finish(tail)


# What reaches the client.


def test_chunks_are_written_as_they_come_and_the_connection_is_kept(server: ServerThread) -> None:
    stream = Stream(later(write(b"one"), write(b""), write(b"two" * 40), finish(b"end")))
    server.app = stream
    with server.connect() as client:
        for _ in range(2):
            client.send(body=b"{}")
            status, headers = client.read_head()
            assert status == 200
            assert headers["transfer-encoding"] == "chunked"
            assert "content-length" not in headers
            assert client.read_chunks() == [b"one", b"two" * 40, b"end"]
    assert stream.attached == [True, True]
    assert stream.heard == []


def test_an_empty_tail_is_only_the_terminator(server: ServerThread) -> None:
    server.app = Stream(later(write(b"one"), finish()))
    with server.connect() as client:
        client.send()
        client.read_head()
        assert client.read_chunks() == [b"one"]


def test_finishing_before_the_application_returns(server: ServerThread) -> None:
    def write_and_finish(writer: DirectWriter) -> None:
        writer.write(b"one")
        writer.finish(b"two")
        writer.write(b"late")
        writer.finish(b"later")

    server.app = Stream(write_and_finish)
    with server.connect() as client:
        client.send()
        client.read_head()
        assert client.read_chunks() == [b"one", b"two"]


def test_pipelined_requests_are_answered_in_order(server: ServerThread) -> None:
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        bodies.append(body)
        writer = scope["extensions"][EXTENSION]
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        await send({**start, EXTENSION: writer})
        later(write(body), finish(b"end"))(writer)

    server.app = app
    with server.connect() as client:
        client.sock.sendall(b"".join(request(body=b"%d" % number) for number in range(3)))
        for number in range(3):
            assert client.read_response()[2] == b"%dend" % number
    assert bodies == [b"0", b"1", b"2"]


def test_a_client_that_asks_for_it_is_disconnected_at_the_end(server: ServerThread) -> None:
    server.app = Stream(later(write(b"one"), finish()))
    with server.connect() as client:
        client.send(headers="connection: close\r\n")
        _, headers = client.read_head()
        assert headers["connection"] == "close"
        assert client.read_chunks() == [b"one"]
        assert client.read_to_end() == b""


def test_a_shutting_down_server_lets_the_stream_end(
    own_server: Callable[..., ServerThread],
) -> None:
    stream = Stream(write(b"before"))
    server = own_server(stream)
    with server.connect() as client:
        client.send()
        client.read_head()
        assert client.read_chunk() == b"before"
        server.server.should_exit = True
        wait_for(lambda: not server.server.servers[0].sockets)
        assert stream.writer is not None
        server.event_loop.call_soon_threadsafe(stream.writer.write, b"after")
        assert client.read_chunk() == b"after"
        server.event_loop.call_soon_threadsafe(stream.writer.finish, b"end")
        assert client.read_chunks() == [b"end"]
        assert client.read_to_end() == b""
    assert stream.heard == []


def test_a_stream_cut_by_the_shutdown_grace_is_lost(
    own_server: Callable[..., ServerThread],
) -> None:
    stream = Stream(write(b"before"))
    server = own_server(stream, timeout_graceful_shutdown=0)
    with server.connect() as client:
        client.send()
        client.read_head()
        assert client.read_chunk() == b"before"
        server.stop()
        assert client.read_to_end() == b"", "a cut body must not look complete"
    assert stream.heard == ["lost"]


def test_a_failure_after_attaching_leaves_the_body_incomplete(server: ServerThread) -> None:
    def fail(writer: DirectWriter) -> None:
        writer.write(b"one")
        raise RuntimeError("broken application")

    stream = Stream(fail)
    server.app = stream
    with server.connect() as client:
        client.send()
        client.read_head()
        assert client.read_chunk() == b"one"
        assert client.read_to_end() == b""
    assert stream.heard == ["lost"]


# The client leaves.


def test_leaving_is_heard_while_the_stream_is_idle(server: ServerThread) -> None:
    stream = Stream(write(b"one"))
    server.app = stream
    with server.connect() as client:
        client.send()
        client.read_head()
        assert client.read_chunk() == b"one"
    wait_for(lambda: stream.heard)
    assert stream.heard == ["lost"]
    assert stream.writer is not None
    assert stream.writer.closed
    stream.writer.write(b"to nobody")
    stream.writer.finish(b"to nobody")


def test_leaving_is_heard_before_the_response_starts(server: ServerThread) -> None:
    listener = Recorder()
    listening = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        scope["extensions"][EXTENSION].listen(listener)
        listening.set()
        while not listener.heard:
            await asyncio.sleep(0.001)

    server.app = app
    with server.connect() as client:
        client.send()
        assert listening.wait(5)
    wait_for(lambda: listener.heard)
    assert listener.heard == ["lost"]


def test_half_closing_counts_as_leaving(server: ServerThread) -> None:
    stream = Stream()
    server.app = stream
    with server.connect() as client:
        client.send()
        client.read_head()
        client.sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: stream.heard)
    assert stream.heard == ["lost"]


def test_leaving_is_heard_after_a_large_body(server: ServerThread) -> None:
    # uvicorn stops reading after 64 KiB of body, and a transport that does not read is deaf.
    stream = Stream()
    server.app = stream
    with server.connect() as client:
        client.send(body=b"x" * 300_000)
        client.read_head()
        assert stream.returned.wait(5)
    wait_for(lambda: stream.heard)
    assert stream.heard == ["lost"]


def test_leaving_is_heard_with_a_second_request_in_the_same_packet(server: ServerThread) -> None:
    stream = Stream()
    server.app = stream
    with server.connect() as client:
        client.sock.sendall(request(body=b"1") + request(body=b"2"))
        client.read_head()
        assert stream.writer is not None
        # Reading is paused for the queued request, so only a write can find out.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    keep_writing(server, stream)
    wait_for(lambda: stream.heard)
    assert stream.heard == ["lost"]
    assert stream.attached == [True], "the queued request must not start on a dead connection"


def test_leaving_is_heard_by_a_write_when_a_second_request_came_later(
    server: ServerThread,
) -> None:
    stream = Stream()
    server.app = stream
    with server.connect() as client:
        client.send()
        client.read_head()
        client.send()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    keep_writing(server, stream)
    wait_for(lambda: stream.heard)
    assert stream.heard == ["lost"]


def keep_writing(server: ServerThread, stream: Stream) -> None:
    def again() -> None:
        if not stream.heard:
            assert stream.writer is not None
            stream.writer.write(b": keep-alive\n\n")
            server.event_loop.call_later(0.005, again)

    server.event_loop.call_soon_threadsafe(again)


def test_listening_after_the_client_left_says_so(server: ServerThread) -> None:
    answers: list[bool] = []
    client_left = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        answers.append(scope["extensions"][EXTENSION].listen(Recorder()))
        client_left.set()

    server.app = app
    with server.connect() as client:
        client.send()
    assert client_left.wait(5)
    assert answers == [False]


def test_a_complete_ordinary_response_is_not_lost(server: ServerThread) -> None:
    listener = Recorder()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert scope["extensions"][EXTENSION].listen(listener)
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    server.app = app
    with server.connect() as client:
        client.send()
        assert client.read_response()[2] == b"ok"
    wait_for(lambda: not server.open_connections)
    assert listener.heard == []


async def tell(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what was understood of the request."""
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    said = repr((scope["method"], sorted(name for name, _ in scope["headers"]), body)).encode()
    length = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": said})


@pytest.mark.parametrize("cut", [None, 10, 60, 125, -3])
def test_an_offer_to_change_the_protocol_is_declined(
    server: ServerThread, cut: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEA\r\n"
    server.app = tell
    data = request("POST", "/", b"the body", headers=offer)
    with server.connect() as client:
        for body in (b"one", b"two"):
            for part in (data[:cut], data[cut:]) if cut else (data,):
                client.sock.sendall(part)
                time.sleep(0.01)
            status, _, said = client.read_response()
            assert (status, said.endswith(b"b'the body')")) == (200, True), body
        # And with another request right behind it.
        client.sock.sendall(data + request("POST", "/", b"another"))
        assert client.read_response()[2].endswith(b"b'the body')")
        assert client.read_response()[2].endswith(b"b'another')")


def test_trailers_are_no_headers(server: ServerThread) -> None:
    server.app = tell
    head = b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"
    with server.connect() as client:
        client.sock.sendall(head + b"3\r\none\r\n0\r\nx-late: 1\r\n\r\n")
        assert b"x-late" not in client.read_response()[2]


@pytest.mark.parametrize("endless", [b"0\r\nx-late: ", b"3;extension="])
def test_what_is_neither_head_nor_body_is_bounded(server: ServerThread, endless: bytes) -> None:
    server.app = tell
    head = b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"
    with server.connect() as client:
        client.sock.sendall(head + b"3\r\none\r\n" + endless)
        with pytest.raises(ConnectionError):
            client.sock.sendall(b"y" * 64_000_000)


def test_many_small_requests_are_not_taken_for_an_endless_head(server: ServerThread) -> None:
    server.app = tell
    with server.connect() as client:
        for _ in range(1500):
            client.sock.sendall(request("GET", "/" + "a" * 60))
            assert client.read_response()[0] == 200


def test_a_response_to_a_client_that_is_leaving_is_not_missed(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        writer = scope["extensions"][EXTENSION]
        writer._protocol.transport.close()  # as after a write that failed: the loss is told later
        answers.append(writer.listen(Recorder()))

    server.app = app
    with server.connect() as client:
        client.send()
        assert client.read_to_end() == b""
    wait_for(lambda: answers)
    assert answers == [False]
    assert [record.message for record in caplog.records] == []


@pytest.fixture(params=VARIANTS, ids="-".join)
def impatient(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    http, loop = request.param
    protocol = direct_protocol(http, send_timeout=0.1)
    with ServerThread(http=protocol, loop=loop) as thread:
        yield thread


@pytest.mark.parametrize("attached", [True, False])
def test_a_client_that_reads_nothing_of_the_last_bytes_is_cut_off(
    impatient: ServerThread, attached: bool
) -> None:
    large = b"x" * 20_000_000
    stream = Stream(write_all(large))

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": large, "more_body": False})

    impatient.app = stream if attached else whole
    with impatient.connect() as client:
        client.send()
        wait_for(lambda: impatient.server.server_state.connections)
        wait_for(lambda: not impatient.server.server_state.connections)
        try:
            received = len(client.read_to_end())
        except ConnectionError:
            received = 0
    assert received < len(large)


def test_a_client_that_reads_the_last_bytes_slowly_gets_them(impatient: ServerThread) -> None:
    with impatient.connect() as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        # The second answer is larger: it must not look like the first one, still unread.
        for size, pause in ((4_000_000, 0.0), (8_000_000, 0.01)):
            large = b"~" * size
            impatient.app = Stream(write_all(large))
            client.send()
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += client.sock.recv(500_000)
                time.sleep(pause)  # the reader is slow: that is what is tested
            assert received.count(b"~") == size


def write_all(data: bytes) -> Callable[[DirectWriter], None]:
    return lambda writer: writer.finish(data)


def test_a_failing_listener_is_logged(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Stream):
        def on_lost(self) -> None:
            super().on_lost()
            raise RuntimeError("broken listener")

    stream = Broken()
    server.app = stream
    with server.connect() as client:
        client.send()
        client.read_head()
    wait_for(lambda: caplog.records)
    assert "failed in on_lost" in caplog.text
    wait_for(lambda: not server.open_connections)


# The client reads slowly.


def test_a_slow_reader_pauses_and_resumes_and_loses_nothing(server: ServerThread) -> None:
    piece = b"x" * 10_000
    paused_inside_write: list[bool] = []

    class Burst(Stream):
        left = 200

        def pump(self, writer: DirectWriter) -> None:
            while self.left and not writer.paused:
                self.left -= 1
                heard = len(self.heard)
                writer.write(piece)
                paused_inside_write.append(len(self.heard) > heard)
            if not self.left:
                writer.finish(b"end")

        def on_resume(self) -> None:
            super().on_resume()
            assert self.writer is not None
            self.pump(self.writer)

    stream = Burst()
    stream.on_attached = stream.pump
    server.app = stream
    with server.connect(receive_buffer=4096) as client:
        client.send()
        client.read_head()
        wait_for(lambda: stream.heard)
        assert stream.left > 100, "a reader that reads nothing must stop the producer"
        assert stream.writer is not None
        assert stream.writer.buffered > 16 * 1024
        body = b"".join(client.read_chunks())
    assert body == piece * 200 + b"end"
    assert stream.heard[:2] == ["pause", "resume"]
    # The last pause may be answered by finish() instead.
    assert stream.heard.count("pause") - stream.heard.count("resume") in (0, 1)
    if server.server.config.loop == "asyncio":
        assert any(paused_inside_write), "asyncio calls pause_writing from inside write"


def test_the_kernel_queue_is_bounded_and_packets_are_not_delayed(server: ServerThread) -> None:
    options: list[int] = []

    def look(writer: DirectWriter) -> None:
        assert writer._protocol is not None
        sock = writer._protocol.transport.get_extra_info("socket")
        options.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.finish()

    server.app = Stream(look)
    with server.connect() as client:
        client.send()
        client.read_response()
    assert options == [2 * 64 * 1024, 1]  # Linux reports twice what was asked for


def test_aborting_drops_what_a_stalled_reader_never_took(server: ServerThread) -> None:
    stream = Stream(write(b"x" * 4_000_000))
    server.app = stream
    with server.connect(receive_buffer=4096) as client:
        client.send()
        client.read_head()
        assert stream.writer is not None
        server.event_loop.call_soon_threadsafe(stream.writer.abort)
        wait_for(lambda: "lost" in stream.heard)
        assert len(client.read_to_end()) < 4_000_000
    assert stream.heard == ["pause", "lost"]


def test_its_repr_tells_state_and_buffer(server: ServerThread) -> None:
    seen: list[str] = []

    def look(writer: DirectWriter) -> None:
        seen.append(repr(writer))
        writer.finish()
        seen.append(repr(writer))

    stream = Stream(look)
    server.app = stream
    with server.connect() as client:
        client.send()
        client.read_response()
    wait_for(lambda: stream.writer is not None and stream.writer.closed)
    assert seen == [
        "<DirectWriter [attached, 0 bytes buffered]>",
        "<DirectWriter [finished, 0 bytes buffered]>",
    ]
    assert repr(stream.writer) == "<DirectWriter [closed, 0 bytes buffered]>"


# When the path is off.


@pytest.mark.parametrize(
    ("status", "extra"),
    [
        (404, []),
        (200, [(b"Content-Length", b"8")]),
        (200, [(b"content-encoding", b"identity")]),
        (200, [(b"Transfer-Encoding", b"chunked")]),
    ],
)
def test_other_framings_do_not_attach(
    server: ServerThread, status: int, extra: list[tuple[bytes, bytes]]
) -> None:
    stream = Stream(status=status, headers=HEADERS + extra)
    server.app = stream
    with server.connect() as client:
        client.send()
        answer = client.read_response()
    assert (answer[0], answer[2]) == (status, b"ordinary")
    assert stream.attached == [False]


@pytest.mark.parametrize(
    "request_bytes", [request("HEAD"), request("POST", version="1.0")], ids=["HEAD", "1.0"]
)
def test_requests_without_chunked_answers_get_no_writer(
    server: ServerThread, request_bytes: bytes
) -> None:
    extensions: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        extensions.append(scope.get("extensions"))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server.app = app
    with server.connect() as client:
        client.sock.sendall(request_bytes)
        assert client.read_head()[0] == 200
    assert extensions == [None]


def test_a_middleware_that_edits_headers_leaves_it_on(server: ServerThread) -> None:
    stream = Stream(finish(b"direct"))

    async def edit(scope: Any, receive: Any, send: Any) -> None:
        async def edited(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-added", b"1")]}
            await send(message)

        await stream(scope, receive, edited)

    server.app = edit
    with server.connect() as client:
        client.send()
        _, headers, body = client.read_response()
    assert (headers["x-added"], body) == ("1", b"direct")
    assert stream.attached == [True]


def test_gzip_spares_event_streams_and_leaves_it_on(server: ServerThread) -> None:
    stream = Stream(finish(b"direct"))
    server.app = GZipMiddleware(stream)
    with server.connect() as client:
        client.send(headers="accept-encoding: gzip\r\n")
        assert client.read_response()[2] == b"direct"
    assert stream.attached == [True]


async def _pass_on(request: Any, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda app: BaseHTTPMiddleware(app, dispatch=_pass_on),
        lambda app: GZipMiddleware(app, exclude_content_types=()),
    ],
    ids=["rebuilds the start", "holds the start"],
)
def test_a_middleware_that_does_more_switches_it_off(
    server: ServerThread, wrap: Callable[[Any], Any]
) -> None:
    stream = Stream()
    server.app = wrap(stream)
    with server.connect() as client:
        client.send()
        _, _, body = client.read_response()
        assert body == b"ordinary"
        client.send()
        assert client.read_response()[2] == b"ordinary"
    assert stream.attached == [False, False]


def test_an_abandoned_writer_does_not_attach_to_a_late_start(server: ServerThread) -> None:
    attached: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        writer = scope["extensions"][EXTENSION]
        writer.abandon()
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        await send({**start, EXTENSION: writer})
        attached.append(writer.attached)
        await send({"type": "http.response.body", "body": b"ordinary", "more_body": False})

    server.app = app
    with server.connect() as client:
        client.send()
        assert client.read_response()[2] == b"ordinary"
    assert attached == [False]


def test_the_writer_of_another_request_does_not_attach(server: ServerThread) -> None:
    first = Stream()
    attached: list[bool] = []

    async def thief(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        await send({**start, EXTENSION: first.writer})
        attached.append(scope["extensions"][EXTENSION].attached)
        await send({"type": "http.response.body", "body": b"own", "more_body": False})

    server.app = first
    with server.connect() as client:
        client.send()
        client.read_head()
        server.app = thief
        with server.connect() as other:
            other.send()
            assert other.read_response()[2] == b"own"
    assert attached == [False]


def test_raw_client_notices_a_missing_terminator() -> None:
    # The tests above rest on it.
    left, right = socket.socketpair()
    client = RawClient.__new__(RawClient)
    client.sock, client._buffer = left, b""
    right.sendall(b"3\r\nabc\r\n")
    right.close()
    with left, pytest.raises(EOFError):
        client.read_chunks()
