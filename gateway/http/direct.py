"""Write a streamed response body to the client's transport without ``await send``.

ASGI has one way to write: await ``send``, from a task. For a token stream that is a task wake-up,
the frames of every middleware and a dictionary per token. The uvicorn protocols below lend the
application a :class:`DirectWriter` instead, as ``scope["extensions"]["nnrp.direct_writer"]``:

1. The application calls :meth:`DirectWriter.listen` to hear at once when the client leaves.
2. It puts the writer, under the same key, into its ``http.response.start`` message. The writer is
   *attached* when that message reaches the server and the response is one whose framing is plain
   chunks: HTTP/1.1, not HEAD, status 200, no content-length, content-encoding or
   transfer-encoding. A middleware that edits headers leaves it on; one that holds, rebuilds or
   replaces the message switches it off.
3. Attached, the application returns, so that its frames and the middlewares' are freed, and calls
   :meth:`DirectWriter.write` from callbacks of the loop; :meth:`DirectWriter.finish` ends the
   body. Not attached, it calls :meth:`DirectWriter.abandon` and uses ``await send`` as usual.

The last chunk, the terminator, keep-alive, pipelining and close stay uvicorn's: after ``finish``
the server side sends the last chunk through ``send``. A middleware that reads or rewrites *body*
messages is bypassed while the writer is attached.

Of uvicorn only these are touched: the methods of ``asyncio.Protocol``, the attributes ``app``,
``flow`` and ``transport``, and the request's cycle, found as ``send.__self__``.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http.refusals import MAX_HEAD, HeadTooLargeError, Refusing
from gateway.http.upgrades import head_without_upgrade

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["EXTENSION", "DirectListener", "DirectWriter", "direct_protocol"]

EXTENSION: Final = "nnrp.direct_writer"

# Without a bound the kernel queues megabytes per stalled reader before the transport notices.
DEFAULT_SEND_BUFFER: Final = 64 * 1024
# asyncio's own mark is 64 KiB; a reader 16 KiB behind a token stream is already seconds behind.
DEFAULT_HIGH_WATER: Final = 16 * 1024

DEFAULT_SEND_TIMEOUT: Final = 60.0

# Headers with which the framing of the body is not plain chunks.
_OTHER_FRAMING: Final = frozenset({b"content-length", b"content-encoding", b"transfer-encoding"})

logger = logging.getLogger(__name__)


class DirectListener(Protocol):
    """Hears what happens to the client's connection. Called from the loop; must not raise."""

    def on_pause(self) -> None:
        """Stop producing: the transport holds more than its high-water mark (attached only)."""

    def on_resume(self) -> None:
        """Produce again: the transport has drained (attached only)."""

    def on_lost(self) -> None:
        """The client is gone, or the server gave the response up. Called once, last."""


class _Cycle(Protocol):
    """What both of uvicorn's ``RequestResponseCycle`` classes have and this module uses."""

    disconnected: bool
    message_event: asyncio.Event
    response_complete: bool


class _State(enum.Enum):
    OFFERED = "offered"
    ABANDONED = "abandoned"
    ATTACHED = "attached"
    FINISHED = "finished"
    CLOSED = "closed"


