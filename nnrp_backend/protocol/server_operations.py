"""The server role, second part: what clients say about operations."""

from nnrp_backend.protocol import constants as c
from nnrp_backend.protocol import control, messages
from nnrp_backend.protocol.body import unpack_event_body
from nnrp_backend.protocol.connection import encode_diagnostic, mistaken_identity
from nnrp_backend.protocol.constants import CancelReason, DropReason, MessageType
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.events import (
    DeadlineChanged,
    OperationCancelled,
    OperationSubmitted,
    PriorityChanged,
    Refusal,
    SubmitRefused,
)
from nnrp_backend.protocol.header import Packet
from nnrp_backend.protocol.server_sessions import ServerSessions
from nnrp_backend.protocol.session import Operation, Reservation, Session, Trace
from nnrp_backend.protocol.states import OperationState, Trigger

__all__ = ["ServerOperations"]


class ServerOperations(ServerSessions):
    """Take submits and control frames; the verbs that answer them come on top."""

    __slots__ = ()

    # --- submits ---------------------------------------------------------------------------------

    def _on_frame_submit(self, packet: Packet) -> None:
        session = self._session_of(packet)
        if not packet.frame_id:
            raise mistaken_identity("frame id 0 is no operation's")
        try:
            message = messages.FRAME_SUBMIT.unpack(packet.metadata)
        except RemoteProtocolError as error:
            if packet.frame_id not in session.frames:
                self._refuse(
                    Operation(session, 0, packet.frame_id), Refusal.MALFORMED, error.detail
                )
            raise
        operation = Operation(session, message.operation_id, packet.frame_id)
        if packet.frame_id in session.frames:
            self._refuse_frame(operation)
        if operation.operation_id in session.operations:
            self._refuse_duplicate(operation)
        try:
            payload = unpack_event_body(
                packet.body, message.payload_kind_bitmap, message.payload_frame_count
            )
            if not payload:
                raise RemoteProtocolError("there is no event in the body")
        except RemoteProtocolError as error:
            session.reservations.pop(operation.operation_id, None)
            self._refuse(operation, Refusal.MALFORMED, error.detail)
            raise
        self._admit(operation, payload, packet.trace_id)

    def _admit(self, operation: Operation, payload: bytes, trace_id: int) -> None:
        session = operation.session
        reservation = session.reservations.pop(operation.operation_id, None)
        limit = session.max_in_flight
        if session.draining or len(session.operations) >= limit:
            self.counters.refused_submits += 1
            if session.draining:
                self._refuse(operation, Refusal.DRAINING, "the server is draining")
            else:
                self._refuse(operation, Refusal.TOO_MANY_OPERATIONS, f"{limit} are in flight")
            return
        operation.trace = session.trace or (Trace(trace_id) if trace_id else None)
        if reservation is not None and reservation.frame_id == operation.frame_id:
            operation.control_sequence = reservation.control_sequence
            operation.deadline_unix_ms = reservation.deadline_unix_ms
            if reservation.priority is not None:
                operation.priority_class, operation.priority_delta = reservation.priority
        session.register(operation)
        self._events.append(OperationSubmitted(operation, payload))

    def _refuse(self, operation: Operation, refusal: Refusal, detail: str) -> None:
        operation.state = OperationState.REFUSED
        self._events.append(SubmitRefused(operation, refusal, detail))

    def _refuse_frame(self, operation: Operation) -> None:
        """Refuse a submit on the frame id of a running operation.

        RESULT_PUSH names only the frame and would end the running one: the answer is a drop, which
        names both ids. A copy of both ids gets nothing: the terminal of the first is its own, too.
        """
        if operation.operation_id not in operation.session.operations:
            detail = f"frame {operation.frame_id} belongs to a running operation"
            self._send_drop(operation, DropReason.DUPLICATE_FRAME, detail)
        raise mistaken_identity("the frame id is in use")

    def _refuse_duplicate(self, operation: Operation) -> None:
        self._refuse(operation, Refusal.DUPLICATE_OPERATION, "the operation id is in use")
        raise mistaken_identity("the operation id is in use")

    # --- control ---------------------------------------------------------------------------------

    def _on_cancel(self, packet: Packet) -> None:
        message = control.CONTROL_REQUEST.unpack(packet.metadata, packet.body)
        hard = packet.message_type == MessageType.ABORT
        if not message.operation_id and packet.frame_id:
            raise mistaken_identity("operation 0, which is all of the session, with a frame id")
        if not message.operation_id:
            targets = list(self._session_of(packet).operations.values())
        else:
            target = self._controlled(packet, message.operation_id, message.control_sequence)
            targets = [target] if target is not None else []
        for operation in targets:
            self._cancelled(operation, message.reason_code, hard=hard)

    def _on_frame_cancel(self, packet: Packet) -> None:
        operation = self._session_of(packet).frames.get(packet.frame_id)
        if operation is None:
            self.counters.late_events += 1
            return
        self._cancelled(operation, CancelReason.USER_CANCELLED, hard=False)

    def _cancelled(
        self,
        operation: Operation,
        reason: int,
        *,
        hard: bool,
        drop_reason: int = DropReason.PEER_CANCELLED,
    ) -> None:
        if operation.state is OperationState.CANCELLING and operation.hard >= hard:
            return
        if operation.state is OperationState.ACTIVE:
            operation.cancel_reason = reason
            operation.drop_reason = drop_reason
        operation.advance(Trigger.CANCEL)
        operation.hard = hard
        self._events.append(OperationCancelled(operation, operation.cancel_reason, hard))

    def _on_supersede(self, packet: Packet) -> None:
        message = control.SUPERSEDE.unpack(packet.metadata, packet.body)
        old, new = message.old_operation_id, message.new_operation_id
        session = self._session_of(packet)
        bound = session.frames.get(packet.frame_id)
        # The frame may be of either operation, and the newer one may still be to come.
        if bound is not None and bound.operation_id not in (old, new):
            raise mistaken_identity(f"frame {packet.frame_id} belongs to neither operation")
        operation = session.operations.get(old)
        if operation is None:
            self.counters.late_events += 1
        elif self._is_fresh(operation, message.control_sequence):
            self._cancelled(
                operation,
                CancelReason.SUPERSEDED,
                hard=False,
                drop_reason=message.drop_reason_code or DropReason.SUPERSEDED,
            )

    def _on_deadline(self, packet: Packet) -> None:
        message = control.SCHEDULING.unpack(packet.metadata, packet.body)
        if not message.deadline_unix_ms:
            raise RemoteProtocolError("a deadline of 0 is none")
        operation = self._scheduled(packet, message)
        if operation is not None:
            operation.deadline_unix_ms = message.deadline_unix_ms
            discard = bool(message.flags & c.SchedulingFlags.DISCARD_STALE)
            self._events.append(DeadlineChanged(operation, message.deadline_unix_ms, discard))

    def _on_priority_update(self, packet: Packet) -> None:
        message = control.SCHEDULING.unpack(packet.metadata, packet.body)
        operation = self._scheduled(packet, message)
        if operation is not None:
            operation.priority_class = message.priority_class
            operation.priority_delta = message.priority_delta
            self._events.append(
                PriorityChanged(operation, message.priority_class, message.priority_delta)
            )

    def _scheduled(self, packet: Packet, message: control.Scheduling) -> Operation | None:
        """Return the operation to act on; what precedes its submit is kept for it."""
        session = self._session_of(packet)
        if message.operation_id in session.operations:
            return self._controlled(packet, message.operation_id, message.control_sequence)
        if not packet.frame_id or packet.frame_id in session.frames:
            raise mistaken_identity(
                f"frame {packet.frame_id} cannot be operation {message.operation_id}'s"
            )
        self._reserve(session, packet, message)
        return None

    def _reserve(self, session: Session, packet: Packet, message: control.Scheduling) -> None:
        # A frame for an operation that just ended lands here, too: reservations are bounded, and
        # the oldest makes room.
        reservations = session.reservations
        reservation = reservations.get(message.operation_id)
        if reservation is None or reservation.frame_id != packet.frame_id:
            reservation = Reservation(packet.frame_id)
            reservations.pop(message.operation_id, None)
            reservations[message.operation_id] = reservation
            if len(reservations) > self._config.max_reservations:
                del reservations[next(iter(reservations))]
        if message.control_sequence < reservation.control_sequence:
            self.counters.stale_controls += 1
            return
        reservation.control_sequence = message.control_sequence
        if packet.message_type == MessageType.PRIORITY_UPDATE:
            reservation.priority = (message.priority_class, message.priority_delta)
        else:
            reservation.deadline_unix_ms = message.deadline_unix_ms

    def _controlled(self, packet: Packet, operation_id: int, sequence: int) -> Operation | None:
        """Return the operation in flight that a control frame may act on, unless it is stale."""
        operation = self._operation_of(packet, operation_id)
        if operation is None:
            self.counters.late_events += 1
            return None
        return operation if self._is_fresh(operation, sequence) else None

    def _is_fresh(self, operation: Operation, sequence: int) -> bool:
        # An equal sequence is let through: control frames are idempotent, and some peers number
        # every frame 1.
        if sequence < operation.control_sequence:
            self.counters.stale_controls += 1
            return False
        operation.control_sequence = sequence
        return True

    def _on_trace_context(self, packet: Packet) -> None:
        message = control.TRACE_CONTEXT.unpack(packet.metadata, packet.body)
        session = self._session_of(packet)
        trace = None
        if message.trace_id:
            sampled = bool(message.flags & c.TraceFlags.SAMPLED)
            trace = Trace(message.trace_id, message.span_id, sampled)
        if not packet.frame_id:
            session.trace = trace
        elif operation := session.frames.get(packet.frame_id):
            operation.trace = trace
        else:
            self.counters.late_events += 1

    def _operation_lost(self, operation: Operation, why: str) -> None:
        self._events.append(
            OperationCancelled(operation, CancelReason.TRANSPORT_CLOSING, hard=True)
        )

    # --- sending ---------------------------------------------------------------------------------

    def _send_about(
        self,
        operation: Operation,
        message_type: int,
        metadata: bytes,
        body: bytes = b"",
        *,
        head: bytes = b"",
    ) -> None:
        self._send(
            message_type,
            metadata,
            body,
            head=head,
            session_id=operation.session.session_id,
            frame_id=operation.frame_id,
        )

    def _send_drop(self, operation: Operation, reason: int, diagnostic: str) -> None:
        body = encode_diagnostic(diagnostic)
        message = control.ResultDropReason(
            operation.operation_id,
            operation.result_sequence + 1,
            reason,
            flags=c.DropFlags.FINAL,
            diagnostic_bytes=len(body),
        )
        self._send_about(
            operation,
            MessageType.RESULT_DROP_REASON,
            control.RESULT_DROP_REASON.pack(message),
            body,
        )
