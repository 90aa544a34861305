"""The gateway's own numbers: plain integers where requests pass, Prometheus where they are read.

Nothing here is a Prometheus object on the request's way: a bound child costs more than the rest of
a token's accounting. `GatewayCollector` translates at scrape time.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from gateway.observability.histogram import LATENCY_BOUNDS, WORK_BOUNDS, Histogram

__all__ = ["CancelPhase", "GatewayMetrics", "ModelMetrics", "RequestMeter", "RequestOutcome"]

#: Label sets stay bounded whatever workers call their models.
MAX_MODELS: Final = 256
OTHER_MODEL: Final = "other"


class RequestOutcome(StrEnum):
    """How a request ended, as an operator asks: whose fault, and would more capacity help."""

    OK = "ok"
    VALIDATION = "validation"
    NOT_FOUND = "not_found"
    OVERLOAD = "overload"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    WORKER = "worker"
    INTERNAL = "internal"

    @classmethod
    def of_status(cls, status: int) -> RequestOutcome:
        """Return the outcome that an HTTP status stands for, in band or not."""
        if status < 400:
            return cls.OK
        return _OUTCOMES.get(status, cls.VALIDATION if status < 500 else cls.INTERNAL)


_OUTCOMES: Final = {
    404: RequestOutcome.NOT_FOUND,
    408: RequestOutcome.TIMEOUT,
    429: RequestOutcome.OVERLOAD,
    499: RequestOutcome.CANCELLED,
    502: RequestOutcome.WORKER,
    503: RequestOutcome.OVERLOAD,
    504: RequestOutcome.TIMEOUT,
}


class CancelPhase(StrEnum):
    """Where a request was when its client left."""

    QUEUED = "queued"
    FIRST_EVENT = "first_event"
    STREAMING = "streaming"
    WHOLE = "whole"


class ModelMetrics:
    """The numbers of one model."""

    __slots__ = (
        "cached_tokens",
        "events",
        "input_tokens",
        "output_tokens",
        "requests",
        "time_to_first_token",
    )

    def __init__(self) -> None:
        self.requests = dict.fromkeys(RequestOutcome, 0)
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.events = 0
        self.time_to_first_token = Histogram(LATENCY_BOUNDS)


class GatewayMetrics:
    """The numbers of one gateway process. Written in the event loop, read in any thread."""

    def __init__(self) -> None:
        self.in_flight = 0
        """API requests that have not been answered to their end."""
        self.models: dict[str, ModelMetrics] = {"": ModelMetrics()}
        """By model; "" collects the requests that no worker ever saw."""
        self.routes = dict.fromkeys(RequestOutcome, 0)
        """Requests that are not about a model: lists, unknown routes, methods and types."""
        self.cancels = dict.fromkeys(CancelPhase, 0)
        self.stalled_readers = 0
        """Streams cancelled because their client read nothing for too long."""
        self.duration = Histogram(LATENCY_BOUNDS)
        self.queue_wait = Histogram(LATENCY_BOUNDS)
        self.overhead = Histogram(WORK_BOUNDS)
        self.loop_delay = Histogram(WORK_BOUNDS)

    def __repr__(self) -> str:
        done: Counter[str] = Counter()
        for model in list(self.models.values()):
            done.update(model.requests)
        return f"<GatewayMetrics [{self.in_flight} in flight, {done.total()} done]>"

    def model(self, name: str) -> ModelMetrics:
        """Return the numbers of a model. Only names that a worker serves belong here."""
        metrics = self.models.get(name)
        if metrics is None:
            if len(self.models) > MAX_MODELS:
                name = OTHER_MODEL
            metrics = self.models.setdefault(name, ModelMetrics())
        return metrics

    def begin(self, now: float) -> RequestMeter:
        """Count a request in. Its meter counts it out, once."""
        self.in_flight += 1
        return RequestMeter(self, now)


class RequestMeter:
    """Measure one request about a model, from its last byte in to its last byte out."""

    __slots__ = ("_ended", "_metrics", "_model", "_started", "events")

    def __init__(self, metrics: GatewayMetrics, now: float) -> None:
        self._metrics = metrics
        self._started = now
        self._model = ""
        self._ended = False
        self.events = 0
        """Streamed events passed on."""

    def submitted(self, now: float) -> float:
        """Note that the gateway's work in front of the worker is done; return its seconds."""
        overhead = now - self._started
        self._metrics.overhead.observe(overhead)
        return overhead

    def answered(self, model: str) -> None:
        """Note that a worker that serves `model` has said something."""
        self._model = model

    def first_token(self, now: float, model: str) -> None:
        """Note the first event of a worker that serves `model`."""
        self._model = model
        self._metrics.model(model).time_to_first_token.observe(now - self._started)

    def cancelled(self, phase: CancelPhase) -> None:
        """Note that the client left."""
        self._metrics.cancels[phase] += 1

    def tokens(self, model: str, *, input: int, output: int, cached: int) -> None:
        """Add what a worker that serves `model` counted."""
        numbers = self._metrics.model(model)
        numbers.input_tokens += input
        numbers.output_tokens += output
        numbers.cached_tokens += cached

    def end(self, now: float, status: int, *, queued: float = 0.0) -> None:
        """Count the request out with its status (499: the client left). Idempotent."""
        if self._ended:
            return
        self._ended = True
        metrics = self._metrics
        metrics.in_flight -= 1
        metrics.duration.observe(now - self._started)
        metrics.queue_wait.observe(queued)
        # A worker may be asked for any model, and say that it has none of that name.
        numbers = metrics.model("" if status == 404 else self._model)
        numbers.requests[RequestOutcome.of_status(status)] += 1
        numbers.events += self.events
