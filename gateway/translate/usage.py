"""Token counts, whichever way a worker names them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["Usage", "chat_usage", "read_usage"]


class Usage(NamedTuple):
    """What a request cost, for metrics and logs."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct, omit_defaults=True):
    """The profile's text says `input_tokens`, chat says `prompt_tokens`; workers say either."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


_decode = msgspec.json.Decoder(_Counts).decode


def read_usage(usage: msgspec.Raw | bytes) -> Usage | None:
    """Return the counts of a usage object, None where there are none to read."""
    counts = _counts(usage)
    if counts is None:
        return None
    details = counts.prompt_tokens_details or counts.input_tokens_details
    return Usage(
        counts.prompt_tokens or counts.input_tokens or 0,
        counts.completion_tokens or counts.output_tokens or 0,
        (details.cached_tokens or 0) if details is not None else 0,
    )


def chat_usage(usage: msgspec.Raw | bytes) -> bytes | None:
    """Return a usage object as chat names its members; as it is when it does already."""
    counts = _counts(usage)
    if counts is None:
        return None
    if counts.prompt_tokens is not None and counts.completion_tokens is not None:
        return bytes(usage)
    prompt = counts.prompt_tokens or counts.input_tokens or 0
    completion = counts.completion_tokens or counts.output_tokens or 0
    return msgspec.json.encode(
        _Counts(
            prompt_tokens=prompt,
            total_tokens=counts.total_tokens or prompt + completion,
            completion_tokens=completion,
            prompt_tokens_details=counts.prompt_tokens_details or counts.input_tokens_details,
        )
    )


def _counts(usage: msgspec.Raw | bytes) -> _Counts | None:
    if not usage:
        return None
    try:
        return _decode(usage)
    except msgspec.MsgspecError:
        return None
