"""The server role, first half: hello, sessions, negotiation, flow, probes."""

from itertools import count

from nnrp_backend.protocol import constants as c
from nnrp_backend.protocol import control, messages
from nnrp_backend.protocol.capabilities import pack_tokens, unpack_tokens
from nnrp_backend.protocol.config import ServerConfig
from nnrp_backend.protocol.connection import Connection, encode_diagnostic
from nnrp_backend.protocol.constants import (
    Capability,
    CapabilityFlags,
    ErrorCode,
    ErrorScope,
    MessageType,
    SessionErrorCode,
    SessionStatus,
)
from nnrp_backend.protocol.credit import read_flow
from nnrp_backend.protocol.errors import PeerTimeout, RemoteProtocolError
from nnrp_backend.protocol.events import (
    CapabilitiesGranted,
    Connected,
    CreditGranted,
    SessionOpened,
)
from nnrp_backend.protocol.header import Packet
from nnrp_backend.protocol.session import Operation, Session
from nnrp_backend.protocol.states import OperationState, Trigger, advance

__all__ = ["ServerSessions"]


class ServerSessions(Connection):
    """Everything of a server that is not about one operation."""

    __slots__ = ("_config", "_next_session_id", "draining")

    def __init__(self, config: ServerConfig | None = None) -> None:
        self._config = config or ServerConfig()
        super().__init__(self._config.max_packet_bytes)
        self._next_session_id = self._config.next_session_id or count(1).__next__
        self.draining = False

    # --- hello -----------------------------------------------------------------------------------

    def accept(self, now: float) -> None:
        """Start waiting for the client's hello, bounded by ``handshake_timeout``."""
        self.state = advance(self.state, Trigger.START)
        timeout = self._config.handshake_timeout
        self._timers.arm(
            "hello", now + timeout, lambda _: self._end(PeerTimeout("CLIENT_HELLO", timeout))
        )

    def _on_client_hello(self, packet: Packet) -> None:
        hello = messages.CLIENT_HELLO.unpack(packet.metadata)
        versions = range(hello.min_version_major, hello.max_version_major + 1)
        if c.VERSION_MAJOR not in versions or not hello.supported_wire_format_bitmap & 1:
            raise RemoteProtocolError(
                "only version 1 with wire format 0 is spoken here",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        if hello.auth_bytes:
            raise RemoteProtocolError(
                "no authentication is offered here", code=ErrorCode.AUTH_FAILED
            )
        if hello.control_extension_bytes != len(packet.body):
            raise RemoteProtocolError("the body is not as long as the metadata says")
        profiles = hello.supported_profile_bitmap & c.TOKEN_PROFILE_BIT
        kinds = hello.supported_payload_kind_bitmap & c.HELLO_PAYLOAD_KINDS
        if not profiles or not kinds & c.PayloadKind.STRUCTURED_EVENT:
            raise RemoteProtocolError(
                "structured events on the token profile are all that is served here",
                code=ErrorCode.UNSUPPORTED_CAPABILITY,
            )
        self.state = advance(self.state, Trigger.HELLO_DONE)
        self._handlers = self.OPEN_HANDLERS
        self._reader.limit = self._max_packet_bytes
        self._timers.disarm("hello")
        ack = messages.ServerHelloAck(
            accepted_profile_bitmap=profiles,
            accepted_payload_kind_bitmap=kinds,
            max_concurrent_frames=min(self._config.max_in_flight, 0xFFFF),
            max_body_bytes=self._max_packet_bytes,
        )
        self._send(MessageType.SERVER_HELLO_ACK, messages.SERVER_HELLO_ACK.pack(ack))
        self._events.append(Connected())

    # --- sessions --------------------------------------------------------------------------------

    def _on_session_open(self, packet: Packet) -> None:
        try:
            message = messages.SESSION_OPEN.unpack(packet.metadata)
        except RemoteProtocolError as error:
            self._reject_session(messages.SessionOpen(), ErrorCode.MALFORMED_BODY, error.detail)
            raise
        refusal = self._session_refusal(message)
        if refusal is not None:
            self._reject_session(message, *refusal)
            return
        session = Session(
            self._next_session_id(),
            peer_tag=message.client_session_tag,
            max_in_flight=message.max_in_flight_operations or self._config.max_in_flight,
            priority_class=message.priority_class,
        )
        session.draining = self.draining
        session.advance(Trigger.ACCEPT)
        self.sessions[session.session_id] = session
        self.peer_is_ours |= session.peer_is_ours
        self._send_open_ack(message, session_id=session.session_id, limit=session.max_in_flight)
        self._events.append(SessionOpened(session))

    def _session_refusal(self, message: messages.SessionOpen) -> tuple[int, str] | None:
        """Return why a session cannot be, in the order in which the wire's codes are listed."""
        limit = self._config.max_in_flight
        if message.auth_bytes:
            return SessionErrorCode.AUTH_FAILED, "no authentication is offered here"
        if message.profile_id != c.TOKEN_PROFILE:
            return SessionErrorCode.PROFILE, f"profile {message.profile_id} is not served here"
        if (message.schema_id, message.schema_version) != (
            c.TOKEN_SCHEMA_ID,
            c.TOKEN_SCHEMA_VERSION,
        ):
            return (
                SessionErrorCode.SCHEMA,
                f"schema {message.schema_id:#x} version {message.schema_version} is unknown",
            )
        if message.priority_class > c.PriorityClass.BACKGROUND:
            return SessionErrorCode.PRIORITY, f"priority class {message.priority_class} is unknown"
        if message.resume_token_bytes:
            return SessionErrorCode.RESUME, "sessions cannot be resumed here"
        if message.max_in_flight_operations > limit:
            return SessionErrorCode.LIMIT, f"at most {limit} operations in flight"
        if len(self.sessions) >= self._config.max_sessions:
            return SessionErrorCode.LIMIT, f"at most {self._config.max_sessions} sessions"
        if self.draining:
            return SessionErrorCode.LIMIT, "the server is draining"
        return None

    def _reject_session(self, message: messages.SessionOpen, code: int, why: str) -> None:
        # Only a limit on what was asked for is answered "rejected" with a limit code: that is what
        # makes a client ask again for less.
        later = code == SessionErrorCode.LIMIT and (
            message.max_in_flight_operations <= self._config.max_in_flight
        )
        self._send_open_ack(
            message,
            status=SessionStatus.RETRY_LATER if later else SessionStatus.REJECTED,
            limit=self._config.max_in_flight,
            code=code,
            diagnostic=encode_diagnostic(why),
        )

    def _send_open_ack(
        self,
        message: messages.SessionOpen,
        *,
        limit: int,
        session_id: int = 0,
        status: int = SessionStatus.OPENED,
        code: int = 0,
        diagnostic: bytes = b"",
    ) -> None:
        ack = messages.SessionOpenAck(
            session_id=session_id,
            accepted_profile_id=c.TOKEN_PROFILE,
            accepted_priority_class=message.priority_class,
            session_status=status,
            schema_id=c.TOKEN_SCHEMA_ID,
            schema_version=c.TOKEN_SCHEMA_VERSION,
            granted_operation_credit=limit,
            max_in_flight_operations=limit,
            lease_ttl_ms=self._config.lease_ttl_ms,
            session_extension_bytes=len(diagnostic),
            server_session_tag=self._config.tag,
            session_error_code=code,
        )
        self._answer(
            MessageType.SESSION_OPEN_ACK,
            messages.SESSION_OPEN_ACK.pack(ack),
            diagnostic,
            session_id=session_id,
        )

    # --- negotiation with foreign clients --------------------------------------------------------

    def _on_capability_negotiation(self, packet: Packet) -> None:
        message = control.CAPABILITY_LIST.unpack(packet.metadata, packet.body)
        wanted = frozenset(unpack_tokens(packet.body, message.capability_count))
        session = self._session_of(packet)
        if message.profile_id:
            raise RemoteProtocolError(f"profile {message.profile_id} has no capabilities")
        granted = wanted & self._config.capabilities
        if session.peer_is_ours:
            granted |= session.tokens
        session.tokens = granted
        self._events.append(CapabilitiesGranted(session, granted))
        hard = message.flags & CapabilityFlags.HARD_REQUIREMENT
        if hard and not granted & wanted and Capability.RECOVERABLE_ERROR in wanted | granted:
            self._send_recoverable(
                session, 0, ErrorCode.UNSUPPORTED_CAPABILITY, "capability_unsupported"
            )
            return
        degraded = message.flags & CapabilityFlags.DOWNGRADE_ALLOWED and granted & wanted < wanted
        self._answer_capabilities(
            MessageType.DEGRADE_PROFILE if degraded else MessageType.CAPABILITY_NEGOTIATION,
            packet,
            message,
            granted & wanted,
        )

    def _answer_capabilities(
        self,
        message_type: MessageType,
        packet: Packet,
        asked: control.CapabilityList,
        tokens: frozenset[str],
    ) -> None:
        body = pack_tokens(tokens)
        answer = control.CapabilityList(
            capability_count=len(tokens), body_bytes=len(body), flags=asked.flags
        )
        self._answer(
            message_type,
            control.CAPABILITY_LIST.pack(answer),
            body,
            session_id=packet.session_id,
            frame_id=packet.frame_id,
        )

    def _on_degrade_profile(self, packet: Packet) -> None:
        """The client gives up some of what it was granted."""
        message = control.CAPABILITY_LIST.unpack(packet.metadata, packet.body)
        kept = frozenset(unpack_tokens(packet.body, message.capability_count))
        session = self._session_of(packet)
        session.tokens &= kept
        self._events.append(CapabilitiesGranted(session, session.tokens))

    # --- flow ------------------------------------------------------------------------------------

    def _on_flow(self, packet: Packet) -> None:
        flow = read_flow(packet)
        session: Session | None = None
        operation: Operation | None = None
        if flow.scope is not c.FlowScope.CONNECTION:
            session = self._session_of(packet)
        if flow.scope is c.FlowScope.OPERATION:
            operation = self._operation_of(packet, flow.operation_id)
            if operation is None:
                self.counters.late_events += 1
                return
        holder = operation or session or self
        if self._stale_flow(flow, holder) or flow.window is None:
            return
        holder.credit = flow.window
        self._events.append(CreditGranted(session, operation))

    def advertise(
        self, window: int, *, level: int = 0, reason: int = 0, retry_after_ms: int = 0
    ) -> None:
        """Tell every session that may hear it how many more operations this server can take.

        CREDIT_UPDATE at session scope, or BACKPRESSURE when there is a pressure ``level``.
        """
        for session in self.sessions.values():
            if session.is_open and session.may(Capability.CREDIT_BACKPRESSURE):
                self._send_pressure(session, window, level, reason, retry_after_ms)

    def _send_pressure(
        self, session: Session, window: int, level: int, reason: int, retry_after_ms: int
    ) -> None:
        # Never on session id 0: the published client's next session open fails after one.
        message = control.Pressure(session.session_id, window, level, reason, retry_after_ms)
        self._send(
            MessageType.BACKPRESSURE if level else MessageType.CREDIT_UPDATE,
            control.PRESSURE.pack(message),
            session_id=session.session_id,
        )

    def drain(self, retry_after_ms: int = 0) -> None:
        """Take no new operations: refuse submits and sessions, and tell our own peers.

        Operations in flight go on. Foreign peers learn it from refusals: the published client does
        not handle a close from this side.
        """
        self.draining = True
        flags = c.FlowFlags.DRAIN_IN_FLIGHT_ONLY
        if retry_after_ms:
            flags |= c.FlowFlags.RETRY_AFTER_VALID
        update = control.FlowUpdate(
            scope_kind=c.FlowScope.SESSION,
            update_reason=c.FlowReason.PAUSE,
            backpressure_level=c.PressureLevel.HARD,  # FLOW_UPDATE has no higher one
            retry_after_ms=retry_after_ms,
            flags=flags,
        )
        for session in self.sessions.values():
            session.draining = True
            if session.peer_is_ours and session.is_open:
                self._send(
                    MessageType.FLOW_UPDATE,
                    control.FLOW_UPDATE.pack(update),
                    session_id=session.session_id,
                )
                self._send_pressure(session, 0, c.PressureLevel.PAUSED, 0, retry_after_ms)

    # --- answers ---------------------------------------------------------------------------------

    def _on_transport_probe(self, packet: Packet) -> None:
        probe = messages.TRANSPORT_PROBE.unpack(packet.metadata, packet.body)
        ack = messages.TransportProbeAck(
            probe.probe_id, server_recv_ts_us=int(self._last_received * 1e6)
        )
        self._answer(MessageType.TRANSPORT_PROBE_ACK, messages.TRANSPORT_PROBE_ACK.pack(ack))

    def _on_unsupported(self, packet: Packet) -> None:
        session = self._session_of(packet)
        self.counters.unsupported += 1
        name = MessageType(packet.message_type).name.lower()
        if session.may(Capability.RECOVERABLE_ERROR):
            self._send_recoverable(
                session, packet.frame_id, ErrorCode.UNSUPPORTED_CAPABILITY, f"{name}_unsupported"
            )

    def _on_cache_reference(self, packet: Packet) -> None:
        reference = control.CACHE_REFERENCE.unpack(packet.metadata, packet.body)
        session = self._session_of(packet)
        self.counters.unsupported += 1
        miss = control.CacheMiss(
            reference.cache_namespace,
            reference.profile_id,
            c.CacheMissReason.NOT_FOUND,
            reference.cache_key_hi,
            reference.cache_key_lo,
        )
        self._answer(
            MessageType.CACHE_MISS,
            control.CACHE_MISS.pack(miss),
            session_id=session.session_id,
            frame_id=packet.frame_id if packet.frame_id in session.frames else 0,
        )

    def _answer_violation(self, error: RemoteProtocolError, packet: Packet) -> None:
        session = self.sessions.get(packet.session_id)
        if session is not None and session.may(Capability.RECOVERABLE_ERROR):
            frame_id = packet.frame_id if error.scope is ErrorScope.FRAME else 0
            self._send_recoverable(session, frame_id, error.code, error.detail)

    def _send_recoverable(
        self, session: Session, frame_id: int, code: int, diagnostic: str
    ) -> None:
        """Answer with ERROR_RECOVERABLE, about an operation while that is active.

        Nothing may be sent for an operation after its terminal, and nothing but a terminal after
        its cancel: then, and when there is none, the error is about the session.
        """
        operation = session.frames.get(frame_id)
        if operation is None or operation.state is not OperationState.ACTIVE:
            frame_id = 0
        self._answer(
            MessageType.ERROR_RECOVERABLE,
            *pack_recoverable(session, frame_id, code, diagnostic),
            session_id=session.session_id,
            frame_id=frame_id,
        )


def pack_recoverable(
    session: Session,
    frame_id: int,
    code: int,
    diagnostic: str,
    *,
    retry_after_ms: int = 0,
    flags: int = 0,
) -> tuple[bytes, bytes]:
    """Return metadata and body of an ERROR_RECOVERABLE about a frame, or with 0 the session."""
    body = encode_diagnostic(diagnostic)
    message = control.RecoverableError(
        code,
        ErrorScope.FRAME if frame_id else ErrorScope.SESSION,
        flags=flags,
        retry_after_ms=retry_after_ms,
        related_session_id=session.session_id,
        related_frame_id=frame_id,
        diagnostic_bytes=len(body),
    )
    return control.RECOVERABLE_ERROR.pack(message), body
