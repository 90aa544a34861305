"""The gateway's numbers in Prometheus's form, made when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway.observability.histogram import Histogram
from gateway.observability.metrics import GatewayMetrics

__all__ = ["GatewayCollector", "PoolView", "WorkerView", "register"]


class WorkerView(Protocol):
    """What is told about a worker."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> StrEnum: ...
    @property
    def in_flight(self) -> int: ...


class _Counters(Protocol):
    retried: int
    unanswered_cancels: int


class PoolView(Protocol):
    """What is told about the pool. Read from the scraping thread."""

    @property
    def workers(self) -> Sequence[WorkerView]: ...
    @property
    def queued(self) -> int: ...
    @property
    def counters(self) -> _Counters: ...


class GatewayCollector(Collector):
    """Translate the numbers of one gateway process. Every series exists from the start.

    Args:
        models: names of the models that workers serve now, so that their series begin at zero.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        pool: PoolView,
        *,
        models: Callable[[], Iterable[str]],
        version: str,
    ) -> None:
        self._metrics = metrics
        self._pool = pool
        self._models = models
        self._version = version

    def describe(self) -> Iterable[Metric]:
        """Say nothing in advance: registering must not read a pool that has not started."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for name in self._models():
            self._metrics.model(name)
        yield InfoMetricFamily("nnrp_gateway", "The gateway.", value={"version": self._version})
        yield from self._requests()
        yield from self._per_model()
        yield from self._latencies()
        yield from self._workers()

    def _requests(self) -> Iterator[Metric]:
        metrics = self._metrics
        requests = CounterMetricFamily(
            "nnrp_gateway_requests",
            'Requests answered to their end. Model "" is those that no worker saw.',
            labels=("route", "model", "outcome"),
        )
        for name, model in list(metrics.models.items()):
            for outcome, count in model.requests.items():
                requests.add_metric(("chat_completions", name, outcome), count)
        for outcome, count in metrics.routes.items():
            requests.add_metric(("other", "", outcome), count)
        yield requests
        yield GaugeMetricFamily(
            "nnrp_gateway_requests_in_flight",
            "Requests about a model that have not been answered to their end.",
            value=metrics.in_flight,
        )
        yield GaugeMetricFamily(
            "nnrp_gateway_requests_queued",
            "Requests waiting for a worker.",
            value=self._pool.queued,
        )
        cancels = CounterMetricFamily(
            "nnrp_gateway_cancels",
            "Requests whose client left, by what they were doing.",
            labels=("phase",),
        )
        for phase, count in metrics.cancels.items():
            cancels.add_metric((phase,), count)
        yield cancels
        yield CounterMetricFamily(
            "nnrp_gateway_unanswered_cancels",
            "Cancels that a worker did not confirm in time.",
            value=self._pool.counters.unanswered_cancels,
        )
        yield CounterMetricFamily(
            "nnrp_gateway_stalled_readers",
            "Streams cancelled because their client read nothing for too long.",
            value=metrics.stalled_readers,
        )
        yield CounterMetricFamily(
            "nnrp_gateway_retries",
            "Requests given to a second worker before their first event.",
            value=self._pool.counters.retried,
        )

    def _per_model(self) -> Iterator[Metric]:
        models = list(self._metrics.models.items())
        for field, help in (
            ("input_tokens", "Prompt tokens, as workers counted them."),
            ("cached_tokens", "Prompt tokens that a worker had in its cache."),
            ("output_tokens", "Completion tokens, as workers counted them."),
            ("events", "Events passed on in streams."),
        ):
            family = CounterMetricFamily(f"nnrp_gateway_{field}", help, labels=("model",))
            for name, model in models:
                family.add_metric((name,), getattr(model, field))
            yield family
        first = HistogramMetricFamily(
            "nnrp_gateway_time_to_first_token_seconds",
            "From a streamed request's last byte to its first event.",
            labels=("model",),
        )
        for name, model in models:
            histogram = model.time_to_first_token
            first.add_metric((name,), histogram.buckets(), histogram.sum)
        yield first

    def _latencies(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield _histogram(
            "nnrp_gateway_request_duration_seconds",
            "From a request's last byte in to its answer's last byte out.",
            metrics.duration,
        )
        yield _histogram(
            "nnrp_gateway_queue_seconds", "Time spent waiting for a worker.", metrics.queue_wait
        )
        yield _histogram(
            "nnrp_gateway_overhead_seconds",
            "The gateway's own work between a request's last byte and its submission.",
            metrics.overhead,
        )
        yield _histogram(
            "nnrp_gateway_event_loop_delay_seconds",
            "How late the event loop's heartbeat was.",
            metrics.loop_delay,
        )

    def _workers(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "nnrp_gateway_worker_state",
            "1 for the state that a worker is in, 0 for the others.",
            labels=("worker", "state"),
        )
        in_flight = GaugeMetricFamily(
            "nnrp_gateway_worker_requests_in_flight",
            "Operations that a worker has not answered to their end.",
            labels=("worker",),
        )
        for worker in list(self._pool.workers):
            current = worker.state
            for each in type(current):
                state.add_metric((worker.name, each), float(each is current))
            in_flight.add_metric((worker.name,), worker.in_flight)
        yield state
        yield in_flight


def _histogram(name: str, help: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, help)
    family.add_metric((), histogram.buckets(), histogram.sum)
    return family


def register(registry: CollectorRegistry, collector: GatewayCollector) -> None:
    """Add the gateway's numbers, and the process's CPU, memory and descriptors."""
    registry.register(collector)
    ProcessCollector(registry=registry)
