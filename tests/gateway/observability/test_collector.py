"""What a scrape finds, parsed by Prometheus's own parser."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.collector import GatewayCollector, register
from gateway.observability.metrics import CancelPhase, GatewayMetrics


class State(StrEnum):
    READY = "ready"
    DOWN = "down"


class Worker:
    def __init__(self, name: str, state: State, in_flight: int) -> None:
        self.name, self.state, self.in_flight = name, state, in_flight


class Counters:
    retried = 3
    unanswered_cancels = 2


class Pool:
    workers: tuple[Worker, ...] = ()
    queued = 0
    counters = Counters()


def scrape(metrics: GatewayMetrics, pool: Pool, *models: str) -> dict[tuple[Any, ...], float]:
    registry = CollectorRegistry()
    register(registry, GatewayCollector(metrics, pool, models=lambda: models, version="1.2.3"))
    text = generate_latest(registry).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_is_there_before_the_first_request() -> None:
    pool = Pool()
    pool.workers = (Worker("w", State.READY, 0),)
    found = scrape(GatewayMetrics(), pool, "m")
    for name in (
        "nnrp_gateway_requests_in_flight",
        "nnrp_gateway_requests_queued",
        "nnrp_gateway_stalled_readers_total",
        "nnrp_gateway_overhead_seconds_count",
        "nnrp_gateway_event_loop_delay_seconds_count",
        "nnrp_gateway_queue_seconds_count",
        "nnrp_gateway_request_duration_seconds_count",
    ):
        assert found[(name,)] == 0, name
    for outcome in [
        "ok",
        "validation",
        "not_found",
        "overload",
        "timeout",
        "cancelled",
        "worker",
        "internal",
    ]:
        labels = (("model", "m"), ("outcome", outcome), ("route", "chat_completions"))
        assert found[("nnrp_gateway_requests_total", *labels)] == 0
        labels = (("model", ""), ("outcome", outcome), ("route", "other"))
        assert found[("nnrp_gateway_requests_total", *labels)] == 0
    for phase in CancelPhase:
        assert found[("nnrp_gateway_cancels_total", ("phase", phase))] == 0
    for name in ("input_tokens", "output_tokens", "cached_tokens", "events"):
        assert found[(f"nnrp_gateway_{name}_total", ("model", "m"))] == 0
    assert found[("nnrp_gateway_time_to_first_token_seconds_count", ("model", "m"))] == 0
    assert found[("nnrp_gateway_info", ("version", "1.2.3"))] == 1


def test_requests_are_found_under_their_outcome() -> None:
    metrics = GatewayMetrics()
    meter = metrics.begin(0.0)
    meter.first_token(0.3, "m")
    meter.tokens("m", input=5, output=6, cached=1)
    meter.end(1.0, 200)
    metrics.begin(0.0).end(1.0, 404)
    metrics.begin(0.0)
    metrics.cancels[CancelPhase.WHOLE] += 1
    found = scrape(metrics, Pool())
    chat = ("route", "chat_completions")
    total = "nnrp_gateway_requests_total"
    assert found[(total, ("model", "m"), ("outcome", "ok"), chat)] == 1
    assert found[(total, ("model", ""), ("outcome", "not_found"), chat)] == 1
    assert found[("nnrp_gateway_requests_in_flight",)] == 1
    assert found[("nnrp_gateway_input_tokens_total", ("model", "m"))] == 5
    assert found[("nnrp_gateway_output_tokens_total", ("model", "m"))] == 6
    assert found[("nnrp_gateway_cached_tokens_total", ("model", "m"))] == 1
    assert found[("nnrp_gateway_cancels_total", ("phase", "whole"))] == 1
    bucket = "nnrp_gateway_time_to_first_token_seconds_bucket"
    assert found[(bucket, ("le", "0.2"), ("model", "m"))] == 0
    assert found[(bucket, ("le", "0.5"), ("model", "m"))] == 1
    assert found[("nnrp_gateway_time_to_first_token_seconds_sum", ("model", "m"))] == 0.3


def test_workers_are_in_one_state_each() -> None:
    pool = Pool()
    pool.workers = (Worker("a", State.READY, 4), Worker("b", State.DOWN, 0))
    found = scrape(GatewayMetrics(), pool)
    state = "nnrp_gateway_worker_state"
    assert found[(state, ("state", "ready"), ("worker", "a"))] == 1
    assert found[(state, ("state", "down"), ("worker", "a"))] == 0
    assert found[(state, ("state", "ready"), ("worker", "b"))] == 0
    assert found[(state, ("state", "down"), ("worker", "b"))] == 1
    assert found[("nnrp_gateway_worker_requests_in_flight", ("worker", "a"))] == 4


def test_the_pool_s_counters_are_told() -> None:
    found = scrape(GatewayMetrics(), Pool())
    assert found[("nnrp_gateway_retries_total",)] == 3
    assert found[("nnrp_gateway_unanswered_cancels_total",)] == 2


def test_the_process_is_told_too() -> None:
    assert scrape(GatewayMetrics(), Pool())[("process_resident_memory_bytes",)] > 0


def test_registering_reads_nothing() -> None:
    class NotStarted(Pool):
        @property
        def queued(self) -> int:  # type: ignore[override]
            raise AssertionError("read before a scrape")

    collector = GatewayCollector(GatewayMetrics(), NotStarted(), models=lambda: (), version="0")
    register(CollectorRegistry(), collector)
