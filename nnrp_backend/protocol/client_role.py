"""The client role, second half: operations and what the server says about them."""

from collections.abc import Mapping
from typing import ClassVar, Final

from nnrp_backend.protocol import constants as c
from nnrp_backend.protocol import control, messages
from nnrp_backend.protocol.body import EVENT_OVERHEAD, pack_event_head, unpack_event_body
from nnrp_backend.protocol.client_sessions import ClientSessions
from nnrp_backend.protocol.config import ClientConfig
from nnrp_backend.protocol.connection import Connection, Handler, decode_diagnostic
from nnrp_backend.protocol.constants import CancelReason, Capability, ErrorCode, MessageType
from nnrp_backend.protocol.credit import read_flow
from nnrp_backend.protocol.errors import (
    LocalProtocolError,
    OperationLimitReached,
    RemoteProtocolError,
)
from nnrp_backend.protocol.events import (
    OperationEnded,
    Outcome,
    PartialReceived,
    PeerDraining,
    PeerErrorReceived,
    PressureReported,
    ProgressReceived,
    RetryAdvised,
)
from nnrp_backend.protocol.header import Packet
from nnrp_backend.protocol.session import Operation, Session, Trace
from nnrp_backend.protocol.states import OperationState, Trigger

__all__ = ["ClientConnection"]

_U32: Final = 0xFFFFFFFF
_U64: Final = 0xFFFFFFFFFFFFFFFF
_SUBMIT: Final = messages.FRAME_SUBMIT
_PARTIAL: Final = messages.PARTIAL_RESULT.struct
_PARTIAL_SIZE: Final = messages.PARTIAL_RESULT.size
_PARTIAL_FLAGS: Final = 0b11


