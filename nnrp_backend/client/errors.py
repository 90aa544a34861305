"""What the client raises.

* ClientError
  * ConnectError           no usable connection came about; `.endpoint`, `.reason`, `.session_error`
  * NotConnected           the verb needs a connection and there is none; `.endpoint`
    * WorkerDraining       there is one, but the worker takes no new operations
  * TooManyOperations      the worker's granted number is in flight already; `.limit`
    * Congested            too many bytes wait for the worker to read them; `.unsent`
  * PayloadTooLarge        the envelope does not fit a packet; `.size`, `.limit`
"""

from __future__ import annotations

__all__ = [
    "ClientError",
    "Congested",
    "ConnectError",
    "NotConnected",
    "PayloadTooLarge",
    "TooManyOperations",
    "WorkerDraining",
]


class ClientError(Exception):
    """Base of everything the client raises."""


class ConnectError(ClientError):
    """Raise when no usable connection came about."""

    def __init__(self, endpoint: object, reason: str, *, session_error: int = 0) -> None:
        self.endpoint = endpoint
        self.reason = reason
        #: The session error code of a rejected SESSION_OPEN, 0 for any other failure.
        self.session_error = session_error
        super().__init__(f"cannot connect to {endpoint}: {reason}")


class NotConnected(ClientError):
    """Raise when a verb needs a connection and there is none."""

    def __init__(self, endpoint: object, sentence: str = "") -> None:
        self.endpoint = endpoint
        super().__init__(sentence or f"not connected to {endpoint}")


class WorkerDraining(NotConnected):
    """Raise when the worker takes no new operations; another may."""

    def __init__(self, endpoint: object) -> None:
        super().__init__(endpoint, f"{endpoint} is draining")


class TooManyOperations(ClientError):
    """Raise when as many operations are in flight as the worker granted."""

    def __init__(self, endpoint: object, limit: int, sentence: str = "") -> None:
        self.endpoint = endpoint
        self.limit = limit
        super().__init__(sentence or f"{endpoint} takes no more than {limit} operations at a time")


class Congested(TooManyOperations):
    """Raise when the worker has yet to read so much that more must not pile up here."""

    def __init__(self, endpoint: object, limit: int, unsent: int) -> None:
        self.unsent = unsent
        super().__init__(endpoint, limit, f"{endpoint} has yet to read {unsent} bytes")


class PayloadTooLarge(ClientError):
    """Raise when an envelope does not fit a packet."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"a payload of {size} bytes is over the limit of {limit}")
