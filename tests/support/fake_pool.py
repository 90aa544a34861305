"""A pool that a test plays: it writes down what is submitted, and answers what the test says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.errors import ApiError
from gateway.pool import Outcome, OutcomeKind, PoolRequest, Sink, TicketState, Worker
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from tests.support.waiting import until

OURS = Worker(name="worker-0", ours=True, final_chunks=True)


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """A chat chunk as an engine makes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return json.dumps(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        | {"choices": [choice]}
    ).encode()


def text(content: str) -> bytes:
    """A text delta with its chunk."""
    return events.text_delta(0, content, chunk({"content": content}))


def sse(content: str) -> bytes:
    """What the client must see of `text(content)`."""
    return b"data: " + chunk({"content": content}) + b"\n\n"


class Submission:
    """One submitted request, its ticket, and the worker that the test plays."""

    def __init__(self, request: PoolRequest, sink: Sink, *, confirms_cancels: bool) -> None:
        self.request = request
        self.sink = sink
        self.confirms_cancels = confirms_cancels
        self.ended = False
        # The ticket's face.
        self.state = TicketState.SUBMITTED
        self.worker: Worker | None = OURS
        self.attempts = 1
        self.queued_s = 0.0
        self.cancelled = False
        self.grants: list[int] = []

    def cancel(self) -> None:
        if not self.cancelled and not self.ended:
            self.cancelled = True
            if self.confirms_cancels:
                asyncio.get_running_loop().call_soon(self.end, OutcomeKind.CANCELLED)

    def grant(self, window: int) -> None:
        self.grants.append(window)

    # The worker's side.

    def events(self, *bodies: bytes) -> None:
        """Deliver events that arrived in one read; after the end they reach nobody."""
        if self.ended:
            return
        diagnostics = b'{"type":"response.diagnostics"'
        if not all(body.startswith(diagnostics) for body in bodies):
            self.state = TicketState.STREAMING
        self.sink.on_events(list(bodies))

    def answer(self, **body: Any) -> None:
        """End with `response.completed`."""
        self.push(events.completed(json.dumps(body).encode()))

    def push(self, body: bytes) -> None:
        """End with a RESULT_PUSH of any body."""
        self.end(OutcomeKind.ANSWERED, terminal=Terminal(TerminalKind.RESULT, body))

    def fail(self, error: ApiError) -> None:
        """End as the pool does when it refuses, or loses the worker."""
        self.end(OutcomeKind.FAILED, error=error)

    def end(
        self,
        kind: OutcomeKind,
        *,
        error: ApiError | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        assert not self.ended, "a request ends once"
        self.ended = True
        self.state = TicketState.DONE
        sink = self.sink
        del self.sink  # as the ticket does: sinks keep their tickets
        sink.on_terminal(Outcome(kind, error, terminal))


class KnownWorker:
    known = True


class FakePool:
    """What the edge sees of `gateway.pool.Pool`."""

    def __init__(self) -> None:
        self.submissions: list[Submission] = []
        self.refuse: ApiError | None = None
        self.confirms_cancels = True
        self.cards: list[dict[str, Any]] = [{"id": "m", "owned_by": "test"}]
        self.workers: list[KnownWorker] = [KnownWorker()]

    def submit(self, request: PoolRequest, sink: Sink) -> Any:
        submission = Submission(request, sink, confirms_cancels=self.confirms_cancels)
        self.submissions.append(submission)
        if self.refuse is not None:
            submission.worker = None
            submission.fail(self.refuse)
        return submission

    def models(self) -> list[dict[str, Any]]:
        return self.cards

    async def next(self, count: int = 1) -> Submission:
        """Wait for the `count`-th submission, and return it."""
        await until(lambda: len(self.submissions) >= count)
        return self.submissions[count - 1]
