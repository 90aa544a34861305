"""Round trips of fixed metadata, and its comparison with the published codecs."""

import struct
from typing import Any

from hypothesis import strategies as st

from nnrp_backend.protocol.layout import Layout

_RANGES = {
    "B": (0, 0xFF),
    "H": (0, 0xFFFF),
    "h": (-0x8000, 0x7FFF),
    "I": (0, 0xFFFFFFFF),
    "Q": (0, 0xFFFFFFFFFFFFFFFF),
}


def _codes(layout: Layout[Any]) -> list[str]:
    """Spell a struct format out: ``8I`` is eight codes."""
    codes, count = [], ""
    for code in layout.struct.format[1:]:
        if code.isdigit():
            count += code
        else:
            codes += [code] * int(count or 1)
            count = ""
    return codes


def messages(layout: Layout[Any], **fixed: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Generate every message that the rules of ``layout`` allow; ``fixed`` narrows fields."""
    kind = layout.message
    strategies = []
    for index, (name, code) in enumerate(zip(layout.fields, _codes(layout), strict=True)):
        low, high = _RANGES[code]
        masks = dict(layout.masks)
        if name in fixed:
            strategies.append(fixed[name])
        elif index in layout.zero:
            strategies.append(st.just(0))
        elif index in masks:
            allowed = ~masks[index]
            strategies.append(
                st.integers(0, allowed).map(lambda bits, allowed=allowed: bits & allowed)
            )
        elif index == layout.tail:
            strategies.append(st.integers(0, 40))
        elif index in layout.nonzero:
            strategies.append(st.integers(1, high))
        else:
            strategies.append(st.integers(low, high))
    return st.tuples(*strategies).map(kind._make)


def body_for(layout: Layout[Any], message: Any) -> bytes:
    """Return a body as long as the message says."""
    return b"" if layout.tail is None else b"b" * message[layout.tail]


def check_against_published(kind: type[Any], layout: Layout[Any], message: Any) -> None:
    """Let the published class read our bytes, compare every field, and pack them again."""
    packed = layout.pack(message)
    theirs = kind.unpack(packed)
    for name in kind.__dataclass_fields__:
        if name != "STRUCT":
            assert getattr(theirs, name) == getattr(message, name), name
    assert theirs.pack() == packed


def field_starts(layout: Layout[Any]) -> dict[str, int]:
    """Return where each field starts."""
    starts, position = {}, 0
    for name, code in zip(layout.fields, _codes(layout), strict=True):
        starts[name] = position
        position += struct.calcsize("<" + code)
    return starts
