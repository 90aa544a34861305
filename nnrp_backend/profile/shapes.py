"""The fast path of `chunks`: chunks that differ from an earlier one in one text only.

All text chunks of a stream are the same but for the text, and so are all chunks of one call's
arguments. When one of them has gone the long way, its bytes before and after the text are
remembered, and with them the event that came of it, cut at the same place. A later chunk with
these ends and one JSON string between them needs no parsing: its event is the remembered pieces
joined by the string's own bytes.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from nnrp_backend.profile import events
from nnrp_backend.profile.choices import ChoiceStream

MAX_SHAPES: Final = 64
"""Enough for text and reasoning of 32 choices. A stream that outgrows it varies in some other
member, and gains nothing here."""

_TEXT_MEMBER: Final = re.compile(rb'"(?:content|reasoning|reasoning_content|arguments)":(?=")')
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')

_CHUNK_KEYS: Final = frozenset(
    {"id", "object", "created", "model", "system_fingerprint", "service_tier", "choices", "usage"}
)

_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode

# Stands for the text in an event that is to be cut there.
_MARK: Final = "\0text\0"
_ENCODED_MARK: Final = _encode(_MARK)


class _Shape(NamedTuple):
    suffix: bytes
    pieces: list[bytes]
    gather: tuple[Callable[[str], None], ...]


class ChunkShapes:
    """The shapes of one stream's text chunks."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}
        self._lengths: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._shapes)

    def event(self, chunk: bytes) -> bytes | None:
        """Return the event of a chunk of known shape, and gather its text; None for others."""
        for length in self._lengths:
            shape = self._shapes.get(chunk[:length])
            if shape is not None and chunk.endswith(shape.suffix):
                break
        else:
            return None
        quoted = chunk[length : len(chunk) - len(shape.suffix)]
        # The decoder would pass space around the string, and a line end is space.
        if quoted[:1] != b'"' or quoted[-1:] != b'"':
            return None
        try:
            text = _decode_text(quoted)
        except msgspec.DecodeError:
            return None
        for gather in shape.gather:
            gather(text)
        return quoted.join(shape.pieces)

    def learn(
        self, chunk: bytes, tree: dict[str, Any], stream: ChoiceStream, *, changed: bool
    ) -> None:
        """Remember the shape of a chunk that has one text; all others are let pass.

        All members are checked against closed lists. So the one place in the bytes that looks
        like a text member is that text: inside a string its quotes would be escaped.

        Args:
            chunk: as the engine sent it, with neither a finish reason nor usage.
            tree: the final chunk, which is spoilt here.
            stream: the choice it is of.
            changed: whether the final chunk is any other than `chunk`.
        """
        choices = tree["choices"]
        if len(self._shapes) >= MAX_SHAPES or len(choices) != 1 or choices[0]["logprobs"]:
            return
        if not tree.keys() <= _CHUNK_KEYS or _ENCODED_MARK in chunk:
            return
        places = list(_TEXT_MEMBER.finditer(chunk))
        string = _STRING.match(chunk, places[0].end()) if len(places) == 1 else None
        marked = stream.mark_text(choices[0], _MARK) if string is not None else None
        if string is None or marked is None:
            return
        event, gather = marked
        prefix, suffix = chunk[: string.start()], chunk[string.end() :]
        final = _encode(tree) if changed else prefix + _ENCODED_MARK + suffix
        pieces = events.attach_chunk(event, final).split(_ENCODED_MARK)
        self._shapes[prefix] = _Shape(suffix, pieces, gather)
        self._lengths = tuple({len(known): None for known in self._shapes})

    def forget(self) -> None:
        """Forget all shapes: a call or choice has ended, and its text makes no events any more."""
        self._shapes.clear()
        self._lengths = ()
