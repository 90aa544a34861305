import dataclasses
import typing

import pytest

from nnrp_backend.protocol import events

EVENTS = typing.get_args(events.Event)


def test_the_table_of_the_module_names_every_event():
    table = [line for line in events.__doc__.splitlines() if line[:1].isupper()]
    named = [
        line.split()[0] for line in table if line.split()[1:2] in (["both"], ["client"], ["server"])
    ]
    assert sorted(named) == sorted(event.__name__ for event in EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_immutable_and_small(event):
    if event is events.PartialReceived:
        assert event._fields == ("operation", "body")
        return
    assert dataclasses.is_dataclass(event)
    assert not hasattr(event, "__dict__") or "__slots__" in vars(event)
    assert event.__dataclass_params__.frozen


def test_events_of_different_kinds_are_never_equal():
    assert events.Connected() != events.PongReceived()
    assert events.SessionOpened(1) != events.SessionClosed(1)
    assert events.Connected() == events.Connected()


def test_outcomes_and_refusals_are_plain_strings():
    assert [str(outcome) for outcome in events.Outcome] == ["result", "dropped", "failed", "lost"]
    assert events.Refusal("draining") is events.Refusal.DRAINING
