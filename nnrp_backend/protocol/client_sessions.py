"""The client role, first half: hello, sessions, negotiation, liveness."""

from collections import deque
from typing import Final

from nnrp_backend.protocol import constants as c
from nnrp_backend.protocol import control, messages
from nnrp_backend.protocol.capabilities import pack_tokens, unpack_tokens
from nnrp_backend.protocol.config import ClientConfig
from nnrp_backend.protocol.connection import Connection, decode_diagnostic
from nnrp_backend.protocol.constants import ErrorCode, ErrorScope, MessageType, SessionStatus
from nnrp_backend.protocol.errors import LocalProtocolError, PeerTimeout, RemoteProtocolError
from nnrp_backend.protocol.events import (
    CapabilitiesGranted,
    Connected,
    ProbeAcknowledged,
    ProbeMissed,
    SessionClosed,
    SessionOpened,
    SessionRejected,
)
from nnrp_backend.protocol.header import Packet
from nnrp_backend.protocol.session import Session
from nnrp_backend.protocol.states import ConnectionState, SessionState, Trigger, advance

__all__ = ["ClientSessions"]

_U32: Final = 0xFFFFFFFF


class ClientSessions(Connection):
    """Everything of a client that is not about one operation."""

    __slots__ = (
        "_config",
        "_moved_at",
        "_opening",
        "_probe",
        "_probe_id",
        "_progress",
        "_waiting_opens",
    )

    def __init__(self, config: ClientConfig | None = None) -> None:
        self._config = config or ClientConfig()
        super().__init__(self._config.max_packet_bytes)
        # In-flight limit of the SESSION_OPEN that awaits its answer: opens are serialized.
        self._opening: int | None = None
        self._waiting_opens: deque[int] = deque()
        self._probe_id = 0
        self._probe: tuple[int, float] | None = None  # id and time of the unanswered one
        self._progress = (0, 0)  # what had been read when a probe was due
        self._moved_at = 0.0  # when that was last seen to change

    # --- hello -----------------------------------------------------------------------------------

    def connect(self, now: float) -> None:
        """Send CLIENT_HELLO. ``Connected`` follows, or ``ConnectionClosed``."""
        self.state = advance(self.state, Trigger.START)
        hello = messages.ClientHello(
            supported_profile_bitmap=c.HELLO_PROFILES,
            supported_payload_kind_bitmap=c.HELLO_PAYLOAD_KINDS,
        )
        self._send(MessageType.CLIENT_HELLO, messages.CLIENT_HELLO.pack(hello))
        self._await("SERVER_HELLO_ACK", now)

    def _await(self, what: str, now: float) -> None:
        """Bound the wait for an answer without which nothing goes on."""
        timeout = self._config.handshake_timeout
        self._timers.arm(what, now + timeout, lambda _: self._end(PeerTimeout(what, timeout)))

    def _on_server_hello_ack(self, packet: Packet) -> None:
        ack = messages.SERVER_HELLO_ACK.unpack(packet.metadata)
        if (ack.selected_version_major, ack.selected_wire_format) != (
            c.VERSION_MAJOR,
            c.WIRE_FORMAT,
        ):
            raise RemoteProtocolError(
                f"the server chose version {ack.selected_version_major}"
                f" with wire format {ack.selected_wire_format}",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        kinds, profiles = ack.accepted_payload_kind_bitmap, ack.accepted_profile_bitmap
        if kinds & ~c.HELLO_PAYLOAD_KINDS or profiles & ~c.HELLO_PROFILES:
            raise RemoteProtocolError("the server accepted what was not offered")
        if not profiles & c.TOKEN_PROFILE_BIT or not kinds & c.PayloadKind.STRUCTURED_EVENT:
            raise RemoteProtocolError(
                "the server does not take structured events on the token profile",
                code=ErrorCode.UNSUPPORTED_CAPABILITY,
            )
        if ack.max_body_bytes:
            self._peer_max_body_bytes = ack.max_body_bytes
        self.state = advance(self.state, Trigger.HELLO_DONE)
        self._handlers = self.OPEN_HANDLERS
        self._reader.limit = self._max_packet_bytes
        self._timers.disarm("SERVER_HELLO_ACK")
        self._events.append(Connected())
        self._schedule_probe(self._last_received)
        self._open_next(self._last_received)

    # --- sessions --------------------------------------------------------------------------------

    def open_session(self, now: float) -> None:
        """Send SESSION_OPEN, as soon as those before it have their answer.

        ``SessionOpened`` or ``SessionRejected`` follows. A server that takes fewer operations than
        asked is asked again with its own number, by itself. With a foreign server capability
        negotiation starts by itself too; ``CapabilitiesGranted`` follows.

        Raises:
            LocalProtocolError: the connection is closed.
        """
        if self.state is ConnectionState.CLOSED:
            raise LocalProtocolError("the connection is closed")
        self._waiting_opens.append(self._config.max_in_flight)
        self._open_next(now)

    def _open_next(self, now: float) -> None:
        if self.state is ConnectionState.OPEN and self._opening is None and self._waiting_opens:
            self._send_open(self._waiting_opens.popleft(), now)

    def _send_open(self, max_in_flight: int, now: float) -> None:
        self._opening = max_in_flight
        config = self._config
        message = messages.SessionOpen(
            profile_id=c.TOKEN_PROFILE,
            priority_class=config.priority_class,
            schema_id=c.TOKEN_SCHEMA_ID,
            schema_version=c.TOKEN_SCHEMA_VERSION,
            default_deadline_ms=config.default_deadline_ms,
            max_in_flight_operations=max_in_flight,
            lease_ttl_hint_ms=config.lease_ttl_hint_ms,
            client_session_tag=config.tag,
        )
        self._send(MessageType.SESSION_OPEN, messages.SESSION_OPEN.pack(message))
        self._await("SESSION_OPEN_ACK", now)

    def _on_session_open_ack(self, packet: Packet) -> None:
        ack = messages.SESSION_OPEN_ACK.unpack(packet.metadata)
        asked = self._opening
        if asked is None:
            raise RemoteProtocolError("no session was asked for", code=ErrorCode.INVALID_STATE)
        now = self._last_received
        self._opening = None
        self._timers.disarm("SESSION_OPEN_ACK")
        if ack.session_status in (SessionStatus.OPENED, SessionStatus.RESUMED):
            self._session_opened(ack, asked, now)
        elif reopened := _smaller_limit(ack, asked):
            self._send_open(reopened, now)
        else:
            self._events.append(
                SessionRejected(
                    ack.session_error_code,
                    ack.session_status == SessionStatus.RETRY_LATER,
                    decode_diagnostic(packet.body),
                )
            )
        self._open_next(now)

    def _session_opened(self, ack: messages.SessionOpenAck, asked: int, now: float) -> None:
        if not ack.session_id or ack.session_id in self.sessions:
            raise RemoteProtocolError(
                f"session id {ack.session_id} cannot be a new session's",
                code=ErrorCode.INVALID_STATE,
                scope=ErrorScope.CONNECTION,
            )
        session = Session(
            ack.session_id,
            peer_tag=ack.server_session_tag,
            max_in_flight=min(asked, ack.max_in_flight_operations or asked),
            priority_class=ack.accepted_priority_class,
        )
        session.advance(Trigger.ACCEPT)
        self.sessions[session.session_id] = session
        self.peer_is_ours |= session.peer_is_ours
        self._events.append(SessionOpened(session))
        if not session.peer_is_ours:
            self._negotiate(session, now)

    def close_session(self, session: Session, now: float) -> None:
        """Send SESSION_CLOSE. ``SessionClosed`` follows; operations in flight are lost at once.

        The server's answer is not awaited for longer than ``handshake_timeout``.
        """
        in_flight = list(session.operations.values())
        message = messages.SessionClose(
            close_reason=c.CloseReason.CLIENT_SHUTDOWN,
            in_flight_policy=c.InFlightPolicy.ABORT if in_flight else c.InFlightPolicy.DRAIN,
            last_operation_id=max(session.operations, default=0),
            session_close_tag=session.session_id,
        )
        session.advance(Trigger.CLOSE)
        self._send(
            MessageType.SESSION_CLOSE,
            messages.SESSION_CLOSE.pack(message),
            session_id=session.session_id,
        )
        for operation in in_flight:
            operation.advance(Trigger.LOSS)
            self._operation_lost(operation, "the session was closed")
        self._timers.disarm(_negotiation(session))
        self._timers.arm(
            ("close", session.session_id),
            now + self._config.handshake_timeout,
            lambda _: self._session_closed(session),
        )

    def _on_session_close_ack(self, packet: Packet) -> None:
        ack = messages.SESSION_CLOSE_ACK.unpack(packet.metadata)
        session = self._session_of(packet)
        if session.state is not SessionState.CLOSING:
            raise RemoteProtocolError("nobody closed it", code=ErrorCode.INVALID_STATE)
        if ack.close_status != c.CloseStatus.DRAINING:
            self._session_closed(session)

    def _session_closed(self, session: Session) -> None:
        session.advance(Trigger.CLOSED)
        del self.sessions[session.session_id]
        self._timers.disarm(("close", session.session_id))
        self._events.append(SessionClosed(session))

    # --- negotiation with foreign servers --------------------------------------------------------

    def _negotiate(self, session: Session, now: float) -> None:
        """Ask for everything we can use. Submits do not wait for the answer.

        Only at session scope, with frame 0, and never with ``payload.typed``: the published runtime
        closes the connection on session id 0 and drops a list that holds that token.
        """
        tokens = c.CONTROL_CAPABILITIES
        body = pack_tokens(tokens)
        message = control.CapabilityList(
            capability_count=len(tokens),
            body_bytes=len(body),
            flags=c.CapabilityFlags.DOWNGRADE_ALLOWED,
        )
        self._send(
            MessageType.CAPABILITY_NEGOTIATION,
            control.CAPABILITY_LIST.pack(message),
            body,
            session_id=session.session_id,
        )
        self._timers.arm(
            _negotiation(session),
            now + self._config.negotiation_timeout,
            # Silence grants nothing.
            lambda _: self._events.append(CapabilitiesGranted(session, session.tokens)),
        )

    def _on_capabilities(self, packet: Packet) -> None:
        message = control.CAPABILITY_LIST.unpack(packet.metadata, packet.body)
        granted = frozenset(unpack_tokens(packet.body, message.capability_count))
        session = self._session_of(packet)
        if session.peer_is_ours:
            raise RemoteProtocolError("the mark grants everything", code=ErrorCode.INVALID_STATE)
        session.tokens = granted & c.CONTROL_CAPABILITIES
        self._timers.disarm(_negotiation(session))
        self._events.append(CapabilitiesGranted(session, session.tokens))

    # --- liveness --------------------------------------------------------------------------------

    def probe(self, now: float) -> bool:
        """Send TRANSPORT_PROBE, unless one is unanswered; return whether it was sent.

        Probes at ``probe_interval`` need no call.
        """
        if self.state is not ConnectionState.OPEN or self._probe is not None:
            return False
        self._probe_id = self._probe_id % _U32 + 1
        self._probe = (self._probe_id, now)
        message = messages.TransportProbe(self._probe_id, 0, int(now * 1e6))
        self._send(MessageType.TRANSPORT_PROBE, messages.TRANSPORT_PROBE.pack(message))
        return True

    def _schedule_probe(self, now: float) -> None:
        if interval := self._config.probe_interval:
            dead = self._last_received + self._config.dead_after
            when = now + interval
            self._timers.arm("probe", min(when, dead) if dead > now else when, self._probe_due)

    def _probe_due(self, now: float) -> None:
        silence = now - self._last_received
        if silence >= self._config.dead_after:
            self._end(PeerTimeout("bytes", self._config.dead_after))
            return
        if self._is_stuck(now):
            self._end(PeerTimeout("whole packet", self._config.dead_after))
            return
        # A busy connection answers late, behind what it is sending: any byte is a sign of life.
        if self._probe is not None and silence >= self._config.probe_interval:
            self._events.append(ProbeMissed(silence))
        self.probe(now)
        self._schedule_probe(now)

    def _is_stuck(self, now: float) -> bool:
        """Tell whether bytes come, but go into a packet that will never be complete.

        Its announced length was wrong: whatever follows is taken for its body, answers included.
        """
        reader = self._reader
        progress = (reader.packets, reader.buffered // c.MIN_PROGRESS_BYTES)
        if progress != self._progress:
            self._progress, self._moved_at = progress, now
        return now - self._moved_at >= self._config.dead_after

    def _on_transport_probe_ack(self, packet: Packet) -> None:
        ack = messages.TRANSPORT_PROBE_ACK.unpack(packet.metadata)
        if self._probe is None or ack.probe_id != self._probe[0]:
            raise RemoteProtocolError(
                f"probe {ack.probe_id} is not awaited", code=ErrorCode.INVALID_STATE
            )
        self._events.append(ProbeAcknowledged(self._last_received - self._probe[1]))
        self._probe = None


def _smaller_limit(ack: messages.SessionOpenAck, asked: int) -> int:
    """Return the in-flight limit to ask for after a rejection, 0 when asking again is no use."""
    if ack.session_status != SessionStatus.REJECTED:
        return 0
    if ack.session_error_code != c.SessionErrorCode.LIMIT:
        return 0
    offered = ack.max_in_flight_operations
    if not offered:
        return asked // 2
    return offered if offered < asked else 0


def _negotiation(session: Session) -> tuple[str, int]:
    return ("negotiation", session.session_id)
