"""Upstream chat streams, as OpenAI's API writes them, for tests of what comes after an engine."""

from __future__ import annotations

import json
from typing import Any

from nnrp_backend.profile.chunks import ChatChunkMapper
from nnrp_backend.profile.envelope import ChunkOptions

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
USAGE = {"prompt_tokens": 5, "total_tokens": 9, "completion_tokens": 4}


def encode(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()


def chunk(
    delta: dict[str, Any], *, index: int = 0, reason: str | None = None, **more: Any
) -> bytes:
    """One chunk with one choice; `more` goes beside `choices`, `logprobs` into the choice."""
    choice = {
        "index": index,
        "delta": delta,
        "logprobs": more.pop("logprobs", None),
        "finish_reason": reason,
    }
    return encode({**HEAD, "choices": [choice], **more})


def role(index: int = 0, content: str | None = "") -> bytes:
    return chunk({"role": "assistant", "content": content}, index=index)


def text(*words: str, index: int = 0) -> list[bytes]:
    return [chunk({"content": word}, index=index) for word in words]


def reasoning(*words: str) -> list[bytes]:
    return [chunk({"reasoning_content": word}) for word in words]


def call(position: int, call_id: str, name: str, *pieces: str, index: int = 0) -> list[bytes]:
    """A tool call: the chunk that opens it, and its arguments piece by piece."""
    opening = {
        "index": position,
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
    pieces_of = [{"index": position, "function": {"arguments": piece}} for piece in pieces]
    return [chunk({"tool_calls": [entry]}, index=index) for entry in (opening, *pieces_of)]


def finish(reason: str = "stop", index: int = 0) -> bytes:
    return chunk({}, index=index, reason=reason)


def usage() -> bytes:
    return encode({**HEAD, "choices": [], "usage": USAGE})


def logprobs(*tokens: str) -> dict[str, Any]:
    entries = [
        {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}
        for token in tokens
    ]
    return {"content": entries, "refusal": None}


def worker_events(
    chunks: list[bytes],
    *,
    options: ChunkOptions | None = None,
    include_usage: bool = False,
    continuous_usage: bool = False,
) -> tuple[list[bytes], bytes]:
    """What this project's worker sends for these chunks: its events and its terminal event."""
    mapper = ChatChunkMapper(
        options or ChunkOptions(usage="null" if include_usage else "absent"),
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        request_id="r",
    )
    events = [event for upstream in chunks for event in mapper.feed(upstream)]
    events += mapper.finish()
    return events, mapper.completed()
