"""An engine's chat chunks become profile events, and each chunk becomes final on the way.

*Final* means that the gateway may copy the chunk to any OpenAI client: the rules are in
`finality`, `choices`, `tool_calls.ToolCallStream` and below. Every upstream chunk rides as
`openai_chunk` on exactly one event, and one that makes no event rides on an empty text delta, so
that whoever replays the chunks gets each once and in order.

Four rules add or remove chunks; an added one rides on an event of its own, like the rest:

- A choice that would appear before a lower one is preceded by a role chunk of the lower one,
  since clients keep choices in a list and append.
- A finish reason in the same chunk as content is split off. vLLM joins them, OpenAI never does,
  and some clients drop such content.
- Usage that came only on chunks with choices gets its usage chunk, where the client asked for one.
- A usage chunk that the client did not ask for is taken out; its numbers stay in the terminal.
"""

from typing import Any, Final

import msgspec

from nnrp_backend.profile import events
from nnrp_backend.profile.choices import ChoiceStream
from nnrp_backend.profile.decoding import decode_answer, malformed
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.finality import drop_nulls, finish_usage
from nnrp_backend.profile.shapes import ChunkShapes

MAX_CHOICES: Final = 16_384
"""Highest `n` that vLLM accepts; an index past it is nonsense that must not cost memory."""

_OBJECT: Final = "chat.completion.chunk"
_OWN_MEMBERS: Final = frozenset({"id", "object", "created", "model", "choices", "usage"})

_encode: Final = msgspec.json.Encoder().encode


