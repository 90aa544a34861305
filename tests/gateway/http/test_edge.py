"""The edge's surroundings: what it asks for is what the rest of the gateway has."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from gateway.config import GatewayConfig
from gateway.http.edge import Edge, Workers
from gateway.http.open_requests import OpenRequests
from gateway.observability.metrics import GatewayMetrics
from gateway.pool import Pool, WorkerSpec
from nnrp_backend.transport.tasks import TaskSet


def surroundings(pool: Workers) -> Edge:
    return Edge(
        config=GatewayConfig(),
        pool=pool,
        metrics=GatewayMetrics(),
        open=OpenRequests(),
        tasks=TaskSet("test"),
        clock=lambda: 0.0,
        wall_clock=lambda: 0.0,
    )


async def test_the_real_pool_is_what_the_edge_asks_for() -> None:
    pool = Pool([WorkerSpec(endpoint="tcp://127.0.0.1:1", models=("m",))])
    edge = surroundings(pool)
    assert [worker.known for worker in edge.pool.workers] == [True]
    assert [card["id"] for card in edge.pool.models()] == ["m"]


async def test_it_cannot_be_changed() -> None:
    edge = surroundings(Pool([]))
    for field in fields(edge):
        with pytest.raises(FrozenInstanceError):
            setattr(edge, field.name, None)
