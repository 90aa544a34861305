"""Chat completions: from an HTTP body to the envelope for a worker."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from gateway.errors import ApiError, from_profile
from gateway.protocols.chat import ChatRequest
from gateway.protocols.errors import InvalidRequest
from gateway.protocols.json import DEFAULT_MAX_DEPTH, parse_object
from gateway.protocols.validation import checked
from gateway.translate.replay import ReplayStream
from gateway.translate.streams import EventStream
from gateway.translate.synthesis import Identity, SynthesisStream
from nnrp_backend.profile.envelope import ChunkOptions, NnrpOptions, encode_envelope
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.normalize import normalize_chat
from nnrp_backend.profile.operations import CHAT

__all__ = ["ChatPlan", "ReasoningKey", "open_chat_stream", "plan_chat"]

ReasoningKey: TypeAlias = Literal["reasoning_content", "reasoning", "both"]


class ChatPlan:
    """A checked chat request and what the gateway must know of it.

    The body is kept as the client's own bytes. The parsed tree is not kept: it would double the
    memory of a request with images for as long as it may be retried.

    Attributes:
        model: the model asked for.
        stream: whether the answer is to be streamed.
        include_usage: the stream ends with a usage chunk.
        continuous_usage: every chunk has usage.
        choices: how many answers were asked for (`n`).
        chunks: how chunks and answers should look.
    """

    __slots__ = (
        "_raw",
        "choices",
        "chunks",
        "continuous_usage",
        "include_usage",
        "model",
        "stream",
    )

    def __init__(self, raw: bytes, request: ChatRequest, reasoning: ReasoningKey) -> None:
        self._raw = raw
        self.model = request.model
        self.stream = request.stream is True
        options = request.stream_options if self.stream else None
        self.include_usage = options is not None and options.include_usage
        self.continuous_usage = self.include_usage and bool(
            options and options.continuous_usage_stats
        )
        self.choices = request.n or 1
        self.chunks = ChunkOptions(
            reasoning=reasoning,
            usage="null" if self.include_usage else "absent",
            terminal="brief",
        )

    def __repr__(self) -> str:
        kind = "streamed" if self.stream else "whole"
        return f"<ChatPlan {self.model} [{kind}, {self.choices} choices, {len(self._raw)} bytes]>"

    def payload(self, *, request_id: str, nnrp: NnrpOptions, ours: bool) -> bytes:
        """Return the envelope for one worker.

        Args:
            nnrp: what to ask of the worker; `openai_chunk` is filled in here.
            ours: the worker is this project's adapter, which normalises the body itself and
                understands the extensions: the client's bytes are spliced in as they are. For any
                other the body is normalised here, and the extensions are left out.

        Raises:
            ApiError: 400, for a body that only normalisation finds wrong.
        """
        if ours:
            body = self._raw
            nnrp = msgspec.structs.replace(nnrp, openai_chunk=self.chunks)
        else:
            body = self._normalised()
            nnrp = NnrpOptions(timeout_ms=nnrp.timeout_ms, diagnostics=nnrp.diagnostics)
        return encode_envelope(CHAT, body, request_id=request_id, nnrp=nnrp)

    def _normalised(self) -> bytes:
        try:
            return msgspec.json.encode(normalize_chat(msgspec.json.decode(self._raw)))
        except ProfileError as error:
            raise from_profile(error) from None
        except msgspec.DecodeError as error:
            # Such as 1e400, which the checking parser takes for infinity.
            message = f"The request body is not valid JSON: {error}."
            raise ApiError(400, message, code="json_invalid") from None


def plan_chat(
    raw: bytes,
    *,
    max_depth: int = DEFAULT_MAX_DEPTH,
    reasoning: ReasoningKey = "reasoning_content",
) -> ChatPlan:
    """Check the body of `POST /v1/chat/completions`.

    Raises:
        ApiError: 400 with `param` and `code`.
    """
    try:
        request = checked(ChatRequest, parse_object(raw, max_depth=max_depth))
    except InvalidRequest as error:
        raise ApiError(400, error.message, code=error.code, param=error.param) from None
    return ChatPlan(raw, request, reasoning)


def open_chat_stream(
    plan: ChatPlan, *, final_chunks: bool, completion_id: str, created: int
) -> EventStream:
    """Return the translator for one streamed answer.

    Args:
        final_chunks: the worker declares `openai_chunk.final`: its chunks are copied.
        completion_id, created: `id` and Unix time of the chunks, for workers that send none.
    """
    if final_chunks:
        return ReplayStream()
    return SynthesisStream(
        Identity(completion_id, created, plan.model),
        choices=plan.choices,
        options=plan.chunks,
        include_usage=plan.include_usage,
        continuous_usage=plan.continuous_usage,
    )
