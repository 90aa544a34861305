import pytest
from prometheus_client.parser import text_string_to_metric_families

from nnrp_backend.adapter.adapter import Adapter
from nnrp_backend.adapter.engine import EngineDead
from nnrp_backend.adapter.metrics import render
from nnrp_backend.adapter.outcomes import Outcome
from nnrp_backend.adapter.sim import SimEngine
from nnrp_backend.server import NnrpServer
from tests.support.engines import ScriptedEngine
from tests.support.operations import FakeOperation


def scrape(adapter: Adapter) -> dict[str, float]:
    """Read the metrics as Prometheus would; labels are part of the name."""
    text = render(adapter, NnrpServer(adapter.handle)).decode()
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_every_series_is_there_from_the_start() -> None:
    scraped = scrape(Adapter(SimEngine()))
    for outcome in Outcome:
        assert scraped[f"nnrp_backend_operations_total{{{outcome}}}"] == 0
    assert scraped["nnrp_backend_operations_in_flight"] == 0
    assert scraped["nnrp_backend_operations_max"] == 1024
    assert scraped["nnrp_backend_connections"] == 0
    assert scraped["nnrp_backend_draining"] == 0
    assert scraped["nnrp_backend_engine_alive"] == 1
    assert "nnrp_backend_engine_kv_usage_ratio" not in scraped


async def test_numbers_move() -> None:
    adapter = Adapter(ScriptedEngine())
    adapter.handle(FakeOperation(b"nonsense"))  # type: ignore[arg-type]
    adapter.death = EngineDead("scripted", "gone")
    scraped = scrape(adapter)
    assert scraped["nnrp_backend_operations_total{refused}"] == 1
    assert scraped["nnrp_backend_engine_alive"] == 0
    assert scraped["nnrp_backend_engine_waiting"] == 1
    assert scraped["nnrp_backend_engine_kv_usage_ratio"] == pytest.approx(0.25)


async def test_the_engines_own_metrics_follow() -> None:
    assert scrape(Adapter(ScriptedEngine()))["scripted_things"] == 7
