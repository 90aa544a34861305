"""From an envelope to what the engine gets and what the answer has to look like."""

import re
from typing import Any, Final, NamedTuple
from uuid import uuid4

from nnrp_backend.adapter.engine import EngineRequest
from nnrp_backend.profile.chunks import ChatChunkMapper
from nnrp_backend.profile.envelope import ChunkOptions, Envelope, NnrpOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.normalize import normalize_chat
from nnrp_backend.protocol.constants import PriorityClass
from nnrp_backend.protocol.session import Trace

ENGINE_PRIORITIES: Final[dict[int, int]] = {
    PriorityClass.INTERACTIVE: -1,
    PriorityClass.BALANCED: 0,
    PriorityClass.BACKGROUND: 1,
}
"""NNRP's classes as engine priorities: lower runs first, and 0 is what nobody asked for."""

# W3C Trace Context, section 3.2: ids of zeros are none, and only a later version may have more.
_IDS: Final = "-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT: Final = re.compile(f"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(-[!-~]*)?")


class ChatWork(NamedTuple):
    """One chat operation, ready for the engine."""

    request: EngineRequest
    correlation_id: str
    """The client's own id: for logs and for naming the completion, never for the engine."""
    nnrp: NnrpOptions
    include_usage: bool
    """The client asked for the usage chunk; the engine is always asked."""
    continuous_usage: bool

    @property
    def chunk_options(self) -> ChunkOptions:
        """How the client wants chunks and completions to look."""
        return self.nnrp.openai_chunk or ChunkOptions()

    def mapper(self) -> ChatChunkMapper:
        """Make the mapper from the engine's chunks to profile events."""
        return ChatChunkMapper(
            self.chunk_options,
            include_usage=self.include_usage,
            continuous_usage=self.continuous_usage,
            request_id=self.request.id,
        )


def prepare_chat(envelope: Envelope, *, priority_class: int, trace: Trace | None) -> ChatWork:
    """Turn a decoded chat envelope into work for an engine.

    Raises:
        ProfileError: the body asks for what no engine can do.
    """
    body = normalize_chat(envelope.body)
    # A client that could choose the engine's id could abort another client's request with it.
    body.pop("request_id", None)
    stream = _flag(body, "stream", "stream")
    options = body.pop("stream_options", {})
    if not isinstance(options, dict):
        raise _invalid("stream_options", "an object")
    include_usage = _flag(options, "include_usage", "stream_options.include_usage")
    continuous = _flag(options, "continuous_usage_stats", "stream_options.continuous_usage_stats")
    if stream:
        body["stream_options"] = {**options, "include_usage": True}
    request = EngineRequest(
        id=uuid4().hex,
        operation=envelope.operation,
        body=body,
        stream=stream,
        priority=ENGINE_PRIORITIES.get(priority_class, 0),
        traceparent=_well_formed(envelope.nnrp.traceparent) or traceparent(trace),
    )
    return ChatWork(request, envelope.request_id, envelope.nnrp, include_usage, continuous)


def traceparent(trace: Trace | None) -> str | None:
    """Write a TRACE_CONTEXT as a W3C traceparent, as the public adapter does.

    The wire has the low 64 bits of a trace id only; both ids have to be there.
    """
    if trace is None or not trace.trace_id or not trace.span_id:
        return None
    return f"00-{0:016x}{trace.trace_id:016x}-{trace.span_id:016x}-{trace.sampled:02x}"


def _well_formed(traceparent: str | None) -> str | None:
    """Return a traceparent that tracers take. Others are ignored, as the standard wants it."""
    return traceparent if traceparent and _TRACEPARENT.fullmatch(traceparent) else None


def _flag(container: dict[str, Any], key: str, param: str) -> bool:
    value = container.get(key)
    if value is not None and not isinstance(value, bool):
        raise _invalid(param, "true or false")
    return bool(value)


def _invalid(param: str, expected: str) -> ProfileError:
    return ProfileError(ErrorCode.INVALID_BODY, f"{param} must be {expected}.", param=param)
