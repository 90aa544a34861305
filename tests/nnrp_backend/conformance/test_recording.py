import msgspec
import pytest

from nnrp_backend.client import Terminal
from nnrp_backend.conformance.findings import Rule
from nnrp_backend.conformance.recipe import TerminalState
from nnrp_backend.conformance.recording import observe
from nnrp_backend.protocol.constants import DropReason
from tests.support.recordings import (
    completed,
    dropped,
    error,
    event,
    lost,
    pushed,
    recording,
    text,
)


@pytest.mark.parametrize(
    ("terminal", "state", "end"),
    [
        (pushed(completed()), TerminalState.SUCCESS, "response.completed"),
        (pushed(error()), TerminalState.ERROR, "response.error"),
        (
            pushed(event("cancelled", reason="shutdown")),
            TerminalState.CANCELLED,
            "response.cancelled",
        ),
        (pushed(text("late")), TerminalState.ERROR, "response.output_text.delta"),
        (pushed(b""), TerminalState.SUCCESS, None),
        (pushed(b"nonsense"), TerminalState.ERROR, None),
        (dropped(DropReason.PEER_CANCELLED), TerminalState.CANCELLED, "response.cancelled"),
        (dropped(DropReason.DEADLINE_EXPIRED), TerminalState.ERROR, None),
        (dropped(DropReason.TRANSPORT_CLOSED), TerminalState.ERROR, None),
        (lost(), TerminalState.ERROR, None),
        (None, TerminalState.ERROR, None),
    ],
)
def test_the_wire_says_how_it_ended(
    terminal: Terminal | None, state: TerminalState, end: str | None
) -> None:
    seen = observe(recording(text("a"), terminal=terminal))

    assert seen.state is state
    assert (seen.end and seen.end["type"]) == end
    assert [each["type"] for each in seen.events] == [
        "response.output_text.delta",
        *([end] if end else []),
    ]


def test_a_confirmed_cancel_becomes_an_event_with_a_reason() -> None:
    assert observe(recording(terminal=dropped())).end == {
        "type": "response.cancelled",
        "reason": "peer_cancelled",
    }


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'data: {"type":"response.usage"}\n\n', "is not JSON"),
        (b'{"type":"\xff"}', "is not JSON"),
        (b'{"type":"t"}{"type":"t"}', "is not JSON"),
        (b"[]", "is not an object"),
        (b'"text"', "is not an object"),
        (b"{}", "has no `type`"),
        (b'{"type":""}', "has no `type`"),
        (b'{"type":7}', "has no `type`"),
    ],
)
def test_what_is_no_event_is_found_and_left_out(body: bytes, problem: str) -> None:
    seen = observe(recording(text("a"), body, text("b"), terminal=pushed(completed())))

    assert [place for place, _ in seen.parts] == [1, 3]
    assert [finding.rule for finding in seen.malformed] == [Rule.EVENT_JSON]
    assert f"event 2 {problem}" in seen.malformed[0].detail


def test_a_terminal_that_is_no_event_is_found() -> None:
    seen = observe(recording(terminal=pushed(msgspec.json.encode([]))))

    assert seen.end is None
    assert [str(finding) for finding in seen.malformed] == [
        "event-json: the terminal is not an object"
    ]
