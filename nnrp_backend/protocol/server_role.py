"""The server role, third part: the verbs, and what is understood in which state."""

from collections.abc import Mapping
from struct import Struct
from typing import ClassVar, Final

from nnrp_backend.protocol import constants as c
from nnrp_backend.protocol import control, messages
from nnrp_backend.protocol.body import pack_event_head
from nnrp_backend.protocol.config import ServerConfig
from nnrp_backend.protocol.connection import COPY_LIMIT, Connection, Handler
from nnrp_backend.protocol.constants import (
    Capability,
    DropReason,
    ErrorCode,
    MessageType,
)
from nnrp_backend.protocol.errors import LocalProtocolError, PacketTooLarge
from nnrp_backend.protocol.header import pack_header
from nnrp_backend.protocol.server_operations import ServerOperations
from nnrp_backend.protocol.server_sessions import ServerSessions, pack_recoverable
from nnrp_backend.protocol.session import Operation, Trace
from nnrp_backend.protocol.states import OperationState, Trigger

__all__ = ["ServerConnection"]

_PARTIAL_META: Final = messages.PARTIAL_RESULT.size
# A whole PARTIAL_RESULT up to its body in one pack: the header is constant up to meta_len; view,
# route, trace, object and delta fields and the flags stay 0.
_PARTIAL_START: Final = pack_header(MessageType.PARTIAL_RESULT, _PARTIAL_META, 0)[:16]
_PARTIAL_HEAD: Final = Struct("<16sIII12xQQ16xI4x")
_PARTIAL_OVERHEAD: Final = _PARTIAL_HEAD.size


