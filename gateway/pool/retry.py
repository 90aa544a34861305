"""When a request may move to another worker. Pure.

Only before the engine has spoken, and only once: a request that was in flight when a worker died
may be what kills workers, and must not go through the whole fleet.
"""

from __future__ import annotations

from typing import Final

from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import EventType, decode_event
from nnrp_backend.protocol.constants import DropReason

__all__ = ["MAX_ATTEMPTS", "is_death", "is_refusal"]

MAX_ATTEMPTS: Final = 2

#: Refusals are small; a body over this is an answer, and not worth a second parse.
MAX_REFUSAL: Final = 4096

_REFUSALS: Final = frozenset(
    {
        ErrorCode.ADAPTER_OPERATION_LIMIT,
        ErrorCode.BACKEND_CANCELLED,  # by a worker that shuts down
        ErrorCode.BACKEND_OVERLOAD,
        ErrorCode.SCHEDULER_REJECTED,
    }
)

#: A worker that shuts down drops what its grace period did not suffice for.
_LEAVING: Final = frozenset({DropReason.PEER_CANCELLED, DropReason.TRANSPORT_CLOSED})


def is_death(terminal: Terminal) -> bool:
    """Whether the worker went away, or left the request, without having answered it."""
    if terminal.kind is TerminalKind.DROPPED:
        return terminal.drop_reason in _LEAVING
    return terminal.kind is TerminalKind.LOST


def is_refusal(terminal: Terminal) -> bool:
    """Whether the worker had no room for it: full, or about to go."""
    if terminal.kind is not TerminalKind.RESULT or not 0 < len(terminal.body) <= MAX_REFUSAL:
        return False
    try:
        event = decode_event(terminal.body)
    except ProfileError:
        return False
    return (
        event.type == EventType.ERROR
        and event.error is not None
        and event.error.get("code") in _REFUSALS
    )
