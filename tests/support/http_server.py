"""Run an ASGI application under the real uvicorn, on a loop and thread of its own.

Tests talk to it with blocking sockets, so that they see the bytes and not a client's reading of
them, and so that one test body serves both event loops.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Literal, Self

import uvicorn

Application = Callable[[Any, Any, Any], Any]


class ServerThread:
    """A uvicorn server on a free loopback port. `app` may be replaced between requests."""

    def __init__(
        self,
        app: Application | None = None,
        *,
        http: type[asyncio.Protocol],
        loop: Literal["asyncio", "uvloop"] = "asyncio",
        **config: Any,
    ) -> None:
        self.app = app

        async def application(scope: Any, receive: Any, send: Any) -> None:
            assert self.app is not None
            await self.app(scope, receive, send)

        options = {"lifespan": "off", "log_config": None, "ws": "none", "proxy_headers": False}
        self.server = uvicorn.Server(
            uvicorn.Config(application, port=0, http=http, loop=loop, **{**options, **config})
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)
        self.event_loop: asyncio.AbstractEventLoop

    def _run(self) -> None:
        async def main() -> None:
            self.event_loop = asyncio.get_running_loop()
            serving = self.event_loop.create_task(self.server.serve())
            while not self.server.started and not serving.done():
                await asyncio.sleep(0.001)
            self._started.set()
            await serving

        with asyncio.Runner(loop_factory=self.server.config.get_loop_factory()) as runner:
            runner.run(main())

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10), "uvicorn did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "uvicorn did not stop"

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    @property
    def open_connections(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, **options: Any) -> RawClient:
        return RawClient(self.port, **options)


class RawClient:
    """A blocking HTTP/1.1 client that shows the bytes and is strict about chunks."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(10)
        self.sock.connect(("127.0.0.1", port))
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(
        self, method: str = "POST", path: str = "/", body: bytes = b"", *, headers: str = ""
    ) -> None:
        self.sock.sendall(request(method, path, body, headers=headers))

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Read a status line and headers; return the status and the headers by lower-case name."""
        head = self._read_until(b"\r\n\r\n").decode("latin-1")
        status_line, *lines = head.split("\r\n")[:-2]
        fields = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in fields}
        return int(status_line.split(" ")[1]), headers

    def read_chunk(self) -> bytes:
        """Read one chunk; b"" is the end of the body."""
        size = int(self._read_until(b"\r\n")[:-2], 16)
        data = self._read_exactly(size)
        assert self._read_exactly(2) == b"\r\n"
        return data

    def read_chunks(self) -> list[bytes]:
        """Read chunks to the end of the body."""
        return list(iter(self.read_chunk, b""))

    def read_response(self) -> tuple[int, dict[str, str], bytes]:
        """Read a whole response, whichever way it is framed."""
        status, headers = self.read_head()
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join(self.read_chunks())
        return status, headers, self._read_exactly(int(headers["content-length"]))

    def read_to_end(self) -> bytes:
        """Read until the server closes; an abrupt close ends it as well."""
        try:
            while data := self.sock.recv(65536):
                self._buffer += data
        except ConnectionResetError:
            pass
        rest, self._buffer = self._buffer, b""
        return rest

    def _read_until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._fill()
        end = self._buffer.index(mark) + len(mark)
        line, self._buffer = self._buffer[:end], self._buffer[end:]
        return line

    def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _fill(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError(f"the server closed after {self._buffer!r}")
        self._buffer += data


def request(
    method: str = "POST",
    path: str = "/",
    body: bytes = b"",
    *,
    headers: str = "",
    version: str = "1.1",
) -> bytes:
    """The bytes of a request; `headers` are whole lines, each ending in CRLF."""
    return (
        f"{method} {path} HTTP/{version}\r\nhost: test\r\ncontent-length: {len(body)}\r\n"
        f"{headers}\r\n".encode()
        + body
    )
