"""The part of a connection that both roles share: bytes in, events out; verbs in, bytes out."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from nnrp_backend.protocol import messages
from nnrp_backend.protocol.constants import (
    HEADER_LENGTH,
    MAX_DIAGNOSTIC_BYTES,
    MAX_HANDSHAKE_PACKET_BYTES,
    MAX_RECORDED_ERRORS,
    MAX_UNREAD_ANSWERS,
    CloseStatus,
    ErrorCode,
    ErrorScope,
    MessageType,
)
from nnrp_backend.protocol.credit import Flow
from nnrp_backend.protocol.errors import (
    LocalProtocolError,
    PacketTooLarge,
    PeerReportedError,
    ProtocolError,
    RemoteProtocolError,
)
from nnrp_backend.protocol.events import (
    ConnectionClosed,
    Event,
    PeerErrorReceived,
    PongReceived,
    ProtocolViolation,
    SessionClosed,
)
from nnrp_backend.protocol.framing import PacketReader
from nnrp_backend.protocol.header import Packet, pack_header
from nnrp_backend.protocol.session import Operation, Session
from nnrp_backend.protocol.states import ConnectionState, Trigger, advance
from nnrp_backend.protocol.timers import Timers

__all__ = ["Connection", "Counters"]

Handler = Callable[[Any, Packet], None]

# A body up to this size is cheaper to copy behind its header than to hand out on its own.
COPY_LIMIT: Final = 16 * 1024


@dataclass(slots=True)
class Counters:
    """What happened on a connection, as plain integers."""

    protocol_errors: int = 0
    """Packets that broke the protocol."""
    late_events: int = 0
    """Frames for operations that were already done."""
    stale_controls: int = 0
    """Control frames older than one already seen."""
    unsupported: int = 0
    """Well-formed frames of features that are not offered here."""
    refused_submits: int = 0
    """Submits over a limit or while draining."""


class Connection:
    """An NNRP/1 connection without I/O and without a clock; use one of its two roles.

    The caller owns the socket and the clock (``now`` is any monotonic time in seconds):

    1. start it (``connect`` or ``accept``);
    2. give it what was read (``receive_data``, ``receive_eof``) and act on the returned events;
    3. call verbs;
    4. after any of these, write ``data_to_send`` and set one timer to ``next_deadline``, which
       calls ``handle_deadline``;
    5. when ``state`` is ``CLOSED``, flush and close the transport.
    """

    __slots__ = (
        "_control_sequence",
        "_events",
        "_handlers",
        "_last_received",
        "_max_packet_bytes",
        "_outgoing",
        "_peer_max_body_bytes",
        "_reader",
        "_timers",
        "_unread_answers",
        "congested",
        "counters",
        "credit",
        "errors",
        "flow_epoch",
        "peer_is_ours",
        "sessions",
        "state",
    )

    # What each role understands, per state; a type outside the table is unexpected.
    HANDSHAKE_HANDLERS: ClassVar[Mapping[int, Handler]]
    OPEN_HANDLERS: ClassVar[Mapping[int, Handler]]

    def __init__(self, max_packet_bytes: int) -> None:
        self.state = ConnectionState.IDLE
        self.sessions: dict[int, Session] = {}
        self.counters = Counters()
        self.errors: deque[RemoteProtocolError] = deque(maxlen=MAX_RECORDED_ERRORS)
        self.peer_is_ours = False
        self.congested = False
        self.credit: int | None = None
        self.flow_epoch = 0
        self._max_packet_bytes = max_packet_bytes
        self._peer_max_body_bytes = max_packet_bytes
        self._reader = PacketReader(min(max_packet_bytes, MAX_HANDSHAKE_PACKET_BYTES))
        self._handlers: Mapping[int, Handler] = self.HANDSHAKE_HANDLERS
        self._events: list[Event] = []
        self._outgoing: list[bytes] = []
        self._timers = Timers()
        self._last_received = 0.0
        self._control_sequence = 0
        self._unread_answers = 0

    # --- the caller's side ---------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take what was read from the peer. Peer input never raises.

        Call ``data_to_send`` afterwards.

        Raises:
            LocalProtocolError: the connection was not started.
        """
        if self.state is ConnectionState.IDLE:
            raise LocalProtocolError("data before connect or accept")
        self._last_received = now
        try:
            for packet in self._reader.feed(data):
                handler = self._handlers.get(packet[0], Connection._on_unexpected)
                try:
                    handler(self, packet)
                except RemoteProtocolError as error:
                    error.message_type = packet.message_type
                    self._violated(error, packet)
        except RemoteProtocolError as error:
            self._fail(error)
        return self._take_events()

    def receive_eof(self) -> list[Event]:
        """Take the end of the peer's bytes, or the loss of the transport: everything ends."""
        self._outgoing.clear()
        return self.close()

    def close(self) -> list[Event]:
        """End everything from our side. What is queued may still be flushed."""
        self._end(None)
        return self._take_events()

    def data_to_send(self) -> list[bytes]:
        """Drain what must be written now, in order. Joining the pieces is the caller's choice."""
        outgoing = self._outgoing
        self._outgoing = []
        return outgoing

    def next_deadline(self) -> float | None:
        """Return when ``handle_deadline`` wants to be called, ``None`` for never."""
        return self._timers.next()

    def handle_deadline(self, now: float) -> list[Event]:
        """Act on what is due: bounds of handshakes and negotiations, probes, silence."""
        self._timers.run(now)
        return self._take_events()

    def ping(self) -> bool:
        """Send PING, which only our own peers understand; return whether it was sent."""
        if not self.peer_is_ours or self.state is not ConnectionState.OPEN:
            return False
        self._send(MessageType.PING)
        return True

    # --- sending -------------------------------------------------------------------------------

    def _send(
        self,
        message_type: int,
        metadata: bytes = b"",
        body: bytes = b"",
        *,
        head: bytes = b"",
        session_id: int = 0,
        frame_id: int = 0,
        trace_id: int = 0,
    ) -> None:
        """Queue a packet whose body is ``head + body``; a large body is not copied."""
        body_len = len(head) + len(body)
        self._check_size(len(metadata), body_len)
        packet = (
            pack_header(
                message_type,
                len(metadata),
                body_len,
                session_id=session_id,
                frame_id=frame_id,
                trace_id=trace_id,
            )
            + metadata
            + head
        )
        if len(body) > COPY_LIMIT:
            self._outgoing += (packet, body)
        else:
            self._outgoing.append(packet + body)

    def _check_size(self, meta_len: int, body_len: int) -> None:
        if body_len > self._peer_max_body_bytes:
            raise PacketTooLarge(body_len, self._peer_max_body_bytes)
        if HEADER_LENGTH + meta_len + body_len > self._max_packet_bytes:
            raise PacketTooLarge(HEADER_LENGTH + meta_len + body_len, self._max_packet_bytes)

    def _answer(
        self,
        message_type: int,
        metadata: bytes = b"",
        body: bytes = b"",
        *,
        session_id: int = 0,
        frame_id: int = 0,
    ) -> None:
        """Queue what the peer made us say, as long as it reads what it gets."""
        self._unread_answers = self._unread_answers + 1 if self.congested else 0
        if self._unread_answers > MAX_UNREAD_ANSWERS:
            raise RemoteProtocolError(
                "too many requests without reading the answers",
                code=ErrorCode.LIMIT_EXCEEDED,
                scope=ErrorScope.CONNECTION,
            )
        self._send(message_type, metadata, body, session_id=session_id, frame_id=frame_id)

    def _next_control_sequence(self) -> int:
        # One sequence per connection is monotonic however the peer groups frames.
        self._control_sequence += 1
        return self._control_sequence

    # --- errors and the end --------------------------------------------------------------------

    def _violated(self, error: RemoteProtocolError, packet: Packet) -> None:
        """Record what the peer did wrong and answer it; the connection lives unless it is fatal."""
        if self.state is ConnectionState.HANDSHAKE:
            error.scope = ErrorScope.CONNECTION
        if error.fatal:
            self._fail(error)
            return
        self._record(error)
        try:
            self._answer_violation(error, packet)
        except RemoteProtocolError as flooding:
            self._fail(flooding)

    def _record(self, error: RemoteProtocolError) -> None:
        self.counters.protocol_errors += 1
        self.errors.append(error)
        self._events.append(ProtocolViolation(error))

    def _fail(self, error: RemoteProtocolError) -> None:
        """End the connection because of what the peer did, and say so."""
        if self.state is ConnectionState.CLOSED:
            return
        self._record(error)
        diagnostic = encode_diagnostic(error.detail)
        message = messages.Error(
            error_code=error.code,
            error_scope=ErrorScope.CONNECTION,
            is_fatal=1,
            diagnostic_bytes=len(diagnostic),
        )
        self._send(MessageType.ERROR, messages.ERROR.pack(message), diagnostic)
        self._end(error)

    def _end(self, error: ProtocolError | None) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        self.state = advance(self.state, Trigger.LOSS)
        self._handlers = {}
        self._timers.clear()
        for session in self.sessions.values():
            self._lose(session, str(error or "the connection closed"))
        self.sessions = {}
        self._events.append(ConnectionClosed(error))

    def _lose(self, session: Session, why: str) -> None:
        """End a session and its operations without another word to the peer."""
        for operation in list(session.operations.values()):
            operation.advance(Trigger.LOSS)
            self._operation_lost(operation, why)
        session.advance(Trigger.LOSS)

    def _operation_lost(self, operation: Operation, why: str) -> None:
        """Report an operation whose session or connection is gone."""
        raise NotImplementedError

    def _answer_violation(self, error: RemoteProtocolError, packet: Packet) -> None:
        """Answer a violation that the connection survives."""

    # --- packets both roles understand -----------------------------------------------------------

    def _on_unexpected(self, _packet: Packet) -> None:
        if self.state is not ConnectionState.CLOSED:
            raise RemoteProtocolError("not expected here", code=ErrorCode.INVALID_STATE)

    def _on_error(self, packet: Packet) -> None:
        message = messages.ERROR.unpack(packet.metadata, packet.body)
        session = self.sessions.get(message.related_session_id or packet.session_id)
        operation = session and session.frames.get(message.related_frame_id or packet.frame_id)
        diagnostic = decode_diagnostic(packet.body)
        fatal = bool(message.is_fatal)
        self._events.append(
            PeerErrorReceived(
                operation or None,
                message.error_code,
                message.error_scope,
                fatal,
                message.retry_after_ms,
                diagnostic,
            )
        )
        if message.error_scope == ErrorScope.FRAME:
            if operation:
                self._operation_failed(operation, message, diagnostic)
        elif message.error_scope == ErrorScope.SESSION:
            if fatal and session:
                self._close_session(session, diagnostic)
        elif fatal:
            self._end(PeerReportedError(message.error_code, diagnostic))

    def _operation_failed(
        self, operation: Operation, message: messages.Error, diagnostic: str
    ) -> None:
        """Act on an ERROR about one operation."""

    def _on_close(self, _packet: Packet) -> None:
        self._end(None)

    def _on_session_close(self, packet: Packet) -> None:
        # The published client's close() reads exactly one packet and fails on any other: what is in
        # flight is given up, and nothing is sent on the session but the acknowledgement.
        message = messages.SESSION_CLOSE.unpack(packet.metadata)
        session = self._session_of(packet)
        self._close_session(session, "the peer closed the session")
        ack = messages.SessionCloseAck(
            close_status=CloseStatus.CLOSED, last_operation_id=message.last_operation_id
        )
        self._answer(
            MessageType.SESSION_CLOSE_ACK,
            messages.SESSION_CLOSE_ACK.pack(ack),
            session_id=session.session_id,
        )

    def _close_session(self, session: Session, why: str) -> None:
        self._lose(session, why)
        del self.sessions[session.session_id]
        self._events.append(SessionClosed(session))

    def _on_ping(self, packet: Packet) -> None:
        if not self.peer_is_ours:
            self._on_unexpected(packet)
        if packet.session_id:
            self._session_of(packet)
        self._answer(MessageType.PONG, session_id=packet.session_id, frame_id=packet.frame_id)

    def _on_pong(self, packet: Packet) -> None:
        if not self.peer_is_ours:
            self._on_unexpected(packet)
        self._events.append(PongReceived())

    # --- looking things up -----------------------------------------------------------------------

    def _session_of(self, packet: Packet) -> Session:
        session = self.sessions.get(packet.session_id)
        if session is None:
            raise RemoteProtocolError(
                f"session {packet.session_id} is not open",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.SESSION,
            )
        return session

    def _operation_of(self, packet: Packet, operation_id: int) -> Operation | None:
        """Return the operation in flight that a frame names, ``None`` when it is over.

        Raises:
            RemoteProtocolError: the frame id belongs to another operation.
        """
        operation = self._session_of(packet).operations.get(operation_id)
        if operation is not None and operation.frame_id != packet.frame_id:
            raise mistaken_identity(
                f"frame {packet.frame_id} does not belong to operation {operation_id}"
            )
        return operation

    def _stale_flow(self, flow: Flow, holder: "Connection | Session | Operation") -> bool:
        """Tell whether a newer FLOW_UPDATE has been seen for the same scope."""
        if flow.epoch is None:
            return False
        if flow.epoch < holder.flow_epoch:
            self.counters.stale_controls += 1
            return True
        holder.flow_epoch = flow.epoch
        return False

    def _take_events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events

    def __repr__(self) -> str:
        operations = sum(len(session.operations) for session in self.sessions.values())
        return (
            f"<{type(self).__name__} {self.state.name}: {len(self.sessions)} sessions,"
            f" {operations} operations, {self.counters.protocol_errors} protocol errors>"
        )


def mistaken_identity(detail: str) -> RemoteProtocolError:
    """Return the error for a frame that contradicts itself about the operation it means.

    Its answer is about the session: the operation that it happens to name did nothing wrong.
    """
    return RemoteProtocolError(detail, code=ErrorCode.INVALID_STATE, scope=ErrorScope.SESSION)


def encode_diagnostic(text: str) -> bytes:
    """Return a diagnostic as bytes, cut between characters when it is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_DIAGNOSTIC_BYTES:
        return data
    return data[:MAX_DIAGNOSTIC_BYTES].decode("utf-8", "ignore").encode("utf-8")


def decode_diagnostic(data: bytes) -> str:
    """Return a diagnostic as text, whatever the peer put there."""
    return data[:MAX_DIAGNOSTIC_BYTES].decode("utf-8", "replace")
