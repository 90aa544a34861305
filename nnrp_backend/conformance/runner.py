"""Play the selected cases of a plan against an endpoint, each on a connection of its own.

One connection a case: a target that breaks the wire spoils only the case at hand, and every frame
that the connection brings after the terminal belongs to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from nnrp_backend.client import (
    ClientError,
    ClientOperation,
    NnrpClient,
    Terminal,
)
from nnrp_backend.conformance.checker import Verdict, check
from nnrp_backend.conformance.planner import Choice, Plan, PlannedCase
from nnrp_backend.conformance.recording import Recording
from nnrp_backend.profile.operations import CHAT, SCHEMA_VERSION

CASE_TIMEOUT: Final = 60.0
"""Seconds for one case. A large model on a CPU is slow; a target that hangs must still end."""

BARRIER_TIMEOUT: Final = 1.0
"""Seconds for the question after a case. A target that does not answer it is not at fault."""

Connect = Callable[[], NnrpClient]


class Outcome(StrEnum):
    """What became of a selected case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Played(msgspec.Struct, frozen=True):
    """One case of a run: judged, or skipped because the target could not be reached."""

    case: PlannedCase
    verdict: Verdict | None
    reason: str = ""
    """Why it was skipped."""

    @property
    def outcome(self) -> Outcome:
        """Give the case's outcome."""
        if self.verdict is None:
            return Outcome.SKIPPED
        return Outcome.PASSED if self.verdict.passed else Outcome.FAILED


async def play_all(
    plan: Plan, connect: Connect, *, timeout: float = CASE_TIMEOUT
) -> AsyncIterator[Played]:
    """Play each selected case in turn.

    Args:
        connect: makes a client that is not yet connected.
        timeout: seconds from a case's submit to its terminal.
    """
    for case in plan.chosen(Choice.SELECTED):
        try:
            async with connect() as client:
                recording = await play(client, case, timeout=timeout)
        except ClientError as error:
            yield Played(case, None, reason=str(error))
        else:
            yield Played(case, check(case, recording, plan.extensions))


async def play(client: NnrpClient, case: PlannedCase, *, timeout: float) -> Recording:
    """Play one case on a connected client, and keep what comes."""
    recorder = _Recorder(case.cancel_after_events)
    late, errors = client.counters.late_events, client.counters.protocol_errors
    started = time.monotonic()
    operation = client.submit(payload_of(case, credit=client.peer_is_ours), recorder)
    recorder.attend(operation)
    try:
        async with asyncio.timeout(timeout):
            await recorder.ended.wait()
    except TimeoutError:
        operation.cancel()
    seconds = time.monotonic() - started
    terminal = recorder.terminal
    if client.connected:
        await _barrier(client)
    return Recording(
        bodies=tuple(recorder.bodies),
        terminal=terminal,
        late_frames=client.counters.late_events - late,
        protocol_errors=client.counters.protocol_errors - errors,
        seconds=seconds,
    )


def payload_of(case: PlannedCase, *, credit: bool) -> bytes:
    """Write a case's envelope, or whatever its recipe wants in the place of one.

    `nnrp.cancel_after_events` is the driver's business and stays here. With `credit`, a case that
    cancels gives the target a window of just so many events, so that the operation cannot end
    before the CANCEL arrives.
    """
    if case.request.payload is not None:
        return case.request.payload.encode()
    nnrp = {key: value for key, value in case.request.nnrp.items() if key != "cancel_after_events"}
    after = case.cancel_after_events
    if after is not None and credit:
        nnrp.setdefault("credit", max(after, 1))
    envelope: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "operation": case.operation,
        "request_id": case.id,
        "body": case.request.body,
    }
    if nnrp:
        envelope["nnrp"] = nnrp
    return msgspec.json.encode(envelope | case.request.envelope)


async def _barrier(client: NnrpClient) -> None:
    # Whatever the target sent after the terminal arrives before the answer to a later question.
    # A chat body without messages costs no GPU and every adapter refuses it at once.
    question = {"schema_version": SCHEMA_VERSION, "operation": CHAT, "body": {}}
    try:
        async with asyncio.timeout(BARRIER_TIMEOUT):
            await client.request(msgspec.json.encode(question))
    except (TimeoutError, ClientError):
        return


class _Recorder:
    """Keep an operation's events and terminal; cancel it when its recipe says so."""

    def __init__(self, cancel_after: int | None) -> None:
        self.bodies: list[bytes] = []
        self.terminal: Terminal | None = None
        self.ended = asyncio.Event()
        self._cancel_after = cancel_after
        self._operation: ClientOperation | None = None

    def attend(self, operation: ClientOperation) -> None:
        self._operation = operation
        if self._cancel_after is not None:
            # For a peer that did not hear of `nnrp.credit` but negotiated credit.
            operation.grant(max(self._cancel_after, 1))
        self._maybe_cancel()

    def on_events(self, bodies: list[bytes]) -> None:
        self.bodies += bodies
        self._maybe_cancel()

    def on_progress(self, stage: int, percent_x100: int) -> None:
        pass  # tolerated at any time, and no part of the profile

    def on_terminal(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.ended.set()

    def _maybe_cancel(self) -> None:
        due = self._cancel_after is not None and len(self.bodies) >= self._cancel_after
        if due and self._operation is not None:
            self._operation.cancel()  # sent once, however often it is asked for