class DirectWriter:
    """One request's side door to its client's connection."""

    __slots__ = (
        "_cycle",
        "_finished",
        "_listener",
        "_protocol",
        "_state",
        "_tail",
        "_write",
        "attached",
        "paused",
    )

    def __init__(self, protocol: _DirectProtocol, cycle: _Cycle) -> None:
        self.attached = False
        """Whether :meth:`write` reaches the client."""
        self.paused = False
        """Whether the transport holds more than its high-water mark (once attached)."""
        self._protocol: _DirectProtocol | None = protocol
        self._cycle = cycle
        self._state = _State.OFFERED
        self._listener: DirectListener | None = None
        self._write: Any = None
        self._tail = b""
        self._finished: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        paused = ", paused" if self.paused else ""
        return f"<DirectWriter [{self._state.value}{paused}, {self.buffered} bytes buffered]>"

    # The application's side.

    def listen(self, listener: DirectListener) -> bool:
        """Call `listener` from now on. False: the client has already left, it will hear nothing.

        The request's body must have been read to its end.
        """
        protocol = self._protocol
        if protocol is None or self._cycle.disconnected or protocol.transport.is_closing():
            self._cycle.disconnected = True  # uvicorn, told later, would miss a response
            return False
        self._listener = listener
        protocol.resume_reading_if_idle()
        return True

    def write(self, data: bytes) -> None:
        """Write `data` as one chunk. No-op when detached, and for empty data (it ends a body)."""
        if self.attached and data:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self, tail: bytes = b"") -> None:
        """End the body with `tail`. The listener hears nothing more; no-op unless attached."""
        if self._state is _State.ATTACHED:
            self._state = _State.FINISHED
            self.attached = False
            self._listener = None
            self._tail = tail
            self._wake()

    def abandon(self) -> None:
        """Take the ordinary path: a start message that arrives later must not attach.

        The listener still hears when the client leaves.
        """
        if self._state is _State.OFFERED:
            self._state = _State.ABANDONED

    def abort(self) -> None:
        """Drop the connection and what it has buffered, without a terminator."""
        if self._protocol is not None:
            self._protocol.transport.abort()

    @property
    def closed(self) -> bool:
        """Whether the response is over: complete, or its connection lost."""
        return self._state is _State.CLOSED

    @property
    def buffered(self) -> int:
        """Bytes in the transport that the kernel has not taken yet."""
        return 0 if self._protocol is None else self._protocol.transport.get_write_buffer_size()

    # The server's side.

    def _attach(self, transport: asyncio.Transport, paused: bool) -> None:
        self._write = transport.write
        self._state = _State.ATTACHED
        self.attached = True
        self.paused = paused

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        if self.attached and self._listener is not None:
            if paused:
                self._listener.on_pause()
            else:
                self._listener.on_resume()

    def _wake(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def _close(self) -> None:
        """Let go of everything. Whoever still listens to an incomplete response lost it."""
        listener = None if self._cycle.response_complete else self._listener
        self._state = _State.CLOSED
        self.attached = False
        self._protocol = self._listener = self._write = None
        self._wake()
        if listener is not None:
            try:
                listener.on_lost()
            except Exception:
                logger.exception("%r failed in on_lost", listener)


class _DirectProtocol(Refusing):
    """Mixin for uvicorn's HTTP/1.1 protocols that lends each request a :class:`DirectWriter`."""

    # Outside __dict__: instances share its keys, and one more attribute ends the sharing (1.3 kB).
    __slots__ = ("_application", "_stall", "_writer", "reads")

    send_timeout: ClassVar[float] = DEFAULT_SEND_TIMEOUT
    send_buffer: ClassVar[int] = DEFAULT_SEND_BUFFER
    high_water: ClassVar[int] = DEFAULT_HIGH_WATER

    if TYPE_CHECKING:
        app: ASGI3Application
        flow: FlowControl
        transport: asyncio.Transport

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application = self.app
        self._writer: DirectWriter | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self.reads = 0
        self.app = self._serve

    def _has_queued_request(self) -> bool:
        """Whether a pipelined request waits for the current response."""
        raise NotImplementedError

    def resume_reading_if_idle(self) -> None:
        """Watch for the client's leaving, which a transport does only while it reads.

        uvicorn leaves reading paused after a body above 64 KiB until ``receive`` is called again.
        While a pipelined request is queued it stays paused: an endless pipeline would otherwise
        be read into memory.
        """
        if not self._has_queued_request():
            self.flow.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=self.high_water)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writer is not None:
            self._writer._set_paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()
        if self._writer is not None:
            self._writer._set_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # uvicorn tells its newest cycle only: with a pipelined request that is another one.
            writer._cycle.disconnected = True
            writer._cycle.message_event.set()
        super().connection_lost(exc)
        self._stop_watching()
        self.app = self._application  # breaks the reference cycle through the bound method
        if writer is not None:
            writer._close()

    # The last bytes of a response, for which nobody waits any more.

    def _watch_last_bytes(self) -> None:
        """Cut off a client that reads nothing of them for `send_timeout` seconds.

        uvicorn would close, which waits until all has been read: for ever, and in our memory.
        """
        self._stop_watching()
        if self.flow.write_paused:
            loop = asyncio.get_running_loop()
            unread = self.transport.get_write_buffer_size()
            self._stall = loop.call_later(self.send_timeout, self._look_at_last_bytes, unread)

    def _look_at_last_bytes(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._watch_last_bytes()
        else:
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    # ASGI

    async def _serve(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        try:
            await self._lend_writer(scope, receive, send)
        finally:
            self._watch_last_bytes()

    async def _lend_writer(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        cycle = cast("_Cycle | None", getattr(send, "__self__", None))
        if cycle is None or scope["type"] != "http" or scope["method"] == "HEAD":
            await self._application(scope, receive, send)
            return
        if scope["http_version"] != "1.1":
            await self._application(scope, receive, self._send_unframed(send))
            return
        writer = self._writer = DirectWriter(self, cycle)
        extensions = cast("dict[str, Any]", scope).setdefault("extensions", {})
        extensions[EXTENSION] = writer

        async def send_and_attach(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.start" and message.get(EXTENSION) is writer:
                self._attach(writer, message)

        try:
            await self._application(scope, receive, send_and_attach)
            if writer.attached:
                writer._finished = asyncio.get_running_loop().create_future()
                await writer._finished
            if writer._state is _State.FINISHED:
                tail = writer._tail
                await send({"type": "http.response.body", "body": tail, "more_body": False})
        finally:
            # Reached as well by an application that failed after attaching, and by a task that
            # the server cancelled at the end of its shutdown grace.
            if self._writer is writer:
                self._writer = None
            writer._close()
            extensions.pop(EXTENSION, None)  # breaks the reference cycle through the scope

    def _send_unframed(self, send: ASGISendCallable) -> ASGISendCallable:
        """Return a `send` for HTTP/1.0, which has no chunks: closing ends the body."""
        return send

    def _attach(self, writer: DirectWriter, message: dict[str, Any]) -> None:
        if writer._state is not _State.OFFERED or writer._cycle.disconnected:
            return
        if message["status"] != 200 or self.transport.is_closing():
            return
        if any(name.lower() in _OTHER_FRAMING for name, _ in message.get("headers", ())):
            return
        # No framing declared: both implementations have just announced chunks.
        writer._attach(self.transport, self.flow.write_paused)


class DirectHttpToolsProtocol(_DirectProtocol, HttpToolsProtocol):
    """uvicorn's httptools protocol with the direct writer, a bounded head, and HTTP/1.0."""

    __slots__ = ("_body_came", "_upgrade_at")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._body_came = False
        self._upgrade_at: int | None = None

    def _has_queued_request(self) -> bool:
        return bool(self.pipeline)

    def data_received(self, data: bytes) -> None:
        before = self.scope
        self._body_came = False
        super().data_received(data)
        if self._upgrade_at is not None:
            self._decline_upgrade(data)
            return
        # Counts what no limit on the body does: heads, trailers, chunk extensions. The read that a
        # head began in is not counted: it may have ended a large body.
        counts = self.scope is before and not self._body_came
        self._head_bytes = self._head_bytes + len(data) if counts else 0
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self.refuse(HeadTooLargeError())

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD:
            raise HeadTooLargeError
        if self._offers_upgrade():
            return
        super().on_headers_complete()
        self.headers = []  # trailers are no headers (RFC 9110, section 6.5.1)

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._offers_upgrade():
            super().on_message_complete()

    def _offers_upgrade(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Note where the head ended. uvicorn calls it while it handles what the parser raised."""
        error = sys.exc_info()[1]
        if isinstance(error, HttpParserUpgrade) and self._offers_upgrade():
            self._upgrade_at = error.args[0]

    def _decline_upgrade(self, data: bytes) -> None:
        """Read the request anew, as if it had not offered another protocol."""
        rest, self._upgrade_at = data[self._upgrade_at :], None
        parser = self.parser
        head = head_without_upgrade(
            parser.get_method(), self.url, parser.get_http_version(), self.headers
        )
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.data_received(head + rest)

    def _send_unframed(self, send: ASGISendCallable) -> ASGISendCallable:
        cycle = cast("RequestResponseCycle", getattr(send, "__self__", None))
        framed = True

        async def send_unframed(message: Any) -> None:
            # uvicorn sends what declares no length in chunks, to HTTP/1.0 as well.
            nonlocal framed
            if message["type"] == "http.response.start":
                framed = any(name.lower() in _OTHER_FRAMING for name, _ in message["headers"])
                if not framed:
                    cycle.chunked_encoding = False
            elif not framed:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        return send_unframed


class DirectH11Protocol(_DirectProtocol, H11Protocol):
    """uvicorn's h11 protocol with the direct writer."""

    def _has_queued_request(self) -> bool:
        return bool(self.conn.trailing_data[0])


def direct_protocol(
    implementation: Literal["httptools", "h11"] = "httptools",
    *,
    send_buffer: int = DEFAULT_SEND_BUFFER,
    high_water: int = DEFAULT_HIGH_WATER,
    send_timeout: float = DEFAULT_SEND_TIMEOUT,
) -> type[asyncio.Protocol]:
    """Return the class to give to ``uvicorn.Config(http=...)``.

    `send_buffer` bounds the kernel's queue per client (SO_SNDBUF in bytes; Linux doubles it);
    above `high_water` bytes in the transport the listener hears ``on_pause``; a client that reads
    nothing of the end of a response for `send_timeout` seconds is cut off.
    """
    base = DirectHttpToolsProtocol if implementation == "httptools" else DirectH11Protocol
    settings = {"send_buffer": send_buffer, "high_water": high_water, "send_timeout": send_timeout}
    return type(base.__name__, (base,), settings)
