"""The rules that an answer can break, and how a broken one is said."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Rule(StrEnum):
    """A rule of the profile or of a recipe. The value is what a report calls it."""

    WIRE = "wire"
    """The target keeps the NNRP/1 wire itself."""
    EVENT_JSON = "event-json"
    """Every event is one JSON object in UTF-8 with a `type` (profile section 7)."""
    EVENT_TYPE = "event-type"
    """A producer sends types that the profile or a declared extension defines."""
    EVENT_FIELDS = "event-fields"
    """Each type has its required members, of the right kind (profile sections 7, 10, 12)."""
    TOOL_ORDER = "tool-order"
    """Per call: started once and first, deltas, one completed or error; the whole is the parts."""
    USAGE_COUNTS = "usage-counts"
    """Usage counts are whole numbers, and the total is their sum (profile section 11)."""
    WHOLE_ANSWER = "whole-answer"
    """What was not asked as a stream is one terminal and no parts (profile section 8)."""
    FINAL_TEXT = "final-text"
    """A rebuilt final body says what the deltas said. Ours: the profile leaves it unsaid."""
    TERMINAL_MISSING = "terminal-missing"
    """Every operation ends, by an answer: not by ERROR, silence or a lost connection."""
    TERMINAL_FRAME = "terminal-frame"
    """Terminal events ride on RESULT_PUSH, and no others do."""
    TERMINAL_ONCE = "terminal-once"
    """An operation has one terminal event."""
    TERMINAL_LAST = "terminal-last"
    """Nothing follows the terminal."""
    TERMINAL_BODY = "terminal-body"
    """A success says `response.completed`; the empty form fails the suite's wire case."""
    TERMINAL_EXPECTED = "terminal-expected"
    """The operation ends the way its recipe says."""
    EXPECTED_EVENT = "expected-event"
    """The recipe's events come, as often, in that order and with those members."""
    DIAGNOSTICS = "diagnostics"
    """`response.diagnostics` comes where, and only where, the recipe says (profile section 11)."""
    CANCEL_HONOURED = "cancel-honoured"
    """A CANCEL ends the operation as cancelled (profile section 9)."""


class Finding(NamedTuple):
    """One broken rule."""

    rule: Rule
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"