class ChatChunkMapper:
    """Map the chunks of one streamed chat to profile events.

    `feed` each chunk, then `finish`, then send `completed` as the terminal. When the engine
    fails, or `feed` or `finish` raises, send what `interrupted` returns and end with an error.

    Args:
        options: how the client wants its chunks.
        include_usage: the client asked for the usage chunk. The engine is always asked.
        continuous_usage: the client asked for usage on every chunk, too.
        request_id: names the completion where the engine does not.
    """

    def __init__(
        self,
        options: ChunkOptions | None = None,
        *,
        include_usage: bool = False,
        continuous_usage: bool = False,
        request_id: str = "",
    ) -> None:
        self._options = options or ChunkOptions()
        self._include_usage = include_usage
        self._continuous_usage = include_usage and continuous_usage
        self._request_id = request_id
        self._identity: dict[str, Any] = {}
        self._extras: dict[str, Any] = {}
        self._choices: list[ChoiceStream] = []
        self._call_ids: set[str] = set()
        self._usage: dict[str, Any] | None = None
        self._usage_chunk_due = False
        self._shapes = ChunkShapes()

    def __repr__(self) -> str:
        finished = sum(choice.finish_reason is not None for choice in self._choices)
        calls = sum(len(choice.calls) for choice in self._choices)
        return f"<ChatChunkMapper {finished}/{len(self._choices)} choices finished, {calls} calls>"

    @property
    def usage(self) -> dict[str, Any] | None:
        """The engine's last usage object, whether or not the client asked for it."""
        return self._usage

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events of one upstream chunk (a JSON object, no SSE framing), mostly one.

        Raises:
            ProfileError: the chunk is an error, or is no chat chunk.
        """
        event = self._shapes.event(chunk)
        return self._feed(chunk) if event is None else [event]

    def _feed(self, chunk: bytes) -> list[bytes]:
        tree, unfit = decode_answer(chunk)
        choices, reordered = _choices(tree)
        changed = unfit or reordered
        changed |= self._identify(tree)
        changed |= self._finish_usage(tree)
        changed |= drop_nulls(tree, keep=("usage",))
        self._extras |= {key: tree[key] for key in tree.keys() - _OWN_MEMBERS}
        if not choices:
            return self._without_choices(tree, _encode(tree) if changed else chunk)
        finishes = any(choice.get("finish_reason") for choice in choices)
        told = self._open_skipped(choices, tree)
        endings = []
        for choice in choices:
            stream = self._choices[choice["index"]]
            changed |= stream.finish(choice, self._options, self._identity["id"])
            ending = stream.split(choice)
            if ending is not None:
                endings.append(ending)
        told += self._tell(choices, _encode(tree) if changed or endings else chunk)
        if endings:
            told += self._tell(endings, self._own_chunk(endings, tree))
        if finishes:
            self._shapes.forget()
        elif not unfit and not self._usage_chunk_due:
            self._shapes.learn(chunk, tree, stream, changed=changed)
        return told

    def finish(self) -> list[bytes]:
        """Return the events still due before the terminal; call it when the engine has ended.

        Raises:
            ProfileError: the stream was cut: some choice never got its finish reason.
        """
        if not self._choices:
            raise ProfileError(ErrorCode.BACKEND_ERROR, "The engine's stream ended empty.")
        for stream in self._choices:
            if (error := stream.unfinished()) is not None:
                raise error
        told = [event for stream in self._choices for event in stream.end_calls()]
        if self._include_usage and self._usage_chunk_due:
            self._usage_chunk_due = False
            chunk = self._own_chunk([], {"usage": self._usage})
            told.append(events.usage(_encode(self._usage), chunk))
        return told

    def completed(self) -> bytes:
        """Return the terminal `response.completed`, with the full or the brief body.

        The full body is the `chat.completion` that the engine would have answered unstreamed. The
        brief one has no messages: `id`, `created`, `model`, the finish reasons and the usage.
        """
        body = {
            **self._identity,
            "object": "chat.completion",
            "choices": [stream.whole() for stream in self._choices],
        }
        if self._usage is not None:
            body["usage"] = self._usage
        if self._options.terminal == "full":
            body |= self._extras
        return events.completed(_encode(body))

    def interrupted(self, error: ProfileError) -> list[bytes]:
        """Return `response.tool_call.error` for every call that was open when `error` came."""
        broken = ProfileError(ErrorCode.TOOL_CALL_STREAM_INTERRUPTED, error.message)
        return [
            call.fail(broken)
            for stream in self._choices
            for call in stream.calls.values()
            if call.started and not call.ended
        ]

    def _identify(self, tree: dict[str, Any]) -> bool:
        """Make id, object, created and model the same in every chunk (OpenAI's streams are)."""
        if not self._identity:
            created = tree.get("created")
            self._identity = {
                "id": _text(tree.get("id")) or f"chatcmpl-{self._request_id}",
                "object": _OBJECT,
                "created": int(created) if isinstance(created, int | float) else 0,
                "model": self._options.model or _text(tree.get("model")),
            }
        changed = False
        for key, value in self._identity.items():
            if tree.get(key) != value:
                tree[key] = value
                changed = True
        fingerprint = self._extras.get("system_fingerprint")
        if fingerprint and tree.get("system_fingerprint") not in (None, fingerprint):
            tree["system_fingerprint"] = fingerprint
            changed = True
        return changed

    def _finish_usage(self, tree: dict[str, Any]) -> bool:
        usage = tree.get("usage")
        if isinstance(usage, dict):
            changed = finish_usage(usage)
            self._usage = usage
            self._usage_chunk_due = bool(tree["choices"])
            if self._continuous_usage or not tree["choices"]:
                return changed
        if self._options.usage == "absent":
            return tree.pop("usage", tree) is not tree
        if usage is None and "usage" in tree:
            return False
        tree["usage"] = None
        return True

    def _without_choices(self, tree: dict[str, Any], chunk: bytes) -> list[bytes]:
        usage = tree.get("usage")
        if usage is None:
            return [events.text_delta(0, "", chunk)]
        return [events.usage(_encode(usage), chunk)] if self._include_usage else []

    def _open_skipped(self, choices: list[dict[str, Any]], tree: dict[str, Any]) -> list[bytes]:
        """Know all choices up to the highest here, and open those that are passed over."""
        told: list[bytes] = []
        here = {choice["index"] for choice in choices}
        for index in range(len(self._choices), choices[-1]["index"] + 1):
            stream = ChoiceStream(index, self._call_ids, assemble=self._options.terminal == "full")
            self._choices.append(stream)
            if index not in here:
                opening = {"index": index, "delta": {"role": "assistant", "content": ""}}
                stream.finish(opening, self._options, self._identity["id"])
                told += self._tell([opening], self._own_chunk([opening], tree))
        return told

    def _tell(self, choices: list[dict[str, Any]], chunk: bytes) -> list[bytes]:
        told = [
            event for choice in choices for event in self._choices[choice["index"]].take(choice)
        ]
        if not told:
            return [events.text_delta(0, "", chunk)]
        told[0] = events.attach_chunk(told[0], chunk)
        return told

    def _own_chunk(self, choices: list[dict[str, Any]], like: dict[str, Any]) -> bytes:
        """Encode a chunk that the engine did not send, as it would have beside `like`."""
        tree = dict(self._identity)
        if "system_fingerprint" in like:
            tree["system_fingerprint"] = like["system_fingerprint"]
        tree["choices"] = choices
        if "usage" in like:
            tree["usage"] = like["usage"]
        return _encode(tree)


def _choices(tree: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Return the chunk's choices in the order of their index, and whether that is a change."""
    choices = tree.get("choices")
    if choices is None:
        choices = tree["choices"] = []
        return choices, True
    if not isinstance(choices, list):
        raise malformed()
    changed, last = False, 0
    for choice in choices:
        if not isinstance(choice, dict):
            raise malformed()
        index = choice.get("index")
        if type(index) is not int:
            index = choice["index"] = 0
            changed = True
        if not 0 <= index < MAX_CHOICES:
            raise malformed()
        changed, last = changed or index < last, index
    if changed:
        choices.sort(key=lambda choice: choice["index"])
    return choices, changed


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
