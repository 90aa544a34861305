import pytest

from nnrp_backend.protocol.constants import CONTROL_CAPABILITIES, OUR_TAG
from nnrp_backend.protocol.errors import LocalProtocolError
from nnrp_backend.protocol.session import Operation, Reservation, Session, is_ours
from nnrp_backend.protocol.states import OperationState, Trigger


def session(tag: int = OUR_TAG, limit: int = 4) -> Session:
    made = Session(3, peer_tag=tag, max_in_flight=limit, priority_class=1)
    made.advance(Trigger.ACCEPT)
    return made


@pytest.mark.parametrize(
    ("tag", "ours"),
    [
        (OUR_TAG, True),
        (OUR_TAG + 1, True),  # a later version of the same mark
        (OUR_TAG | 0xFF, True),
        (0, False),
        (1, False),
        (OUR_TAG ^ 0x100, False),
        (2**64 - 1, False),
    ],
)
def test_the_mark_tells_our_own(tag, ours):
    assert is_ours(tag) is ours
    assert session(tag).peer_is_ours is ours


def test_the_mark_grants_everything_and_strangers_nothing():
    assert session().tokens == CONTROL_CAPABILITIES
    assert session(tag=1).tokens == frozenset()
    assert session().may("control.progress_partial")
    assert not session(tag=1).may("control.progress_partial")
    assert not session().may("control.time_travel")


def test_room_for_operations():
    one = session(limit=2)
    assert one.available == 2
    first, second = Operation(one, 10, 1), Operation(one, 11, 2)
    one.register(first)
    assert one.available == 1
    one.register(second)
    assert one.available == 0
    first.advance(Trigger.TERMINAL)
    assert one.available == 1
    one.draining = True
    assert one.available == 0


def test_there_is_no_room_before_and_after():
    opening = Session(3, peer_tag=0, max_in_flight=4, priority_class=1)
    assert not opening.is_open
    assert opening.available == 0
    opening.advance(Trigger.ACCEPT)
    assert opening.available == 4
    opening.advance(Trigger.CLOSE)
    assert opening.available == 0


def test_done_operations_leave_both_indexes():
    one = session()
    operation = Operation(one, 10, 7)
    one.register(operation)
    assert (one.operations, one.frames) == ({10: operation}, {7: operation})
    operation.advance(Trigger.CANCEL)
    assert one.operations == {10: operation}
    assert not operation.done
    operation.advance(Trigger.TERMINAL)
    assert (one.operations, one.frames) == ({}, {})
    assert operation.done
    with pytest.raises(LocalProtocolError):
        operation.advance(Trigger.TERMINAL)


def test_a_refused_operation_does_not_release_the_ids_of_another():
    one = session()
    running, refused = Operation(one, 10, 7), Operation(one, 10, 8)
    one.register(running)
    refused.state = OperationState.REFUSED
    refused.advance(Trigger.TERMINAL)
    assert one.operations == {10: running}
    assert one.frames == {7: running}


def test_a_reservation_knows_nothing_yet():
    reservation = Reservation(7)
    assert reservation.frame_id == 7
    assert reservation.control_sequence == 0
    assert reservation.deadline_unix_ms is reservation.priority is None


def test_operations_start_with_the_priority_of_their_session():
    assert Operation(session(), 1, 1).priority_class == 1


def test_repr_shows_state_and_counts():
    one = session()
    operation = Operation(one, 10, 7)
    one.register(operation)
    assert repr(one) == "<Session 3 OPEN (ours): 1/4 operations>"
    assert repr(operation) == "<Operation 10 (frame 7) ACTIVE on session 3>"
    stranger = session(tag=0)
    stranger.draining = True
    assert repr(stranger) == "<Session 3 OPEN (foreign, draining): 0/4 operations>"
