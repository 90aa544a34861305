"""The client's end of one connection: turns events of the core into calls on handlers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nnrp_backend.client.operation import ClientOperation, OperationHandler, Terminal, TerminalKind
from nnrp_backend.protocol.client_role import ClientConnection
from nnrp_backend.protocol.config import ClientConfig
from nnrp_backend.protocol.events import (
    Connected,
    ConnectionClosed,
    Event,
    OperationEnded,
    Outcome,
    PartialReceived,
    PeerDraining,
    PeerErrorReceived,
    PressureReported,
    ProbeAcknowledged,
    ProbeMissed,
    ProgressReceived,
    ProtocolViolation,
    SessionClosed,
    SessionOpened,
    SessionRejected,
)
from nnrp_backend.protocol.session import Operation, Session, Trace
from nnrp_backend.transport.stream import ConnectionStream

__all__ = ["ClientLink", "ClientListener", "SessionRefused"]

logger = logging.getLogger(__name__)

_KINDS = {
    Outcome.RESULT: TerminalKind.RESULT,
    Outcome.DROPPED: TerminalKind.DROPPED,
    Outcome.FAILED: TerminalKind.FAILED,
    Outcome.LOST: TerminalKind.LOST,
}


class ClientListener(Protocol):
    """Hear what concerns the connection as a whole. Called from the loop; must not raise."""

    def on_lost(self, error: Exception | None) -> None:
        """The worker's end of the connection is gone; every operation has had its terminal.

        `error` is None when the worker closed in good order. Not called after `close`.
        """

    def on_pressure(self, window: int | None, level: int, retry_after_ms: int) -> None:
        """The worker reported its free slots (None: not said) and pressure level (0 to 3)."""

    def on_drain(self) -> None:
        """The worker takes no new work; what is in flight will end as usual."""

    def on_probe(self, rtt: float | None) -> None:
        """A liveness probe was answered after `rtt` seconds, or missed (None)."""


class _Nobody:
    """Hears nothing."""

    def on_lost(self, error: Exception | None) -> None:
        pass

    def on_pressure(self, window: int | None, level: int, retry_after_ms: int) -> None:
        pass

    def on_drain(self) -> None:
        pass

    def on_probe(self, rtt: float | None) -> None:
        pass


class SessionRefused(Exception):
    """The worker opened no session: `.code`, `.diagnostic`."""

    def __init__(self, code: int, diagnostic: str) -> None:
        self.code = code
        self.diagnostic = diagnostic
        super().__init__(f"session refused (0x{code:05x}): {diagnostic or 'no reason given'}")


class ClientLink(ConnectionStream[ClientConnection]):
    """One connection with one session on it."""

    def __init__(
        self, config: ClientConfig, *, cancel_grace: float, listener: ClientListener | None
    ) -> None:
        super().__init__(ClientConnection(config))
        self.cancel_grace = cancel_grace
        self.session: Session | None = None
        self.ready: asyncio.Future[Session] = self._loop.create_future()
        self.draining = False
        #: Set when this side ends the connection: then nobody needs to be told that it ended.
        self.leaving = False
        self.on_idle: Callable[[], None] | None = None
        self._listener: ClientListener = listener or _Nobody()

    # --- verbs ------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether operations can be submitted and end."""
        return (
            self.session is not None
            and self.session.is_open
            and not self.leaving
            and not self.is_lost
        )

    @property
    def in_flight(self) -> int:
        """Operations that have had no terminal yet."""
        return len(self.session.operations) if self.session is not None else 0

    def submit(
        self,
        session: Session,
        payload: bytes,
        handler: OperationHandler,
        *,
        deadline_unix_ms: int | None,
        priority: tuple[int, int] | None,
        trace: Trace | None,
    ) -> ClientOperation:
        core = self.core.submit(
            session, payload, deadline_unix_ms=deadline_unix_ms, priority=priority, trace=trace
        )
        operation = core.context = ClientOperation(self, core, handler, time.monotonic())
        self.flush_soon()
        return operation

    def cancel(self, operation: Operation, reason: int, hard: bool) -> bool:
        sent = self.core.cancel(operation, reason, hard=hard)
        self.flush_soon()
        return sent

    def grant(self, operation: Operation, window: int) -> None:
        if self.core.grant(operation, window):
            self.flush_soon()

    def set_deadline(self, operation: Operation, unix_ms: int) -> None:
        if self.core.set_deadline(operation, unix_ms):
            self.flush_soon()

    def set_priority(self, operation: Operation, priority_class: int, delta: int) -> None:
        if self.core.set_priority(operation, priority_class, delta):
            self.flush_soon()

    def abandon(self, operation: Operation) -> None:
        self.core.abandon(operation)
        self._look_idle()

    def call_after_grace(self, give_up: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(self.cancel_grace, give_up)

    def close_session(self) -> None:
        """Start an orderly end; the transport closes once the worker has agreed."""
        if self.session is not None and self.session.is_open:
            self.core.close_session(self.session, time.monotonic())
        self.settle()

    # --- events -----------------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        self.core.connect(now)

    def dispatch(self, events: Sequence[Event]) -> None:
        filled: list[ClientOperation] = []
        for event in events:
            # The hot path: one look at the type, one append.
            if type(event) is PartialReceived:
                operation: ClientOperation = event.operation.context
                if operation.add_event(event.body):
                    filled.append(operation)
            else:
                self._act(event)
        for operation in filled:
            operation.deliver()

    def _act(self, event: Event) -> None:
        match event:
            case OperationEnded():
                self._ended(event)
            case ProgressReceived(operation, stage, percent_x100):
                operation.context.progress(stage, percent_x100)
            case Connected():
                self.core.open_session(time.monotonic())
            case SessionOpened(session):
                self.session = session
                if not self.ready.done():  # nobody waits once connecting has timed out
                    self.ready.set_result(session)
            case SessionRejected(code, _, diagnostic):
                self._fail(SessionRefused(code, diagnostic))
            case SessionClosed():
                self.close()
            case PressureReported(_, window, level, _, retry_after_ms):
                self._tell(self._listener.on_pressure, window, level, retry_after_ms)
            case PeerDraining():
                self.draining = True
                self._tell(self._listener.on_drain)
            case ProbeAcknowledged(rtt):
                self._tell(self._listener.on_probe, rtt)
            case ProbeMissed():
                self._tell(self._listener.on_probe, None)
            case ConnectionClosed(error):
                self.error = self.error or error
            case ProtocolViolation(error):
                self.log_violation(error)
            case PeerErrorReceived(operation=None):
                logger.warning("%s reported an error: %s", self.peer(), event.diagnostic)
            case _:
                pass  # The core acted on it; there is nobody above to tell.

    def _ended(self, event: OperationEnded) -> None:
        event.operation.context.end(
            Terminal(
                _KINDS[event.outcome],
                event.body,
                event.drop_reason,
                event.diagnostic,
                event.retry_after_ms,
                event.status_code,
            )
        )
        self._look_idle()

    def _look_idle(self) -> None:
        if self.on_idle is not None and self.in_flight == 0:
            self.on_idle()

    def _tell(self, method: Callable[..., None], *arguments: object) -> None:
        if self.leaving:
            return
        try:
            method(*arguments)
        except Exception:
            logger.exception("the client's listener failed in %s", method.__name__)

    def _fail(self, error: Exception) -> None:
        """Handshakes that fail end the connection: there is nothing else to do on it."""
        self.error = error
        self.close()

    def lost(self) -> None:
        if self.session is not None:
            self._tell(self._listener.on_lost, self.error)
        elif self.leaving:
            self.ready.cancel()  # nobody will ask
        elif not self.ready.done():
            self.ready.set_exception(self.error or ConnectionResetError("closed by the worker"))
