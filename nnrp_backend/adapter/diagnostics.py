"""What a client that asks for diagnostics is told (profile section 11)."""

import time
from typing import Any

from nnrp_backend.adapter.engine import Engine
from nnrp_backend.server import ServerOperation


def dispatch_diagnostics(operation: ServerOperation, engine: Engine) -> dict[str, Any]:
    """Describe the operation at the moment when the engine gets it.

    `queue_delay_ms` is what it waited in this process; `retry_reason` is for those in between to
    fill in, for a worker sees every try as the first.
    """
    pressure = engine.pressure()
    return {
        "queue_delay_ms": round((time.monotonic() - operation.received_at) * 1000, 3),
        "transport": operation.transport,
        "engine": engine.name,
        "pressure": pressure._asdict(),
        "retry_reason": None,
    }


def cache_diagnostics(usage: Any) -> dict[str, Any] | None:
    """Describe what the prompt cache spared, from the engine's usage; None where it is silent."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return {"cache": {"cached_tokens": cached}} if isinstance(cached, int) else None
