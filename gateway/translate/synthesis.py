"""Chat chunks for a worker that does not make them final: rebuilt from its profile events.

The profile says that no consumer may need `openai_chunk`, and foreign workers send it unfinished,
on several events of one upstream chunk, or never. So everything here goes through the same
`ChatChunkMapper` that makes the chunks of this project's own workers final: an event's chunk as it
came, or, for an event without one, the chunk that OpenAI would have sent.

From events alone this cannot be known, for no event of the profile carries it: reasoning, refusals,
log probabilities, usage along the way, `stop_reason`, `system_fingerprint`, the engine's own `id`
and `created`, which deltas shared a chunk, and when one choice of several finished. All of it is
there where the events bring chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from gateway.errors import from_profile
from gateway.translate.completed import CompletedChoice, read_body
from gateway.translate.streams import ChatStream, sse
from gateway.translate.usage import chat_usage, read_usage
from nnrp_backend.profile.chunks import MAX_CHOICES, ChatChunkMapper
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import Event, EventType, decode_event, peek
from nnrp_backend.profile.tool_calls import ToolCallReader

__all__ = ["Identity", "SynthesisStream"]

_encode: Final = msgspec.json.Encoder().encode

#: Something that an event says, and that its upstream chunk says too.
_Part = tuple[Any, ...]

_CALL_ENDS: Final = frozenset({EventType.TOOL_COMPLETED, EventType.TOOL_ERROR})


class Identity(NamedTuple):
    """What all chunks of a stream have in common, where the worker does not say."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str


class _Call(NamedTuple):
    """Where a tool call stands in the chunks."""

    choice: int
    position: int


