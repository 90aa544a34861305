"""Errors of the protocol core.

    ProtocolError
    ├── LocalProtocolError          we were asked to do what the protocol forbids
    │   ├── OperationLimitReached   the session has as many operations in flight as were granted
    │   └── PacketTooLarge          the packet would be larger than the peer takes
    ├── RemoteProtocolError         the peer broke the protocol
    ├── PeerReportedError           the peer says that we broke it, and ended the connection
    └── PeerTimeout                 the peer did not answer in time

Only the first branch is ever raised at a caller. The others are recorded, answered as the protocol
says, and handed out in events.
"""

from typing import Final

from nnrp_backend.protocol.constants import ErrorCode, ErrorScope, MessageType

__all__ = [
    "LocalProtocolError",
    "OperationLimitReached",
    "PacketTooLarge",
    "PeerReportedError",
    "PeerTimeout",
    "ProtocolError",
    "RemoteProtocolError",
]


class ProtocolError(Exception):
    """Base of every error of the protocol core."""


class LocalProtocolError(ProtocolError):
    """We were asked to do what the protocol forbids in this state. A bug of the caller."""


class OperationLimitReached(LocalProtocolError):
    """The session already has as many operations in flight as the server granted."""

    def __init__(self, session_id: int, granted: int) -> None:
        super().__init__(session_id, granted)
        self.session_id: Final = session_id
        self.granted: Final = granted

    def __str__(self) -> str:
        return f"session {self.session_id} has {self.granted} operations in flight, all it may have"


class PacketTooLarge(LocalProtocolError):
    """The packet would be larger than the peer takes. Nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size: Final = size
        self.limit: Final = limit

    def __str__(self) -> str:
        return f"a packet of {self.size} bytes is over the limit of {self.limit}"


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol.

    Args:
        detail: One sentence, safe to send to the peer and to log.
        code: Code that the answering ERROR or ERROR_RECOVERABLE carries.
        scope: How much of the connection is affected; ``CONNECTION`` ends it.
        message_type: Type of the offending packet, ``None`` when it could not be read.
    """

    def __init__(
        self,
        detail: str,
        *,
        code: ErrorCode = ErrorCode.MALFORMED_BODY,
        scope: ErrorScope = ErrorScope.FRAME,
        message_type: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail: Final = detail
        self.code: Final = code
        self.scope = scope
        self.message_type = message_type

    @property
    def fatal(self) -> bool:
        """Whether the connection cannot go on."""
        return self.scope is ErrorScope.CONNECTION

    def __str__(self) -> str:
        if self.message_type is None:
            return self.detail
        try:
            name = MessageType(self.message_type).name
        except ValueError:
            name = f"message type 0x{self.message_type:02x}"
        return f"{name}: {self.detail}"


class PeerReportedError(ProtocolError):
    """The peer sent a fatal ERROR: it ended the connection."""

    def __init__(self, code: int, diagnostic: str) -> None:
        super().__init__(code, diagnostic)
        self.code: Final = code
        self.diagnostic: Final = diagnostic

    def __str__(self) -> str:
        return f"the peer reported error 0x{self.code:02x}: {self.diagnostic or 'no details'}"


class PeerTimeout(ProtocolError):
    """The peer did not do what it had to within its time."""

    def __init__(self, awaited: str, seconds: float) -> None:
        super().__init__(awaited, seconds)
        self.awaited: Final = awaited
        self.seconds: Final = seconds

    def __str__(self) -> str:
        return f"the peer sent no {self.awaited} within {self.seconds:g} s"