class ClientConnection(ClientSessions):
    """Client end of a connection: ``connect``, ``open_session``, ``submit``, and then events."""

    __slots__ = ("_last_operation_id",)

    def __init__(self, config: ClientConfig | None = None) -> None:
        super().__init__(config)
        self._last_operation_id = 0

    # --- verbs -----------------------------------------------------------------------------------

    def submit(
        self,
        session: Session,
        payload: bytes,
        *,
        deadline_unix_ms: int | None = None,
        priority: tuple[int, int] | None = None,
        trace: Trace | None = None,
    ) -> Operation:
        """Send FRAME_SUBMIT with one structured event, and what belongs to it, in one write.

        Args:
            session: An open session.
            payload: The JSON envelope.
            deadline_unix_ms: Absolute deadline, sent as DEADLINE.
            priority: Class and delta, sent as PRIORITY_UPDATE where granted.
            trace: Sent in the header; to a foreign server also as the session's TRACE_CONTEXT,
                where granted (our own carry all of it in the envelope).

        Raises:
            OperationLimitReached: as many operations as were granted are in flight.
            PacketTooLarge: the payload does not fit into a packet that the server takes.
            LocalProtocolError: the session is not open, the server drains, or a value does not fit
                its field.
        """
        if not session.is_open or session.draining:
            raise LocalProtocolError(f"{session!r} takes no operations")
        if not session.available:
            raise OperationLimitReached(session.session_id, session.max_in_flight)
        # What cannot be sent must fail before anything is queued.
        self._check_size(_SUBMIT.size, EVENT_OVERHEAD + len(payload))
        _check_schedule(deadline_unix_ms, priority)
        operation = self._new_operation(session)
        operation.trace = trace
        ours = session.peer_is_ours
        if ours:
            # Our server keeps what precedes a submit, and so knows it when it admits.
            self._send_scheduling(operation, deadline_unix_ms, priority)
        else:
            self._send_session_trace(operation)
        self._send(
            MessageType.FRAME_SUBMIT,
            _SUBMIT.pack(messages.FrameSubmit(operation_id=operation.operation_id)),
            payload,
            head=pack_event_head(len(payload)),
            session_id=session.session_id,
            frame_id=operation.frame_id,
            trace_id=trace.trace_id & _U64 if trace else 0,
        )
        if not ours:
            self._send_scheduling(operation, deadline_unix_ms, priority)
        return operation

    def cancel(
        self, operation: Operation, reason: int = CancelReason.USER_CANCELLED, *, hard: bool = False
    ) -> bool:
        """Send CANCEL, or ABORT when ``hard``; return whether anything was sent.

        The terminal is still to come; result events are not reported any more. A second call does
        nothing unless it makes the first hard.
        """
        if operation.done or (
            operation.state is OperationState.CANCELLING and operation.hard >= hard
        ):
            return False
        message = control.ControlRequest(
            operation.operation_id,
            self._next_control_sequence(),
            reason,
            flags=c.ControlFlags.HARD_ABORT if hard else c.ControlFlags.COOPERATIVE,
        )
        message_type = MessageType.ABORT if hard else MessageType.CANCEL
        self._send_control(operation, message_type, control.CONTROL_REQUEST.pack(message))
        operation.advance(Trigger.CANCEL)
        operation.cancel_reason = reason
        operation.hard = hard
        return True

    def set_deadline(self, operation: Operation, unix_ms: int, *, discard: bool = True) -> bool:
        """Send DEADLINE; return whether anything was sent (not once it is cancelled or done)."""
        if operation.state is not OperationState.ACTIVE:
            return False
        _check_schedule(unix_ms, None)
        flags = c.SchedulingFlags.EMIT_DROP_REASON
        if discard:
            flags |= c.SchedulingFlags.DISCARD_STALE
        self._send_schedule(MessageType.DEADLINE, operation, deadline=unix_ms, flags=flags)
        operation.deadline_unix_ms = unix_ms
        return True

    def set_priority(self, operation: Operation, priority_class: int, delta: int = 0) -> bool:
        """Send PRIORITY_UPDATE where granted; return whether anything was sent."""
        if operation.state is not OperationState.ACTIVE:
            return False
        if not operation.session.may(Capability.PRIORITY_UPDATE):
            return False
        _check_schedule(None, (priority_class, delta))
        operation.priority_class, operation.priority_delta = priority_class, delta
        self._send_schedule(MessageType.PRIORITY_UPDATE, operation)
        return True

    def supersede(self, old: Operation, new: Operation) -> bool:
        """Replace ``old`` by ``new``, already submitted; return whether anything was sent.

        SUPERSEDE where granted, else a CANCEL of ``old`` for that reason.

        Raises:
            LocalProtocolError: the operations are of different sessions.
        """
        if old.session is not new.session:
            raise LocalProtocolError("operations of different sessions")
        if not old.session.may(Capability.SUPERSEDE):
            return self.cancel(old, CancelReason.SUPERSEDED)
        if old.state is not OperationState.ACTIVE:
            return False
        old.advance(Trigger.CANCEL)
        old.cancel_reason = CancelReason.SUPERSEDED
        message = control.Supersede(
            old.operation_id,
            new.operation_id,
            self._next_control_sequence(),
            c.DropReason.SUPERSEDED,
            flags=1,
        )
        self._send_control(old, MessageType.SUPERSEDE, control.SUPERSEDE.pack(message))
        return True

    def grant(self, operation: Operation, window: int) -> bool:
        """Send CREDIT_UPDATE for one operation where granted; return whether anything was sent.

        ``window`` is absolute: events that may come from now on. A foreign server gets one more,
        because its terminal costs a credit too. Windows of a session or a connection are never
        sent: streams would share them, and a stalled one would hold up the others.
        """
        session = operation.session
        if operation.state is not OperationState.ACTIVE:
            return False
        if not session.may(Capability.CREDIT_BACKPRESSURE):
            return False
        message = control.Pressure(
            operation.operation_id,
            window if session.peer_is_ours else window + 1,
            flags=c.PressureFlags.OPERATION_SCOPE,
        )
        self._send_control(operation, MessageType.CREDIT_UPDATE, control.PRESSURE.pack(message))
        return True

    def abandon(self, operation: Operation) -> None:
        """Forget an operation whose terminal never came; what still comes is counted as late."""
        if not operation.done:
            operation.advance(Trigger.LOSS)

    # --- sending ---------------------------------------------------------------------------------

    def _new_operation(self, session: Session) -> Operation:
        # Operation ids are never reused: a peer may remember them. Frame ids are 32 bits wide and
        # wrap around, past those still in flight.
        self._last_operation_id += 1
        while (frame_id := (self._last_operation_id - 1) % _U32 + 1) in session.frames:
            self._last_operation_id += 1
        operation = Operation(session, self._last_operation_id, frame_id)
        session.register(operation)
        return operation

    def _send_control(self, operation: Operation, message_type: int, metadata: bytes) -> None:
        self._send(
            message_type,
            metadata,
            session_id=operation.session.session_id,
            frame_id=operation.frame_id,
        )

    def _send_schedule(
        self, message_type: int, operation: Operation, *, deadline: int = 0, flags: int = 0
    ) -> None:
        message = control.Scheduling(
            operation.operation_id,
            self._next_control_sequence(),
            operation.priority_class,
            operation.priority_delta,
            deadline,
            flags,
        )
        self._send_control(operation, message_type, control.SCHEDULING.pack(message))

    def _send_scheduling(
        self, operation: Operation, deadline: int | None, priority: tuple[int, int] | None
    ) -> None:
        if priority is not None:
            self.set_priority(operation, *priority)
        if deadline is not None:
            self.set_deadline(operation, deadline)

    def _send_session_trace(self, operation: Operation) -> None:
        """Make the operation's trace the session's, right before its submit."""
        session, trace = operation.session, operation.trace
        if trace == session.trace or not session.may(Capability.TRACE_CONTEXT):
            return
        session.trace = trace
        # There is no way to say "no trace": the published runtime refuses an id of 0. An operation
        # that has none gets one of its own, unsampled, or it would fall into its predecessor's.
        trace = trace or Trace(0, sampled=False)
        message = control.TraceContext(
            trace.trace_id & _U64 or operation.operation_id,
            trace.span_id & _U64 or operation.operation_id,
            flags=c.TraceFlags.SAMPLED if trace.sampled else 0,
        )
        self._send(
            MessageType.TRACE_CONTEXT,
            control.TRACE_CONTEXT.pack(message),
            session_id=session.session_id,
        )

    # --- what the server says --------------------------------------------------------------------

    def _on_partial_result(self, packet: Packet) -> None:
        _, _, session_id, frame_id, _, metadata, body = packet
        if len(metadata) != _PARTIAL_SIZE:
            messages.PARTIAL_RESULT.unpack(metadata)  # raises
        operation_id, sequence, _, _, body_bytes, flags = _PARTIAL.unpack(metadata)
        session = self.sessions.get(session_id)
        operation = session and session.operations.get(operation_id)
        if not operation or operation.frame_id != frame_id:
            self._in_flight(packet, operation_id)
            return
        if operation.state is not OperationState.ACTIVE or sequence < operation.result_sequence:
            self.counters.late_events += 1
            return
        if body_bytes != len(body) or flags & ~_PARTIAL_FLAGS:
            # The stream has a hole now, and to go on would hide it.
            detail = "body or flags contradict the metadata"
            self.cancel(operation, CancelReason.UNSPECIFIED)
            self._ended(operation, Outcome.FAILED, diagnostic=f"unreadable event: {detail}")
            raise RemoteProtocolError(detail)
        if not body:
            raise RemoteProtocolError("an event without a body")
        operation.result_sequence = sequence
        if body[0] != 0x7B:
            body = _typed_or_opaque(body)
        self._events.append(tuple.__new__(PartialReceived, (operation, body)))

    def _in_flight(self, packet: Packet, operation_id: int) -> Operation | None:
        """Return the operation a frame names; count the frame as late when it is over.

        Raises:
            RemoteProtocolError: there never was such an operation, or the frame is another one's.
        """
        operation = self._operation_of(packet, operation_id)
        if operation is None:
            if not 0 < operation_id <= self._last_operation_id:
                raise RemoteProtocolError(
                    f"operation {operation_id} was never submitted", code=ErrorCode.INVALID_STATE
                )
            self.counters.late_events += 1
        return operation

    def _of_frame(self, packet: Packet) -> Operation | None:
        """Return the operation of a terminal that names only its frame."""
        operation = self._session_of(packet).frames.get(packet.frame_id)
        if operation is None:
            if not 0 < packet.frame_id <= self._last_operation_id:
                raise RemoteProtocolError(
                    f"frame {packet.frame_id} was never submitted", code=ErrorCode.INVALID_STATE
                )
            self.counters.late_events += 1
        return operation

    def _on_progress(self, packet: Packet) -> None:
        message = control.PROGRESS.unpack(packet.metadata, packet.body)
        percent = message.percent_x100
        if percent > 10_000 and percent != c.PERCENT_UNKNOWN:
            raise RemoteProtocolError(f"percent_x100 is {percent}")
        operation = self._in_flight(packet, message.operation_id)
        if operation is None:
            return
        if (
            operation.state is not OperationState.ACTIVE
            or message.progress_sequence < operation.progress_sequence
        ):
            self.counters.late_events += 1
            return
        operation.progress_sequence = message.progress_sequence
        self._events.append(ProgressReceived(operation, message.stage_code, percent))

    def _on_result_push(self, packet: Packet) -> None:
        operation = self._of_frame(packet)
        if operation is None:
            return
        try:
            message = messages.RESULT_PUSH.unpack(packet.metadata)
            body = unpack_event_body(
                packet.body, message.payload_kind_bitmap, message.payload_frame_count
            )
        except RemoteProtocolError as error:
            # It is a terminal all the same: nothing else will come for this operation.
            self._ended(operation, Outcome.FAILED, diagnostic=f"unreadable result: {error.detail}")
            raise
        self._ended(operation, Outcome.RESULT, body=body, status_code=message.status_code)

    def _on_result_drop(self, packet: Packet) -> None:
        operation = self._of_frame(packet)
        if operation is not None:
            self._ended(operation, Outcome.DROPPED)

    def _on_result_drop_reason(self, packet: Packet) -> None:
        message = control.RESULT_DROP_REASON.unpack(packet.metadata, packet.body)
        operation = self._in_flight(packet, message.operation_id)
        if operation is not None:
            self._ended(
                operation,
                Outcome.DROPPED,
                drop_reason=message.drop_reason_code,
                diagnostic=decode_diagnostic(packet.body),
            )

    def _ended(
        self,
        operation: Operation,
        outcome: Outcome,
        *,
        body: bytes = b"",
        status_code: int = 0,
        drop_reason: int = 0,
        diagnostic: str = "",
    ) -> None:
        operation.advance(Trigger.LOSS if outcome is Outcome.LOST else Trigger.TERMINAL)
        self._events.append(
            OperationEnded(
                operation,
                outcome,
                body,
                status_code,
                drop_reason,
                diagnostic,
                operation.retry_after_ms,
            )
        )

    def _operation_lost(self, operation: Operation, why: str) -> None:
        self._events.append(OperationEnded(operation, Outcome.LOST, diagnostic=why))

    def _operation_failed(
        self, operation: Operation, message: messages.Error, diagnostic: str
    ) -> None:
        operation.retry_after_ms = message.retry_after_ms or operation.retry_after_ms
        self._ended(operation, Outcome.FAILED, diagnostic=diagnostic)

    def _on_recoverable_error(self, packet: Packet) -> None:
        message = control.RECOVERABLE_ERROR.unpack(packet.metadata, packet.body)
        frame_id = packet.frame_id or message.related_frame_id
        operation = self._session_of(packet).frames.get(frame_id)
        if operation is not None and message.retry_after_ms:
            operation.retry_after_ms = message.retry_after_ms
        self._events.append(
            PeerErrorReceived(
                operation,
                message.error_code,
                message.error_scope,
                False,
                message.retry_after_ms,
                decode_diagnostic(packet.body),
            )
        )

    def _on_retry_after(self, packet: Packet) -> None:
        message = control.RETRY_AFTER.unpack(packet.metadata, packet.body)
        operation = None
        if packet.frame_id:
            operation = self._in_flight(packet, message.scope_id)
            if operation is None:
                return
            operation.retry_after_ms = message.retry_after_ms
        self._events.append(RetryAdvised(operation, message.retry_after_ms, message.jitter_ms))

    def _on_flow(self, packet: Packet) -> None:
        flow = read_flow(packet)
        session = None
        if flow.scope is not c.FlowScope.CONNECTION:
            session = self._session_of(packet)
        if self._stale_flow(flow, session or self):
            return
        if flow.draining:
            for drained in [session] if session else self.sessions.values():
                drained.draining = True
            self._events.append(PeerDraining(session, flow.retry_after_ms))
        self._events.append(
            PressureReported(session, flow.window, flow.level, flow.reason, flow.retry_after_ms)
        )

    def _on_trace_context(self, packet: Packet) -> None:
        # Comes before the drop that answers a CANCEL; it says nothing we do not know.
        control.TRACE_CONTEXT.unpack(packet.metadata, packet.body)
        self._session_of(packet)

    def _on_unsupported(self, packet: Packet) -> None:
        """Objects, cache and hints of a server: not used here, and nothing to answer."""
        self._session_of(packet)
        self.counters.unsupported += 1

    HANDSHAKE_HANDLERS: ClassVar[Mapping[int, Handler]] = {
        MessageType.SERVER_HELLO_ACK: ClientSessions._on_server_hello_ack,
        MessageType.ERROR: Connection._on_error,
        MessageType.CLOSE: Connection._on_close,
    }
    OPEN_HANDLERS: ClassVar[Mapping[int, Handler]] = {
        MessageType.PARTIAL_RESULT: _on_partial_result,
        MessageType.RESULT_PUSH: _on_result_push,
        MessageType.RESULT_DROP: _on_result_drop,
        MessageType.RESULT_DROP_REASON: _on_result_drop_reason,
        MessageType.PROGRESS: _on_progress,
        MessageType.ERROR_RECOVERABLE: _on_recoverable_error,
        MessageType.RETRY_AFTER: _on_retry_after,
        MessageType.CREDIT_UPDATE: _on_flow,
        MessageType.BACKPRESSURE: _on_flow,
        MessageType.FLOW_UPDATE: _on_flow,
        MessageType.TRACE_CONTEXT: _on_trace_context,
        MessageType.SESSION_OPEN_ACK: ClientSessions._on_session_open_ack,
        MessageType.SESSION_CLOSE: Connection._on_session_close,
        MessageType.SESSION_CLOSE_ACK: ClientSessions._on_session_close_ack,
        MessageType.CAPABILITY_NEGOTIATION: ClientSessions._on_capabilities,
        MessageType.DEGRADE_PROFILE: ClientSessions._on_capabilities,
        MessageType.TRANSPORT_PROBE_ACK: ClientSessions._on_transport_probe_ack,
        MessageType.PING: Connection._on_ping,
        MessageType.PONG: Connection._on_pong,
        MessageType.ERROR: Connection._on_error,
        MessageType.CLOSE: Connection._on_close,
        **dict.fromkeys(c.UNUSED_BY_CLIENT, _on_unsupported),
    }


def _check_schedule(deadline: int | None, priority: tuple[int, int] | None) -> None:
    """Fail when a deadline or a priority does not fit its field, or says nothing."""
    if deadline == 0:
        raise LocalProtocolError("a deadline of 0 is none")
    priority_class, delta = priority or (0, 0)
    control.SCHEDULING.pack(control.Scheduling(1, 0, priority_class, delta, deadline or 0))


def _typed_or_opaque(body: bytes) -> bytes:
    """Take a JSON event out of a typed frame, where a foreign server put one into a partial."""
    try:
        return unpack_event_body(body, c.PayloadKind.STRUCTURED_EVENT, 1)
    except RemoteProtocolError:
        return body
