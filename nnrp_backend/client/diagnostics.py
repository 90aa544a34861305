"""What a worker says about one operation in `response.diagnostics` (profile section 11)."""

from __future__ import annotations

import msgspec

from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import Event

__all__ = ["CacheUse", "Diagnostics", "EnginePressure", "read_diagnostics"]


class EnginePressure(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the engine was."""

    running: int
    waiting: int
    capacity: int = 0
    """Requests that it runs at once; 0 where it does not say."""
    kv_usage: float | None = None
    """Used part of its key-value cache, 0 to 1."""


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the prompt cache spared."""

    cached_tokens: int


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """One `response.diagnostics`; None is what it does not say. An answer may have several."""

    queue_delay_ms: float | None = None
    """Milliseconds in the worker before the engine had the request."""
    transport: str | None = None
    engine: str | None = None
    pressure: EnginePressure | None = None
    retry_reason: str | None = None
    cache: CacheUse | None = None


class _StrictPressure(EnginePressure, frozen=True, forbid_unknown_fields=True):
    pass


class _StrictCache(CacheUse, frozen=True, forbid_unknown_fields=True):
    pass


class _StrictDiagnostics(Diagnostics, frozen=True, forbid_unknown_fields=True):
    pressure: _StrictPressure | None = None
    cache: _StrictCache | None = None


def read_diagnostics(event: Event, *, strict: bool = False) -> Diagnostics:
    """Read the members of a `response.diagnostics` event.

    Args:
        strict: take only what workers of this implementation say; members that are not known are
            ignored otherwise, as the profile wants it.

    Raises:
        ProfileError: `adapter_runtime_error`: a member has the wrong type, or `strict` and one is
            not known.
    """
    said = event.diagnostics or {}
    try:
        if strict:
            msgspec.convert(said, _StrictDiagnostics)
        return msgspec.convert(said, Diagnostics)
    except msgspec.ValidationError as error:
        raise ProfileError(
            ErrorCode.ADAPTER_RUNTIME_ERROR, f"The worker sent malformed diagnostics: {error}."
        ) from None
