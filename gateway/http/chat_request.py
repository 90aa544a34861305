"""One request to `POST /v1/chat/completions`: its body, and the headers that concern it."""

from __future__ import annotations

import re
import secrets
from typing import Final

from starlette.types import Scope

from gateway.errors import ApiError
from gateway.http.asgi import header, request_id
from gateway.http.diagnostics import Diagnostics
from gateway.http.edge import Edge
from gateway.observability.metrics import RequestMeter
from gateway.pool import PoolRequest, Worker
from gateway.translate import (
    ChatPlan,
    EventStream,
    Usage,
    WholeAnswer,
    open_chat_stream,
    plan_chat,
    whole_answer,
)
from nnrp_backend.client import Terminal
from nnrp_backend.profile.envelope import NnrpOptions
from nnrp_backend.profile.operations import CHAT

__all__ = ["ChatRequest"]

DEADLINE_HEADER: Final = "x-request-deadline-ms"
#: A day; more is a unit mistaken.
_MAX_DEADLINE_MS: Final = 86_400_000
# W3C Trace Context, version 00: what is malformed is ignored, as the recommendation asks.
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class ChatRequest:
    """A checked chat request with the options that its headers carry.

    Raises:
        ApiError: 400, the body or a header is not what it should be.
    """

    __slots__ = (
        "_edge",
        "_plan",
        "_traceparent",
        "deadline",
        "diagnostics",
        "id",
        "meter",
        "model",
        "stream",
    )

    def __init__(self, edge: Edge, scope: Scope, raw: bytes, meter: RequestMeter) -> None:
        self._edge = edge
        plan = plan_chat(
            raw,
            max_depth=edge.config.limits.json_depth,
            reasoning=edge.config.chat.reasoning,
        )
        self._plan: ChatPlan | None = plan
        self.model = plan.model
        self.stream = plan.stream
        self.meter = meter
        self.id = request_id(scope)
        left_ms = _deadline_ms(scope)
        self.deadline = None if left_ms is None else edge.clock() + left_ms / 1000
        asked = header(scope, b"x-nnrp-diagnostics")
        self.diagnostics = Diagnostics() if asked == "1" else None
        traceparent = header(scope, b"traceparent") or ""
        self._traceparent = traceparent if _TRACEPARENT.fullmatch(traceparent) else None

    def for_pool(self) -> PoolRequest:
        """Return what the pool needs to serve it."""
        return PoolRequest(
            model=self.model, operation=CHAT, build=self._build, deadline=self.deadline
        )

    def open_stream(self, worker: Worker | None) -> EventStream:
        """Return the translator of its streamed answer from `worker` (None: there is none).

        Called once, when the request will not be built again: its body is let go of.
        """
        plan, self._plan = self._checked_plan(), None
        return open_chat_stream(
            plan,
            final_chunks=worker is not None and worker.final_chunks,
            completion_id=f"chatcmpl-{secrets.token_hex(16)}",
            created=int(self._edge.wall_clock()),
        )

    def read_whole(self, terminal: Terminal, worker: Worker | None) -> WholeAnswer:
        """Return the answer that `worker` gave in one piece.

        Raises:
            ApiError: the terminal is not an answer.
        """
        final_chunks = worker is not None and worker.final_chunks
        return whole_answer(terminal, self._checked_plan(), final_chunks=final_chunks)

    def count(self, usage: Usage | None) -> None:
        """Count the tokens that its answer cost, where somebody has counted."""
        if usage is not None:
            self.meter.tokens(
                self.model,
                input=usage.prompt_tokens,
                output=usage.completion_tokens,
                cached=usage.cached_tokens,
            )

    def _checked_plan(self) -> ChatPlan:
        if self._plan is None:
            raise AssertionError("the body of the request has been let go of")
        return self._plan

    def _build(self, worker: Worker) -> bytes:
        left_ms = None
        if self.deadline is not None:
            left_ms = max(1, round((self.deadline - self._edge.clock()) * 1000))
        options = NnrpOptions(
            deadline_ms=left_ms,
            diagnostics=self.diagnostics is not None,
            credit=self._edge.config.stream.credit if self.stream else None,
            traceparent=self._traceparent,
        )
        return self._checked_plan().payload(request_id=self.id, nnrp=options, ours=worker.ours)


def _deadline_ms(scope: Scope) -> int | None:
    given = header(scope, DEADLINE_HEADER.encode())
    if given is None:
        return None
    if given.isascii() and given.isdecimal() and len(given) <= len(str(_MAX_DEADLINE_MS)):
        left_ms = int(given)
        if 0 < left_ms <= _MAX_DEADLINE_MS:
            return left_ms
    message = f"{DEADLINE_HEADER} must be a whole number from 1 to {_MAX_DEADLINE_MS}."
    raise ApiError(400, message, code="invalid_value", param=DEADLINE_HEADER)
