import pytest

from nnrp_backend.protocol.errors import LocalProtocolError
from nnrp_backend.protocol.states import (
    TRANSITIONS,
    ConnectionState,
    OperationState,
    SessionState,
    Trigger,
    advance,
)

MACHINES = (ConnectionState, SessionState, OperationState)
STATES = [state for machine in MACHINES for state in machine]

# The three machines once more, as sequences that must work from the first state on.
PATHS = [
    (ConnectionState.IDLE, "START HELLO_DONE LOSS", ConnectionState.CLOSED),
    (ConnectionState.IDLE, "START LOSS", ConnectionState.CLOSED),
    (ConnectionState.IDLE, "LOSS", ConnectionState.CLOSED),
    (SessionState.OPENING, "ACCEPT CLOSE CLOSED", SessionState.CLOSED),
    (SessionState.OPENING, "ACCEPT CLOSED", SessionState.CLOSED),
    (SessionState.OPENING, "ACCEPT CLOSE LOSS", SessionState.CLOSED),
    (SessionState.OPENING, "REJECT", SessionState.REJECTED),
    (SessionState.OPENING, "LOSS", SessionState.CLOSED),
    (OperationState.ACTIVE, "TERMINAL", OperationState.DONE),
    (OperationState.ACTIVE, "CANCEL TERMINAL", OperationState.DONE),
    (OperationState.ACTIVE, "CANCEL CANCEL LOSS", OperationState.DONE),
    (OperationState.ACTIVE, "LOSS", OperationState.DONE),
    (OperationState.REFUSED, "TERMINAL", OperationState.DONE),
    (OperationState.REFUSED, "LOSS", OperationState.DONE),
]


@pytest.mark.parametrize(("state", "triggers", "end"), PATHS)
def test_the_lives_of_the_three_machines(state, triggers, end):
    for name in triggers.split():
        state = advance(state, Trigger[name])
    assert state is end


def test_every_state_has_a_row_and_stays_in_its_machine():
    assert set(TRANSITIONS) == set(STATES)
    for state, row in TRANSITIONS.items():
        assert {type(following) for following in row.values()} <= {type(state)}


@pytest.mark.parametrize(
    "end",
    [
        ConnectionState.CLOSED,
        SessionState.CLOSED,
        SessionState.REJECTED,
        OperationState.DONE,
    ],
)
def test_nothing_leaves_an_end(end):
    assert TRANSITIONS[end] == {}


def test_everything_else_can_be_lost():
    for state, row in TRANSITIONS.items():
        assert (Trigger.LOSS in row) is bool(row), state


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", list(Trigger))
def test_what_is_not_in_the_table_raises(state, trigger):
    if trigger in TRANSITIONS[state]:
        assert advance(state, trigger) is TRANSITIONS[state][trigger]
        return
    with pytest.raises(LocalProtocolError, match=f"{trigger.name} is not possible when"):
        advance(state, trigger)
