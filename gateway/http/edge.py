"""What the HTTP edge works with: everything is handed in, nothing is looked up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.config import GatewayConfig
from gateway.http.open_requests import OpenRequests
from gateway.observability.metrics import GatewayMetrics
from gateway.pool import PoolRequest, Sink, Ticket
from nnrp_backend.transport.tasks import TaskSet

__all__ = ["Edge", "Workers"]


class KnownWorker(Protocol):
    """What the edge asks of one worker."""

    @property
    def known(self) -> bool:
        """Whether it has said, or configuration says, what it serves."""


class Workers(Protocol):
    """What the edge asks of the pool."""

    @property
    def workers(self) -> Sequence[KnownWorker]: ...

    def submit(self, request: PoolRequest, sink: Sink) -> Ticket:
        """Queue or start a request; the sink hears the rest, refusals included."""

    def models(self) -> Sequence[dict[str, Any]]:
        """Return the cards of the models that workers serve, by what they last said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The edge's surroundings.

    Attributes:
        open: the requests being answered, for keep-alives and for the drain.
        tasks: keeps the edge's tasks.
        clock: monotonic seconds, the event loop's.
        wall_clock: seconds since 1970, for `created`.
    """

    config: GatewayConfig
    pool: Workers
    metrics: GatewayMetrics
    open: OpenRequests
    tasks: TaskSet
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
