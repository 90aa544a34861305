"""Settings of a connection, per role. All times are seconds unless the name says otherwise."""

from collections.abc import Callable
from dataclasses import dataclass

from nnrp_backend.protocol import constants as c

__all__ = ["ClientConfig", "ServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client behaves.

    ``probe_interval`` of 0 switches liveness probes off.
    """

    max_in_flight: int = c.DEFAULT_MAX_IN_FLIGHT
    """Operations in flight to ask for; the server may grant fewer."""
    default_deadline_ms: int = 600_000
    priority_class: int = c.PriorityClass.BALANCED
    lease_ttl_hint_ms: int = 30_000
    max_packet_bytes: int = c.MAX_PACKET_BYTES
    handshake_timeout: float = 5.0
    """Bound on the hello exchange, and on each session open."""
    negotiation_timeout: float = 1.0
    """A foreign server silent for this long granted nothing."""
    probe_interval: float = 5.0
    dead_after: float = 60.0
    """Silence that ends the connection. Long, because a worker may be busy compiling."""
    tag: int = c.OUR_TAG
    """``client_session_tag``; 0 plays a foreign client."""

    def __post_init__(self) -> None:
        _check_max_in_flight(self.max_in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How a server behaves on each of its connections."""

    max_in_flight: int = c.DEFAULT_MAX_IN_FLIGHT
    """Operations in flight per session."""
    max_sessions: int = c.DEFAULT_MAX_SESSIONS
    """Open sessions per connection."""
    max_reservations: int = c.MAX_RESERVATIONS
    """DEADLINE frames kept per session for operations that are not submitted yet."""
    max_packet_bytes: int = c.MAX_PACKET_BYTES
    handshake_timeout: float = 5.0
    """Bound on the client's hello. Sessions may be opened at any time after it."""
    lease_ttl_ms: int = 30_000
    capabilities: frozenset[str] = c.SERVED_CAPABILITIES
    """Control tokens granted to a foreign client that asks."""
    next_session_id: Callable[[], int] | None = None
    """Session ids are unique per server: give every connection the same allocator. Without one, the
    connection counts from 1."""
    tag: int = c.OUR_TAG
    """``server_session_tag``; 0 plays a foreign server."""

    def __post_init__(self) -> None:
        _check_max_in_flight(self.max_in_flight)


def _check_max_in_flight(value: int) -> None:
    if not 0 < value <= 0xFFFF:
        raise ValueError(f"max_in_flight must be 1 to 65535, not {value}")
