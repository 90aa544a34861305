"""What came off the wire for one case, raw and decoded."""

from __future__ import annotations

from typing import Any

import msgspec

from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.conformance.findings import Finding, Rule
from nnrp_backend.conformance.recipe import TerminalState
from nnrp_backend.profile.events import EventType
from nnrp_backend.protocol.constants import DropReason

JsonObject = dict[str, Any]

_STATES = {
    EventType.COMPLETED: TerminalState.SUCCESS,
    EventType.ERROR: TerminalState.ERROR,
    EventType.CANCELLED: TerminalState.CANCELLED,
}


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The frames of one operation, in the order in which they came."""

    bodies: tuple[bytes, ...] = ()
    """The body of each PARTIAL_RESULT."""
    terminal: Terminal | None = None
    """None: no terminal within the time allowed."""
    late_frames: int = 0
    """Frames for the operation that came after its terminal."""
    protocol_errors: int = 0
    """Packets by which the target broke the wire meanwhile."""
    seconds: float = 0.0
    """From the submit to the terminal."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A recording as the profile sees it."""

    recording: Recording
    parts: tuple[tuple[int, JsonObject], ...]
    """The decoded PARTIAL_RESULT events, each with its place (from 1)."""
    end: JsonObject | None
    """The terminal event: the one pushed, or the one that stands for a confirmed cancel."""
    state: TerminalState
    malformed: tuple[Finding, ...]
    """Bodies that are no events; they are in neither `parts` nor `end`."""

    @property
    def events(self) -> list[JsonObject]:
        """List all events, the terminal one last."""
        events = [event for _, event in self.parts]
        return events if self.end is None else [*events, self.end]


def observe(recording: Recording) -> Observation:
    """Decode a recording.

    A drop for the reason `peer_cancelled` becomes the event `response.cancelled`: once a CANCEL
    has been seen no body can be pushed for the operation, so that the client has to say it.
    """
    parts: list[tuple[int, JsonObject]] = []
    malformed: list[Finding] = []
    for place, body in enumerate(recording.bodies, 1):
        event = _decode(body, f"event {place}", malformed)
        if event is not None:
            parts.append((place, event))
    end = _end(recording.terminal, malformed)
    return Observation(
        recording=recording,
        parts=tuple(parts),
        end=end,
        state=_state(recording.terminal, end),
        malformed=tuple(malformed),
    )


def _decode(body: bytes, name: str, malformed: list[Finding]) -> JsonObject | None:
    try:
        event = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        malformed.append(Finding(Rule.EVENT_JSON, f"{name} is not JSON ({error})"))
        return None
    if not isinstance(event, dict):
        malformed.append(Finding(Rule.EVENT_JSON, f"{name} is not an object"))
        return None
    if not isinstance(event.get("type"), str) or not event["type"]:
        malformed.append(Finding(Rule.EVENT_JSON, f"{name} has no `type`"))
        return None
    return event


def _end(terminal: Terminal | None, malformed: list[Finding]) -> JsonObject | None:
    match terminal:
        case Terminal(kind=TerminalKind.RESULT, body=body) if body:
            return _decode(body, "the terminal", malformed)
        case Terminal(kind=TerminalKind.DROPPED, drop_reason=DropReason.PEER_CANCELLED):
            return {"type": str(EventType.CANCELLED), "reason": "peer_cancelled"}
        case _:
            return None


def _state(terminal: Terminal | None, end: JsonObject | None) -> TerminalState:
    if end is not None:
        return _STATES.get(end["type"], TerminalState.ERROR)
    empty = terminal is not None and terminal.kind is TerminalKind.RESULT and not terminal.body
    return TerminalState.SUCCESS if empty else TerminalState.ERROR
