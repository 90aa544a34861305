import time
from typing import Any

import pytest

from nnrp_backend.adapter.diagnostics import cache_diagnostics, dispatch_diagnostics
from nnrp_backend.client import CacheUse, read_diagnostics
from nnrp_backend.profile.events import Event, decode_event, diagnostics
from tests.support.engines import ScriptedEngine
from tests.support.operations import FakeOperation


def sent(fields: dict[str, Any]) -> Event:
    """The event as a client reads it."""
    return decode_event(diagnostics(fields))


async def test_what_is_known_when_the_engine_gets_the_request() -> None:
    operation = FakeOperation(b"")
    operation.received_at = time.monotonic() - 0.5
    made = dispatch_diagnostics(operation, ScriptedEngine())  # type: ignore[arg-type]
    assert 500 <= made.pop("queue_delay_ms") < 5000
    assert read_diagnostics(sent(made), strict=True).engine == "scripted"
    assert made == {
        "transport": "memory",
        "engine": "scripted",
        "pressure": {"running": 0, "waiting": 1, "capacity": 4, "kv_usage": 0.25},
        "retry_reason": None,
    }


def test_what_the_cache_spared() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}
    made = cache_diagnostics(usage)
    assert made == {"cache": {"cached_tokens": 0}}
    assert read_diagnostics(sent(made), strict=True).cache == CacheUse(cached_tokens=0)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens_details": None},
        {"prompt_tokens_details": {}},
        {"prompt_tokens_details": {"cached_tokens": None}},
        {"prompt_tokens_details": {"cached_tokens": "3"}},
    ],
)
def test_an_engine_that_does_not_say(usage: Any) -> None:
    assert cache_diagnostics(usage) is None