class _Choice(msgspec.Struct):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHOICES)] = 0
    delta: dict[str, Any] = {}
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """What is looked at in a chunk before the mapper judges it."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class SynthesisStream(ChatStream):
    """Rebuild a stream of chat chunks.

    Args:
        identity: `id`, `created` and `model`, unless the worker's first chunk has others.
        choices: how many the request asked for; all are opened before any content.
        options: how the chunks should look.
        include_usage, continuous_usage: what the request's `stream_options` ask for.
    """

    __slots__ = (
        "_calls",
        "_choices",
        "_finished",
        "_identity",
        "_last_chunk",
        "_mapper",
        "_opened",
        "_reader",
        "_said",
        "_unexplained",
        "_usage",
    )

    def __init__(
        self,
        identity: Identity,
        *,
        choices: int,
        options: ChunkOptions,
        include_usage: bool,
        continuous_usage: bool = False,
    ) -> None:
        super().__init__()
        self._identity = identity
        self._choices = choices
        self._mapper = ChatChunkMapper(
            options,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            request_id=identity.id,
        )
        self._reader = ToolCallReader()
        self._opened: set[int] = set()
        self._finished: set[int] = set()
        #: Choices with content: what `response.completed` repeats of those is not news.
        self._said: set[int] = set()
        self._calls: dict[str, _Call] = {}
        #: From a usage event; empty once a chunk has brought it, which the mapper then sees to.
        self._usage: bytes | None = None
        self._last_chunk = b""
        #: What the last chunk says that no event has said yet.
        self._unexplained: Counter[_Part] = Counter()

    def feed(self, body: bytes) -> bytes:
        if self._ended:
            return b""
        try:
            return b"".join(map(sse, self._translate(decode_event(body))))
        except ProfileError as error:
            raise from_profile(error) from None

    def _translate(self, event: Event) -> list[bytes]:
        chunk = bytes(event.openai_chunk)
        if event.type == EventType.TOOL_STARTED:
            self._place_call(event)
        repeated = chunk in (b"", self._last_chunk)
        part = _part_of(event)
        if repeated and self._unexplained[part] > 0:
            self._unexplained[part] -= 1
            return []
        if chunk and not (repeated and event.type in _CALL_ENDS):
            return self._from_chunk(chunk, part)
        return [out for told in self._reader.read(event) for out in self._from_event(told)]

    # --- events that bring a chunk ----------------------------------------------------------------

    def _from_chunk(self, chunk: bytes, part: _Part) -> list[bytes]:
        tree = _read_chunk(chunk)
        self._last_chunk = chunk
        self._unexplained = Counter(_parts_of(tree.choices))
        self._unexplained[part] -= 1
        if tree.choices and not self._opened:
            self._identity = Identity(
                tree.id or self._identity.id,
                tree.created or self._identity.created,
                tree.model or self._identity.model,
            )
        out: list[bytes] = []
        for choice in tree.choices:
            if choice.delta.get("role"):
                self._opened.add(choice.index)
            out += self._open(range(choice.index + 1))
            if any(value for key, value in choice.delta.items() if key != "role"):
                self._said.add(choice.index)
            if choice.finish_reason is not None:
                self._finished.add(choice.index)
        if tree.usage and not tree.choices:
            self._usage = b""
        return out + self._through(chunk)

    # --- events that bring none -------------------------------------------------------------------

    def _from_event(self, event: Event) -> list[bytes]:
        match event.type:
            case EventType.TEXT_DELTA if event.delta:
                return self._say(event.index, {"content": event.delta})
            case EventType.TOOL_STARTED:
                return self._start_call(event)
            case EventType.TOOL_DELTA:
                return self._extend_call(event)
            case EventType.TOOL_COMPLETED if event.call_id not in self._calls:
                # A worker that tells of calls only when they are whole.
                event.arguments_delta = event.arguments
                return self._start_call(event) + self._extend_call(event)
            case EventType.USAGE if self._usage != b"":
                self._usage = bytes(event.usage)
        return []

    def _place_call(self, event: Event) -> _Call:
        """Give a call its place: `index` of foreign workers may count over all choices."""
        call = self._calls.get(event.call_id)
        if call is None:
            choice = event.choice_index
            position = sum(other.choice == choice for other in self._calls.values())
            call = self._calls[event.call_id] = _Call(choice, position)
        return call

    def _start_call(self, event: Event) -> list[bytes]:
        choice, position = self._place_call(event)
        function = {"name": event.name, "arguments": ""}
        call = {"index": position, "id": event.call_id, "type": "function", "function": function}
        return self._say(choice, {"tool_calls": [call]}, first=None)

    def _extend_call(self, event: Event) -> list[bytes]:
        call = self._calls.get(event.call_id)
        if call is None:
            raise ProfileError(
                ErrorCode.ADAPTER_RUNTIME_ERROR, "The worker extended a tool call it never started."
            )
        if not event.arguments_delta:
            return []
        delta = {"index": call.position, "function": {"arguments": event.arguments_delta}}
        return self._say(call.choice, {"tool_calls": [delta]})

    def _say(self, index: int, delta: dict[str, Any], first: str | None = "") -> list[bytes]:
        """Send content of a choice.

        Args:
            first: `content` of the role chunk, if this opens the choice: OpenAI writes null where
                an answer begins with a call.
        """
        out = self._open(range(self._choices), {index: first})
        self._said.add(index)
        return out + self._through(self._chunk(index, delta))

    def _open(
        self, indices: Iterable[int], content: dict[int, str | None] | None = None
    ) -> list[bytes]:
        """Send the role chunks that are missing."""
        out: list[bytes] = []
        for index in indices:
            if index not in self._opened:
                self._opened.add(index)
                first = (content or {}).get(index, "")
                out += self._through(self._chunk(index, {"role": "assistant", "content": first}))
        return out

    # --- the end ----------------------------------------------------------------------------------

    def _complete(self, event: Event | None) -> bytes:
        body = read_body(event.body if event is not None else b"")
        ends = {choice.index: choice for choice in body.choices}
        out: list[bytes] = []
        for index in sorted({*range(self._choices), *self._opened, *ends}):
            if index not in self._finished:
                out += self._finish(ends.get(index) or CompletedChoice(index))
        usage = body.usage if self._usage is None else self._usage
        if counts := chat_usage(usage):
            out += self._through(self._usage_chunk(counts))
        out += _chunks(self._mapper.finish())
        self.usage = read_usage(_encode(self._mapper.usage)) if self._mapper.usage else None
        return b"".join(map(sse, out))

    def _finish(self, end: CompletedChoice) -> list[bytes]:
        out: list[bytes] = []
        if end.index not in self._said and end.message:
            out += self._tell_message(end.index, end.message)
        out += self._open(range(self._choices))
        called = any(call.choice == end.index for call in self._calls.values())
        reason = end.finish_reason or ("tool_calls" if called else "stop")
        return out + self._through(self._chunk(end.index, {}, reason))

    def _tell_message(self, index: int, message: dict[str, Any]) -> list[bytes]:
        """Send the whole message of a choice of which no event has told anything."""
        out: list[bytes] = []
        for key in ("reasoning_content", "reasoning", "content"):
            if text := _text(message.get(key)):
                out += self._say(index, {key: text})
        calls = message.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if not isinstance(call, dict):
                continue
            self._calls[f"{index}.{position}"] = _Call(index, position)
            out += self._say(index, {"tool_calls": [{**call, "index": position}]}, first=None)
        return out

    # --- chunks -----------------------------------------------------------------------------------

    def _through(self, chunk: bytes) -> list[bytes]:
        return _chunks(self._mapper.feed(chunk))

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _encode({**self._common(), "choices": [choice]})

    def _usage_chunk(self, usage: bytes) -> bytes:
        return _encode({**self._common(), "choices": [], "usage": msgspec.Raw(usage)})

    def _common(self) -> dict[str, Any]:
        identity = self._identity
        return {
            "id": identity.id,
            "object": "chat.completion.chunk",
            "created": identity.created,
            "model": identity.model,
        }


def _read_chunk(chunk: bytes) -> _Chunk:
    try:
        return _decode(chunk)
    except msgspec.MsgspecError:
        return _Chunk()  # whether it can be saved, the mapper knows


def _chunks(events: Sequence[bytes]) -> list[bytes]:
    """Take the final chunks out of the mapper's events."""
    return [bytes(chunk) for event in events if (chunk := peek(event).openai_chunk)]


def _part_of(event: Event) -> _Part:
    match event.type:
        case EventType.TEXT_DELTA if event.delta:
            return ("text", event.index, event.delta)
        case EventType.TOOL_STARTED:
            return ("call", event.name)
        case EventType.TOOL_DELTA:
            return ("arguments", event.arguments_delta)
    return ()


def _parts_of(choices: Iterable[_Choice]) -> Iterable[_Part]:
    """Yield what a chunk says that events say too."""
    for choice in choices:
        if content := _text(choice.delta.get("content")):
            yield ("text", choice.index, content)
        calls = choice.delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                if name := _text(function.get("name")):
                    yield ("call", name)
                if arguments := _text(function.get("arguments")):
                    yield ("arguments", arguments)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
