"""A client of one worker: one connection, many operations."""

from __future__ import annotations

import asyncio
import os
import ssl as ssl_module
from functools import partial
from types import TracebackType
from typing import Self

from nnrp_backend.client.errors import (
    Congested,
    ConnectError,
    NotConnected,
    PayloadTooLarge,
    TooManyOperations,
    WorkerDraining,
)
from nnrp_backend.client.link import ClientLink, ClientListener, SessionRefused
from nnrp_backend.client.operation import ClientOperation, OperationHandler, Terminal, TerminalKind
from nnrp_backend.client.stream import Answer, OperationStream
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.envelope import encode_envelope
from nnrp_backend.profile.events import EventType, decode_event
from nnrp_backend.profile.operations import MODELS_LIST
from nnrp_backend.protocol.config import ClientConfig
from nnrp_backend.protocol.connection import Counters
from nnrp_backend.protocol.errors import OperationLimitReached, PacketTooLarge
from nnrp_backend.protocol.session import Trace
from nnrp_backend.transport.endpoint import Endpoint, Scheme
from nnrp_backend.transport.sockets import check_tls, dial

__all__ = ["NnrpClient"]

#: How long `close` waits for the worker to agree to the end of the session.
FAREWELL_SECONDS = 1.0


class NnrpClient:
    """Speak NNRP/1 to one worker over tcp, tls or a unix socket.

    Args:
        max_in_flight: operations wanted at a time; the worker may grant fewer.
        default_deadline_ms: what the session says about operations without a deadline.
        handshake_timeout: seconds for connect, TLS and NNRP handshakes together.
        probe_interval: seconds between TRANSPORT_PROBEs; an unanswered one is a miss.
        dead_after: seconds of silence after which the connection is given up.
        cancel_grace: seconds an unanswered CANCEL waits before the operation ends LOST.
        ssl: for `tls://`; the system's authorities without one.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        max_in_flight: int = 1024,
        default_deadline_ms: int = 600_000,
        handshake_timeout: float = 5.0,
        probe_interval: float = 5.0,
        dead_after: float = 60.0,
        cancel_grace: float = 2.0,
        ssl: ssl_module.SSLContext | None = None,
        listener: ClientListener | None = None,
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        check_tls(self.endpoint, ssl)
        if ssl is None and self.endpoint.scheme is Scheme.TLS:
            # Here and not when connecting: it reads files.
            ssl = ssl_module.create_default_context()
        self._ssl = ssl
        self._config = ClientConfig(
            max_in_flight=max_in_flight,
            default_deadline_ms=default_deadline_ms,
            handshake_timeout=handshake_timeout,
            probe_interval=probe_interval,
            dead_after=dead_after,
        )
        self._cancel_grace = cancel_grace
        self._listener = listener
        self._link: ClientLink | None = None
        self._connecting = False

    def __repr__(self) -> str:
        state = "connected" if self.connected else "not connected"
        return f"<NnrpClient {self.endpoint} {state} [{self.in_flight} in flight]>"

    # --- what is there ----------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether operations can be submitted, room permitting."""
        return self._link is not None and self._link.usable

    @property
    def draining(self) -> bool:
        """Whether the worker said that it takes no new operations."""
        return self._link is not None and self._link.draining

    @property
    def peer_is_ours(self) -> bool:
        """Whether the worker is of this implementation, so that everything is understood."""
        session = self._link.session if self._link is not None else None
        return session is not None and session.peer_is_ours

    @property
    def granted_in_flight(self) -> int:
        """Operations that the worker takes at a time; 0 when not connected."""
        session = self._link.session if self._link is not None and self.connected else None
        return session.max_in_flight if session is not None else 0

    @property
    def in_flight(self) -> int:
        """Operations that have had no terminal yet."""
        return self._link.in_flight if self._link is not None else 0

    @property
    def available(self) -> int:
        """Operations that can be submitted now."""
        if self._link is None or not self._link.usable or self._link.draining:
            return 0
        return self._link.session.available if self._link.session is not None else 0

    @property
    def tokens(self) -> frozenset[str]:
        """Capability tokens that the worker granted."""
        session = self._link.session if self._link is not None else None
        return session.tokens if session is not None else frozenset()

    @property
    def counters(self) -> Counters:
        """What happened on the connection, the last one when there is none now.

        `late_events` counts frames for operations that had already ended.
        """
        return self._link.core.counters if self._link is not None else Counters()

    # --- connecting -------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Make one attempt; reconnecting is the caller's business.

        Raises:
            ConnectError: refused, timed out, not NNRP, or no session granted.
            RuntimeError: there is a connection already, or about to be.
        """
        if self._connecting or (self._link is not None and not self._link.is_lost):
            raise RuntimeError(f"{self!r} has a connection already")
        self._connecting = True
        link = ClientLink(self._config, cancel_grace=self._cancel_grace, listener=self._listener)
        try:
            async with asyncio.timeout(self._config.handshake_timeout):
                await dial(self.endpoint, lambda: link, ssl=self._ssl)
                await link.ready
            self._link = link
        except Exception as error:
            raise self._connect_error(error) from error
        finally:
            self._connecting = False
            if self._link is not link:
                link.leaving = True
                link.abort()

    def _connect_error(self, error: Exception) -> ConnectError:
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self._config.handshake_timeout:g} s"
            return ConnectError(self.endpoint, reason)
        if isinstance(error, SessionRefused):
            return ConnectError(self.endpoint, str(error), session_error=error.code)
        return ConnectError(self.endpoint, _reason(error))

    async def close(self, *, drain_timeout: float = 0.0) -> None:
        """Give operations `drain_timeout` seconds to end, end the rest LOST, and disconnect."""
        link = self._link
        if link is None or link.is_lost:
            return
        link.leaving = True
        if drain_timeout > 0:
            await self._drain(link, drain_timeout)
        link.close_session()
        _, late = await asyncio.wait([link.closed], timeout=FAREWELL_SECONDS)
        if late:
            link.abort()
            await asyncio.wait(late)

    async def _drain(self, link: ClientLink, timeout: float) -> None:
        idle = asyncio.Event()
        link.on_idle = idle.set
        if link.in_flight == 0:
            return
        try:
            async with asyncio.timeout(timeout):
                await idle.wait()
        except TimeoutError:
            pass  # The rest ends with the session.

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- operations -------------------------------------------------------------------------------

    def submit(
        self,
        payload: bytes,
        handler: OperationHandler,
        *,
        deadline_unix_ms: int | None = None,
        priority: int | None = None,
        trace: Trace | None = None,
    ) -> ClientOperation:
        """Send one envelope; `handler` hears the rest, from a later turn of the loop on.

        Args:
            priority: a `PriorityClass`, where it differs from the session's.
            trace: for a foreign worker; ours reads `nnrp.traceparent` in the envelope.

        Raises:
            NotConnected: there is no connection, or (`WorkerDraining`) it takes no new work.
            TooManyOperations: the worker's granted number is in flight, or (`Congested`) it has
                yet to read hundreds of megabytes.
            PayloadTooLarge: the envelope does not fit a packet.
            LocalProtocolError: a deadline or priority does not fit its field.
        """
        link = self._link
        if link is None or not link.usable or link.session is None:
            raise NotConnected(self.endpoint)
        if link.draining:
            raise WorkerDraining(self.endpoint)
        if not link.has_room(len(payload)):
            raise Congested(self.endpoint, link.session.max_in_flight, link.unsent)
        try:
            return link.submit(
                link.session,
                payload,
                handler,
                deadline_unix_ms=deadline_unix_ms,
                priority=None if priority is None else (priority, 0),
                trace=trace,
            )
        except OperationLimitReached as error:
            raise TooManyOperations(self.endpoint, error.granted) from None
        except PacketTooLarge as error:
            raise PayloadTooLarge(error.size, error.limit) from None

    async def request(
        self,
        payload: bytes,
        *,
        deadline_unix_ms: int | None = None,
        priority: int | None = None,
        trace: Trace | None = None,
    ) -> Terminal:
        """Submit and wait for the terminal; events before it are not kept.

        Cancelling the wait cancels the operation. Raises what `submit` raises.
        """
        answer = Answer()
        operation = self.submit(
            payload, answer, deadline_unix_ms=deadline_unix_ms, priority=priority, trace=trace
        )
        try:
            return await answer.terminal
        finally:
            operation.cancel()

    def stream(
        self,
        payload: bytes,
        *,
        window: int | None = None,
        deadline_unix_ms: int | None = None,
        priority: int | None = None,
        trace: Trace | None = None,
    ) -> OperationStream:
        """Submit on entering the returned context manager, and iterate over raw event bodies.

        Args:
            window: the `nnrp.credit` that the envelope names; the stream then grants it anew each
                time half of it has been consumed.
        """
        submit = partial(
            self.submit,
            payload,
            deadline_unix_ms=deadline_unix_ms,
            priority=priority,
            trace=trace,
        )
        return OperationStream(submit, window)

    async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
        """Ask `models.list` for the worker's capability document; None where it has none.

        Raises:
            TimeoutError: the worker did not answer in time.
            NotConnected: there is no connection, or it ended first.
            ProfileError: the answer, or the document in it, is malformed.
        """
        async with asyncio.timeout(timeout):
            terminal = await self.request(encode_envelope(MODELS_LIST, b"{}"))
        if terminal.kind is TerminalKind.LOST:
            raise NotConnected(self.endpoint)
        if terminal.kind is not TerminalKind.RESULT or not terminal.body:
            return None
        event = decode_event(terminal.body)
        if event.type != EventType.COMPLETED:
            return None
        return CapabilityRecord.from_models_list(bytes(event.body))


def _reason(error: Exception) -> str:
    """Say what went wrong; asyncio buries the system's own words ("Connection refused")."""
    if isinstance(error, ConnectionRefusedError | FileNotFoundError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
