"""What a user who sends `X-NNRP-Diagnostics: 1` is told about the request's way."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.pool import Ticket
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import EventType, decode_event

__all__ = ["Diagnostics"]


class Diagnostics:
    """Collect one request's diagnostics: `Server-Timing` and `x-nnrp-worker`, or an SSE comment."""

    __slots__ = ("_overhead_s", "_worker_says")

    def __init__(self) -> None:
        self._overhead_s = 0.0
        self._worker_says: dict[str, Any] = {}

    def submitted(self, overhead_s: float) -> None:
        """Note how long the gateway worked in front of the worker."""
        self._overhead_s = overhead_s

    def take(self, bodies: list[bytes]) -> None:
        """Keep what `response.diagnostics` events among `bodies` say; ignore the others.

        There may be several, the last ones when the engine has counted; later facts win.
        """
        for body in bodies:
            try:
                event = decode_event(body)
            except ProfileError:
                continue  # translation reports it
            if event.type == EventType.DIAGNOSTICS:
                self._worker_says.update(event.diagnostics or {})

    def headers(self, ticket: Ticket) -> list[tuple[bytes, bytes]]:
        """Return what is known when the response starts."""
        timing = f"gateway;dur={_ms(self._overhead_s)}, queue;dur={_ms(ticket.queued_s)}"
        headers = [(b"server-timing", timing.encode("ascii"))]
        if ticket.worker is not None:
            name = ticket.worker.name.encode("ascii", "replace")
            headers.append((b"x-nnrp-worker", name))
        return headers

    def comment(self, ticket: Ticket) -> bytes:
        """Return the SSE comment for the end of a stream: one line of JSON."""
        facts: dict[str, Any] = {
            "worker": ticket.worker.name if ticket.worker is not None else None,
            "attempts": ticket.attempts,
            "queue_ms": _ms(ticket.queued_s),
            "gateway_ms": _ms(self._overhead_s),
            **({"diagnostics": self._worker_says} if self._worker_says else {}),
        }
        return b": nnrp %b\n\n" % msgspec.json.encode(facts)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
