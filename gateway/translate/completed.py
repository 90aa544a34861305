"""The body of `response.completed`, as far as the gateway looks into it."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["CompletedBody", "CompletedChoice", "read_body"]


class CompletedChoice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    message: dict[str, Any] | None = None


class CompletedBody(msgspec.Struct):
    """A whole `chat.completion`, or the brief form that ends a stream; stubs have neither."""

    choices: list[CompletedChoice] = []
    usage: msgspec.Raw = msgspec.Raw()


class _UsageOnly(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()


_decode_body = msgspec.json.Decoder(CompletedBody).decode
_decode_usage = msgspec.json.Decoder(_UsageOnly).decode


def read_body(body: msgspec.Raw | bytes) -> CompletedBody:
    """Read what a stream needs for its end; what cannot be read is as good as absent."""
    if not body:
        return CompletedBody()
    try:
        return _decode_body(body)
    except msgspec.MsgspecError:
        return CompletedBody()


def usage_of(body: msgspec.Raw | bytes) -> msgspec.Raw:
    """Return the bytes of a body's usage object, empty where it has none."""
    if not body:
        return msgspec.Raw()
    try:
        return _decode_usage(body).usage
    except msgspec.MsgspecError:
        return msgspec.Raw()
