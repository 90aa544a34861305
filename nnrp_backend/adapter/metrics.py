"""What a worker tells Prometheus. Everything is counted elsewhere and read here, at scrape time."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from nnrp_backend.adapter.adapter import Adapter
from nnrp_backend.adapter.outcomes import Outcome
from nnrp_backend.server import NnrpServer


class WorkerCollector(Collector):
    """Collect a worker's own numbers; register it where they are to be scraped."""

    def __init__(self, adapter: Adapter, server: NnrpServer) -> None:
        self._adapter = adapter
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Read all numbers now. Every outcome has its series from the start."""
        adapter, server = self._adapter, self._server
        ended = CounterMetricFamily(
            "nnrp_backend_operations", "Operations that have ended.", labels=["outcome"]
        )
        for outcome in Outcome:
            ended.add_metric([outcome], adapter.outcomes[outcome])
        yield ended
        pressure = adapter.engine.pressure()
        for name, help_, value in (
            ("operations_in_flight", "Operations that have had no terminal yet.", server.in_flight),
            ("operations_max", "Operations that may be in flight.", adapter.max_operations),
            ("connections", "Open NNRP connections.", server.connections),
            ("draining", "Whether new operations are refused.", server.draining),
            ("engine_alive", "Whether the engine lives.", adapter.death is None),
            ("engine_running", "Requests that the engine computes.", pressure.running),
            ("engine_waiting", "Requests that the engine holds back.", pressure.waiting),
        ):
            yield GaugeMetricFamily(f"nnrp_backend_{name}", help_, value=float(value))
        if pressure.kv_usage is not None:
            help_ = "Used part of the engine's key-value cache."
            yield GaugeMetricFamily(
                "nnrp_backend_engine_kv_usage_ratio", help_, value=pressure.kv_usage
            )


def render(adapter: Adapter, server: NnrpServer) -> bytes:
    """Return the worker's metrics and the engine's own, in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(adapter, server))
    return generate_latest(registry) + adapter.engine.metrics()