class ServerConnection(ServerOperations):
    """Server end of a connection: ``accept``, and then answer what the events ask for."""

    __slots__ = ("_largest_event",)

    def __init__(self, config: ServerConfig | None = None) -> None:
        super().__init__(config)
        self._largest_event = self._max_packet_bytes - _PARTIAL_OVERHEAD

    # --- verbs -----------------------------------------------------------------------------------

    def send_partial(self, operation: Operation, body: bytes) -> bool:
        """Send one event; return False, and send nothing, once the operation is cancelled or done.

        Takes one credit of every window that applies. Windows gate what is pulled from the engine
        (``may_send``): an event that was already pulled goes out even when they are empty.

        Raises:
            PacketTooLarge: nothing was sent, and the operation is still owed its terminal.
        """
        if operation.state is not OperationState.ACTIVE:
            return False
        size = len(body)
        if size > self._largest_event:
            raise PacketTooLarge(size + _PARTIAL_OVERHEAD, self._max_packet_bytes)
        session = operation.session
        operation.result_sequence = sequence = operation.result_sequence + 1
        head = _PARTIAL_HEAD.pack(
            _PARTIAL_START,
            size,
            session.session_id,
            operation.frame_id,
            operation.operation_id,
            sequence,
            size,
        )
        if size > COPY_LIMIT:
            self._outgoing += (head, body)
        else:
            self._outgoing.append(head + body)
        if operation.credit is not None:
            operation.credit -= 1
        if session.credit is not None:
            session.credit -= 1
        if self.credit is not None:
            self.credit -= 1
        return True

    def may_send(self, operation: Operation) -> bool:
        """Tell whether the operation, its session and the connection all have credit left."""
        for window in (operation.credit, operation.session.credit, self.credit):
            if window is not None and window <= 0:
                return False
        return True

    def set_credit(self, operation: Operation, window: int | None) -> None:
        """Set the operation's window (``None``: no limit), e.g. the first one of its envelope."""
        operation.credit = window

    def send_progress(
        self, operation: Operation, stage: int, percent_x100: int = c.PERCENT_UNKNOWN
    ) -> bool:
        """Send PROGRESS where granted; return whether anything was sent."""
        if operation.state is not OperationState.ACTIVE:
            return False
        if not operation.session.may(Capability.PROGRESS_PARTIAL):
            return False
        operation.progress_sequence += 1
        message = control.Progress(
            operation.operation_id, operation.progress_sequence, stage, percent_x100
        )
        self._send_about(operation, MessageType.PROGRESS, control.PROGRESS.pack(message))
        return True

    def complete(self, operation: Operation, body: bytes, status_code: int = 200) -> bool:
        """Send the terminal RESULT_PUSH; return False when none is owed any more.

        An operation that the client cancelled is dropped instead, whatever came of it.

        Args:
            operation: What to complete.
            body: The terminal's JSON event; empty for an empty success.
            status_code: For the application; it says nothing about the terminal.

        Raises:
            PacketTooLarge: nothing was sent, and the terminal is still owed.
        """
        if operation.state is OperationState.CANCELLING:
            return self.drop(operation)
        if not _is_owed(operation):
            return False
        message = messages.ResultPush(
            status_code=status_code,
            payload_kind_bitmap=c.PayloadKind.STRUCTURED_EVENT if body else 0,
            payload_frame_count=1 if body else 0,
        )
        self._send_about(
            operation,
            MessageType.RESULT_PUSH,
            messages.RESULT_PUSH.pack(message),
            body,
            head=pack_event_head(len(body)) if body else b"",
        )
        operation.advance(Trigger.TERMINAL)
        return True

    def drop(
        self, operation: Operation, reason: int = DropReason.PEER_CANCELLED, diagnostic: str = ""
    ) -> bool:
        """Send the terminal RESULT_DROP_REASON; return False when none is owed any more.

        For an operation that the client cancelled or superseded, what the client did is the reason
        that is sent, and a session TRACE_CONTEXT precedes it.
        """
        if not _is_owed(operation):
            return False
        if not reason:
            raise LocalProtocolError("a drop has a reason")
        if operation.state is OperationState.CANCELLING:
            reason = operation.drop_reason
            self._send_cancel_trace(operation)
        self._send_drop(operation, reason, diagnostic)
        operation.advance(Trigger.TERMINAL)
        return True

    def retry_after(
        self,
        operation: Operation,
        retry_after_ms: int,
        *,
        jitter_ms: int = 0,
        code: int = ErrorCode.SERVER_BUSY,
        diagnostic: str = "",
    ) -> bool:
        """Send ERROR_RECOVERABLE and RETRY_AFTER where granted, before the terminal.

        Returns whether anything was sent.
        """
        if not self.recoverable_error(operation, code, diagnostic, retry_after_ms=retry_after_ms):
            return False
        message = control.RetryAfter(
            operation.operation_id,
            self._next_control_sequence(),
            retry_after_ms,
            jitter_ms,
            reason_code=c.PressureReason.RECEIVER_QUEUE_FULL,
            flags=c.DropFlags.RETRYABLE,
        )
        self._send_about(operation, MessageType.RETRY_AFTER, control.RETRY_AFTER.pack(message))
        return True

    def recoverable_error(
        self, operation: Operation, code: int, diagnostic: str = "", *, retry_after_ms: int = 0
    ) -> bool:
        """Send ERROR_RECOVERABLE about an operation where granted; return whether it was sent."""
        session = operation.session
        if not session.may(Capability.RECOVERABLE_ERROR) or not _is_owed(operation):
            return False
        if operation.state is OperationState.CANCELLING:
            return False  # only a terminal may follow a cancel
        metadata, body = pack_recoverable(
            session,
            operation.frame_id,
            code,
            diagnostic,
            retry_after_ms=retry_after_ms,
            flags=c.DropFlags.RETRYABLE if retry_after_ms else 0,
        )
        self._send_about(operation, MessageType.ERROR_RECOVERABLE, metadata, body)
        return True

    def _send_cancel_trace(self, operation: Operation) -> None:
        # The published client fails its whole session on a TRACE_CONTEXT with an id of 0.
        trace = operation.trace or Trace(0, 0, sampled=False)
        message = control.TraceContext(
            trace.trace_id or operation.operation_id,
            trace.span_id or operation.frame_id,
            stage_code=c.Stage.DROPPED,
            flags=c.TraceFlags.SAMPLED if trace.sampled else 0,
        )
        self._send(
            MessageType.TRACE_CONTEXT,
            control.TRACE_CONTEXT.pack(message),
            session_id=operation.session.session_id,
        )

    HANDSHAKE_HANDLERS: ClassVar[Mapping[int, Handler]] = {
        MessageType.CLIENT_HELLO: ServerSessions._on_client_hello,
        MessageType.ERROR: Connection._on_error,
        MessageType.CLOSE: Connection._on_close,
    }
    OPEN_HANDLERS: ClassVar[Mapping[int, Handler]] = {
        MessageType.FRAME_SUBMIT: ServerOperations._on_frame_submit,
        MessageType.CREDIT_UPDATE: ServerSessions._on_flow,
        MessageType.BACKPRESSURE: ServerSessions._on_flow,
        MessageType.FLOW_UPDATE: ServerSessions._on_flow,
        MessageType.CANCEL: ServerOperations._on_cancel,
        MessageType.ABORT: ServerOperations._on_cancel,
        MessageType.FRAME_CANCEL: ServerOperations._on_frame_cancel,
        MessageType.SUPERSEDE: ServerOperations._on_supersede,
        MessageType.DEADLINE: ServerOperations._on_deadline,
        MessageType.EXPIRE_AT: ServerOperations._on_deadline,
        MessageType.PRIORITY_UPDATE: ServerOperations._on_priority_update,
        MessageType.TRACE_CONTEXT: ServerOperations._on_trace_context,
        MessageType.SESSION_OPEN: ServerSessions._on_session_open,
        MessageType.SESSION_CLOSE: Connection._on_session_close,
        MessageType.CAPABILITY_NEGOTIATION: ServerSessions._on_capability_negotiation,
        MessageType.DEGRADE_PROFILE: ServerSessions._on_degrade_profile,
        MessageType.CACHE_REFERENCE: ServerSessions._on_cache_reference,
        MessageType.TRANSPORT_PROBE: ServerSessions._on_transport_probe,
        MessageType.PING: Connection._on_ping,
        MessageType.PONG: Connection._on_pong,
        MessageType.ERROR: Connection._on_error,
        MessageType.CLOSE: Connection._on_close,
        **dict.fromkeys(c.UNUSED_BY_SERVER, ServerSessions._on_unsupported),
    }


def _is_owed(operation: Operation) -> bool:
    """Tell whether a terminal is owed and can still be sent."""
    return not operation.done and operation.session.is_open
