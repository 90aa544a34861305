"""The upstream side of the sim engine's answers: OpenAI chat chunks and completions as JSON.

Everything that does not change within a stream is encoded once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from nnrp_backend.adapter.sim.answers import Kind
from nnrp_backend.adapter.sim.generation import Generation, Piece
from nnrp_backend.adapter.sim.logprobs import token_logprobs

encode = msgspec.json.encode


class Identity(NamedTuple):
    """What all chunks of one answer have in common."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str


class LogprobOptions(NamedTuple):
    """Which log probabilities the request asked for."""

    wanted: bool
    top: int


class ChunkWriter:
    """Write the chunks of one stream, for any number of choices.

    Args:
        counts: the usage so far, where every chunk shall carry it
            (`stream_options.continuous_usage_stats`).
    """

    __slots__ = ("_counts", "_heads", "_identity", "_logprobs", "_prefix")

    def __init__(
        self,
        identity: Identity,
        choices: int,
        logprobs: LogprobOptions,
        counts: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._identity = identity
        self._logprobs = logprobs
        self._counts = counts
        common = encode(
            {
                "id": identity.id,
                "object": "chat.completion.chunk",
                "created": identity.created,
                "model": identity.model,
            }
        )
        self._prefix = common[:-1] + b',"choices":['
        self._heads = [self._prefix + b'{"index":%d,"delta":' % index for index in range(choices)]

    def role(self, index: int, *, calls: bool) -> bytes:
        """Open a choice. `calls`: it has no text, only a tool call."""
        content = b"null" if calls else b'""'
        return self._delta(index, b'{"role":"assistant","content":%b}' % content)

    def piece(self, index: int, piece: Piece) -> bytes:
        """Write one piece of a choice."""
        kind, text, tokens = piece
        if kind is Kind.TEXT:
            delta = b'{"content":%b}' % encode(text)
            if self._logprobs.wanted:
                logprobs = encode(token_logprobs(tokens, self._logprobs.top))
                return self._delta(index, delta, logprobs=logprobs)
            return self._delta(index, delta)
        if kind is Kind.REASONING:
            return self._delta(index, b'{"reasoning_content":%b}' % encode(text))
        return self._delta(index, b'{"tool_calls":[%b]}' % self._call(index, kind, text))

    def _call(self, index: int, kind: Kind, text: str) -> bytes:
        if kind is Kind.ARGUMENTS:
            return b'{"index":0,"function":{"arguments":%b}}' % encode(text)
        opening = {
            "index": 0,
            "id": call_id(self._identity.id, index),
            "type": "function",
            "function": {"name": text, "arguments": ""},
        }
        return encode(opening)

    def finish(self, index: int, reason: str) -> bytes:
        """Close a choice."""
        return self._delta(index, b"{}", reason=b'"%b"' % reason.encode())

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Write the last chunk: no choices, the token counts."""
        return self._prefix + b'],"usage":%b}' % encode(usage)

    def _delta(
        self, index: int, delta: bytes, *, logprobs: bytes = b"null", reason: bytes = b"null"
    ) -> bytes:
        counts = b"" if self._counts is None else b',"usage":%b' % encode(self._counts())
        return b'%b%b,"logprobs":%b,"finish_reason":%b}]%b}' % (
            self._heads[index],
            delta,
            logprobs,
            reason,
            counts,
        )


def completion(
    identity: Identity,
    choices: Sequence[tuple[Generation, Sequence[Piece]]],
    logprobs: LogprobOptions,
    usage: dict[str, Any],
) -> bytes:
    """Write a whole answer from the pieces of its choices."""
    body = {
        "id": identity.id,
        "object": "chat.completion",
        "created": identity.created,
        "model": identity.model,
        "choices": [
            {
                "index": index,
                "message": _message(identity, index, pieces),
                "logprobs": _all_logprobs(pieces, logprobs),
                "finish_reason": generation.finish_reason,
            }
            for index, (generation, pieces) in enumerate(choices)
        ],
        "usage": usage,
    }
    return encode(body)


def _message(identity: Identity, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
    parts = {kind: "".join(piece.text for piece in pieces if piece.kind is kind) for kind in Kind}
    name = parts[Kind.CALL]
    content = parts[Kind.TEXT]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not name else None,
        "refusal": None,
    }
    if reasoning := parts[Kind.REASONING]:
        message["reasoning_content"] = reasoning
    if name:
        function = {"name": name, "arguments": parts[Kind.ARGUMENTS]}
        call = {"id": call_id(identity.id, index), "type": "function", "function": function}
        message["tool_calls"] = [call]
    return message


def _all_logprobs(pieces: Sequence[Piece], logprobs: LogprobOptions) -> dict[str, Any] | None:
    if not logprobs.wanted:
        return None
    tokens = [token for piece in pieces if piece.kind is Kind.TEXT for token in piece.tokens]
    return token_logprobs(tuple(tokens), logprobs.top)


def call_id(answer_id: str, index: int) -> str:
    """Name the tool call of one choice; unique wherever the answer's id is."""
    return f"call_{answer_id.removeprefix('chatcmpl-')}_{index}"
