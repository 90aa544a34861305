"""What is told to a user who asks how the request went."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from gateway.http.diagnostics import Diagnostics
from gateway.pool import Worker
from nnrp_backend.profile import events


def ticket(**fields: Any) -> Any:
    worker = Worker(name="tcp://w:1", ours=True, final_chunks=True)
    return SimpleNamespace(**{"worker": worker, "attempts": 1, "queued_s": 0.0, **fields})


def comment(diagnostics: Diagnostics, ticket: Any) -> dict[str, Any]:
    text = diagnostics.comment(ticket)
    assert text.startswith(b": nnrp {")
    assert text.endswith(b"}\n\n")
    assert text.count(b"\n") == 2, "one line, or a client would see data"
    facts: dict[str, Any] = json.loads(text[len(b": nnrp ") :])
    return facts


def test_the_gateway_s_own_facts() -> None:
    diagnostics = Diagnostics()
    diagnostics.submitted(0.00025)
    facts = comment(diagnostics, ticket(attempts=2, queued_s=0.5))
    assert facts == {
        "worker": "tcp://w:1",
        "attempts": 2,
        "queue_ms": 500.0,
        "gateway_ms": 0.25,
    }


def test_the_worker_s_facts_are_merged_and_later_ones_win() -> None:
    diagnostics = Diagnostics()
    diagnostics.take([events.diagnostics({"a": 1, "b": 1}), events.text_delta(0, "x")])
    diagnostics.take([b"no json", events.diagnostics({"b": 2, "line": "end\n"})])
    facts = comment(diagnostics, ticket())
    assert facts["diagnostics"] == {"a": 1, "b": 2, "line": "end\n"}


def test_the_headers_at_the_start() -> None:
    diagnostics = Diagnostics()
    diagnostics.submitted(0.001)
    assert diagnostics.headers(ticket(queued_s=0.002)) == [
        (b"server-timing", b"gateway;dur=1.0, queue;dur=2.0"),
        (b"x-nnrp-worker", b"tcp://w:1"),
    ]


def test_a_request_that_no_worker_has() -> None:
    diagnostics = Diagnostics()
    assert [name for name, _ in diagnostics.headers(ticket(worker=None))] == [b"server-timing"]
    assert comment(diagnostics, ticket(worker=None))["worker"] is None


def test_a_worker_s_name_cannot_break_a_header() -> None:
    worker = Worker(name="wörker", ours=True, final_chunks=True)
    assert (b"x-nnrp-worker", b"w?rker") in Diagnostics().headers(ticket(worker=worker))
