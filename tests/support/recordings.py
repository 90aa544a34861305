"""Write recordings and planned cases by hand, for the conformance checker."""

from typing import Any

import msgspec

from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.conformance.planner import Choice, PlannedCase
from nnrp_backend.conformance.recipe import (
    Expectation,
    ExpectedDiagnostics,
    ExpectedEvent,
    Request,
    Status,
    TerminalState,
)
from nnrp_backend.conformance.recording import Recording
from nnrp_backend.protocol.constants import DropReason

TOOL = {"index": 0, "item_id": "item_1", "call_id": "call_1"}


def event(kind: str, **members: Any) -> dict[str, Any]:
    """Write the event `response.{kind}`."""
    return {"type": f"response.{kind}", **members}


def text(delta: str, index: Any = 0) -> dict[str, Any]:
    return event("output_text.delta", index=index, delta=delta)


def completed(**body: Any) -> dict[str, Any]:
    return event("completed", body=body)


def error(code: str = "backend_error", type: str = "server_error") -> dict[str, Any]:
    return event("error", error={"type": type, "code": code, "message": "no"})


def tool_call(
    *deltas: str, call: dict[str, Any] = TOOL, name: str = "lookup"
) -> list[dict[str, Any]]:
    """Write one whole tool call, in order."""
    return [
        event("tool_call.started", **call, name=name),
        *(event("tool_call.delta", **call, arguments_delta=delta) for delta in deltas),
        event("tool_call.completed", **call, name=name, arguments="".join(deltas)),
    ]


def pushed(end: dict[str, Any] | bytes) -> Terminal:
    """Write a RESULT_PUSH of a terminal event, or of raw bytes."""
    body = end if isinstance(end, bytes) else msgspec.json.encode(end)
    return Terminal(TerminalKind.RESULT, body)


def dropped(reason: int = DropReason.PEER_CANCELLED) -> Terminal:
    return Terminal(TerminalKind.DROPPED, drop_reason=reason)


def lost(diagnostic: str = "") -> Terminal:
    return Terminal(TerminalKind.LOST, diagnostic=diagnostic)


def recording(
    *parts: dict[str, Any] | bytes, terminal: Terminal | None, **members: Any
) -> Recording:
    """Write a recording of these PARTIAL_RESULT events and this end."""
    bodies = [part if isinstance(part, bytes) else msgspec.json.encode(part) for part in parts]
    return Recording(bodies=tuple(bodies), terminal=terminal, **members)


def planned(
    *events: dict[str, Any],
    terminal: TerminalState = TerminalState.SUCCESS,
    diagnostics: dict[str, Any] | None = None,
    id: str = "case",
    choice: Choice = Choice.SELECTED,
    status: Status = Status.MANDATORY,
    operation: str = "chat.completions.create",
    **request: Any,
) -> PlannedCase:
    """Write a planned case; it asks for a stream unless a `body` is given."""
    request.setdefault("body", {"model": "m", "messages": [], "stream": True})
    return PlannedCase(
        id=id,
        operation=operation,
        status=status,
        choice=choice,
        required=("api.level1",),
        lacking=("api.level1",) if choice is Choice.NOT_CLAIMED else (),
        request=Request(**request),
        expect=Expectation(
            events=[ExpectedEvent(**each) for each in events],
            terminal=terminal,
            diagnostics=diagnostics and ExpectedDiagnostics(**diagnostics),
        ),
    )
