"""States and transitions of connections, sessions and operations, as tables.

Two rules. Everything that changes a state is a row here. Nothing here knows which role we play:
``Trigger`` names what was sent or received, and each role fires its own.

Three machines run side by side::

    connection  IDLE -> HANDSHAKE -> OPEN -> CLOSED
    session     OPENING -> OPEN -> CLOSING -> CLOSED          (and REJECTED)
    operation   ACTIVE -> CANCELLING -> DONE                  (and REFUSED -> DONE)

They are coupled in one direction only: when a connection closes, its sessions close; when a
session closes, its operations are done. A pair that is not in a table is a mistake of whoever fired
it: ``advance`` raises, and the caller knows whether that was us or the peer.

Events of a running operation (PARTIAL_RESULT, PROGRESS, credit) change no state, and so the hot
path never looks a transition up.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeVar

from nnrp_backend.protocol.errors import LocalProtocolError

__all__ = ["TRANSITIONS", "ConnectionState", "OperationState", "SessionState", "Trigger", "advance"]


class ConnectionState(Enum):
    """State of a connection."""

    IDLE = auto()
    """Nothing was exchanged."""
    HANDSHAKE = auto()
    """A hello was sent, or is awaited."""
    OPEN = auto()
    """Sessions may be opened."""
    CLOSED = auto()
    """Nothing is sent or taken any more."""


class SessionState(Enum):
    """State of a session."""

    OPENING = auto()
    """SESSION_OPEN was sent, the answer is awaited."""
    OPEN = auto()
    """Operations may be submitted."""
    CLOSING = auto()
    """SESSION_CLOSE was sent, the answer is awaited."""
    CLOSED = auto()
    REJECTED = auto()


class OperationState(Enum):
    """State of an operation. Its terminal is owed until ``DONE``."""

    ACTIVE = auto()
    CANCELLING = auto()
    """CANCEL, ABORT, FRAME_CANCEL or SUPERSEDE was sent or received: only a terminal may follow."""
    REFUSED = auto()
    """A submit that must not run: it is owed a terminal and nothing else."""
    DONE = auto()


class Trigger(Enum):
    """What moves the machines."""

    START = auto()
    HELLO_DONE = auto()
    ACCEPT = auto()
    REJECT = auto()
    CLOSE = auto()
    CLOSED = auto()
    CANCEL = auto()
    TERMINAL = auto()
    LOSS = auto()
    """The connection or session below is gone."""


_C, _S, _O, _T = ConnectionState, SessionState, OperationState, Trigger
State = ConnectionState | SessionState | OperationState

TRANSITIONS: Final[Mapping[State, Mapping[Trigger, State]]] = {
    _C.IDLE: {_T.START: _C.HANDSHAKE, _T.LOSS: _C.CLOSED},
    _C.HANDSHAKE: {_T.HELLO_DONE: _C.OPEN, _T.LOSS: _C.CLOSED},
    _C.OPEN: {_T.LOSS: _C.CLOSED},
    _C.CLOSED: {},
    _S.OPENING: {_T.ACCEPT: _S.OPEN, _T.REJECT: _S.REJECTED, _T.LOSS: _S.CLOSED},
    _S.OPEN: {_T.CLOSE: _S.CLOSING, _T.CLOSED: _S.CLOSED, _T.LOSS: _S.CLOSED},
    _S.CLOSING: {_T.CLOSED: _S.CLOSED, _T.LOSS: _S.CLOSED},
    _S.CLOSED: {},
    _S.REJECTED: {},
    _O.ACTIVE: {_T.CANCEL: _O.CANCELLING, _T.TERMINAL: _O.DONE, _T.LOSS: _O.DONE},
    # A second CANCEL changes nothing: an ABORT after a CANCEL only makes it hard.
    _O.CANCELLING: {_T.CANCEL: _O.CANCELLING, _T.TERMINAL: _O.DONE, _T.LOSS: _O.DONE},
    _O.REFUSED: {_T.TERMINAL: _O.DONE, _T.LOSS: _O.DONE},
    _O.DONE: {},
}


_State = TypeVar("_State", ConnectionState, SessionState, OperationState)


def advance(state: _State, trigger: Trigger) -> _State:
    """Return the state after ``trigger``.

    Raises:
        LocalProtocolError: the table has no such transition.
    """
    following = TRANSITIONS[state].get(trigger)
    if following is None:
        raise LocalProtocolError(f"{trigger.name} is not possible when {state.name}")
    assert isinstance(following, type(state))
    return following
