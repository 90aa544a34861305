"""What a request's way leaves in the numbers."""

from __future__ import annotations

import pytest

from gateway.observability.metrics import (
    MAX_MODELS,
    OTHER_MODEL,
    CancelPhase,
    GatewayMetrics,
    RequestOutcome,
)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (400, "validation"),
        (401, "validation"),
        (404, "not_found"),
        (405, "validation"),
        (408, "timeout"),
        (413, "validation"),
        (429, "overload"),
        (499, "cancelled"),
        (500, "internal"),
        (502, "worker"),
        (503, "overload"),
        (504, "timeout"),
    ],
)
def test_every_status_is_one_outcome(status: int, outcome: str) -> None:
    assert RequestOutcome.of_status(status) == outcome


def test_a_streamed_request_is_measured_from_in_to_out() -> None:
    metrics = GatewayMetrics()
    meter = metrics.begin(10.0)
    assert metrics.in_flight == 1
    assert meter.submitted(10.001) == pytest.approx(0.001)
    meter.first_token(10.5, "m")
    meter.events = 7
    meter.tokens("m", input=3, output=4, cached=2)
    meter.end(12.0, 200, queued=0.25)
    model = metrics.models["m"]
    assert metrics.in_flight == 0
    assert model.requests[RequestOutcome.OK] == 1
    assert (model.input_tokens, model.output_tokens, model.cached_tokens) == (3, 4, 2)
    assert model.events == 7
    assert model.time_to_first_token.sum == pytest.approx(0.5)
    assert metrics.duration.sum == pytest.approx(2.0)
    assert metrics.queue_wait.sum == pytest.approx(0.25)
    assert metrics.overhead.sum == pytest.approx(0.001)


def test_a_whole_answer_is_the_model_s_too() -> None:
    metrics = GatewayMetrics()
    meter = metrics.begin(0.0)
    meter.answered("m")
    meter.end(1.0, 400)
    assert metrics.models["m"].requests[RequestOutcome.VALIDATION] == 1


def test_a_model_that_a_worker_does_not_know_gets_no_series() -> None:
    metrics = GatewayMetrics()
    meter = metrics.begin(0.0)
    meter.answered("whatever a user writes")
    meter.end(1.0, 404)
    assert list(metrics.models) == [""]


def test_a_request_is_counted_out_once() -> None:
    metrics = GatewayMetrics()
    meter = metrics.begin(0.0)
    meter.end(1.0, 499)
    meter.end(2.0, 200)
    assert metrics.in_flight == 0
    assert metrics.models[""].requests[RequestOutcome.CANCELLED] == 1
    assert metrics.models[""].requests[RequestOutcome.OK] == 0


def test_a_refused_request_has_no_model() -> None:
    metrics = GatewayMetrics()
    metrics.begin(0.0).end(0.1, 404)
    assert list(metrics.models) == [""]
    assert metrics.models[""].requests[RequestOutcome.NOT_FOUND] == 1


def test_a_client_that_leaves_is_counted_by_phase() -> None:
    metrics = GatewayMetrics()
    metrics.begin(0.0).cancelled(CancelPhase.STREAMING)
    assert metrics.cancels == {
        CancelPhase.QUEUED: 0,
        CancelPhase.FIRST_EVENT: 0,
        CancelPhase.STREAMING: 1,
        CancelPhase.WHOLE: 0,
    }


def test_the_models_are_bounded() -> None:
    metrics = GatewayMetrics()
    for number in range(MAX_MODELS + 10):
        metrics.model(f"model-{number}").events += 1
    assert len(metrics.models) <= MAX_MODELS + 2
    assert metrics.models[OTHER_MODEL].events == 10
    assert metrics.models["model-0"].events == 1


def test_its_repr_tells_the_counts() -> None:
    metrics = GatewayMetrics()
    metrics.begin(0.0).end(0.1, 200)
    metrics.begin(0.0)
    assert repr(metrics) == "<GatewayMetrics [1 in flight, 1 done]>"
