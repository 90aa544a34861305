"""The token list of CAPABILITY_NEGOTIATION and DEGRADE_PROFILE.

Entries are a ``u16`` length and ASCII text, sorted by their bytes and unique. The published runtime
drops a list that is not.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from nnrp_backend.protocol.constants import MAX_CAPABILITY_TOKEN_BYTES, MAX_CAPABILITY_TOKENS
from nnrp_backend.protocol.errors import RemoteProtocolError

__all__ = ["pack_tokens", "unpack_tokens"]

_LENGTH: Final = Struct("<H")


def pack_tokens(tokens: Iterable[str]) -> bytes:
    """Return the body for ``tokens``, in wire order."""
    entries = sorted(token.encode("ascii") for token in set(tokens))
    return b"".join(_LENGTH.pack(len(entry)) + entry for entry in entries)


def unpack_tokens(body: bytes, count: int) -> list[str]:
    """Return the tokens of a body, in wire order.

    Raises:
        RemoteProtocolError: the list is cut, too long, unsorted, not ASCII, or not of ``count``.
    """
    if count > MAX_CAPABILITY_TOKENS:
        raise RemoteProtocolError(f"{count} capability tokens, at most {MAX_CAPABILITY_TOKENS}")
    entries: list[bytes] = []
    position = 0
    while position < len(body):
        entry, position = _entry(body, position)
        if entries and entry <= entries[-1]:
            raise RemoteProtocolError("capability tokens are not sorted and unique")
        entries.append(entry)
        if len(entries) > count:
            break
    if len(entries) != count:
        raise RemoteProtocolError(f"the list does not have the {count} tokens it announces")
    return [entry.decode("ascii") for entry in entries]


def _entry(body: bytes, position: int) -> tuple[bytes, int]:
    start = position + _LENGTH.size
    if start > len(body):
        raise RemoteProtocolError("the capability list is cut")
    (length,) = _LENGTH.unpack_from(body, position)
    entry = body[start : start + length]
    if len(entry) != length:
        raise RemoteProtocolError("the capability list is cut")
    if not 0 < length <= MAX_CAPABILITY_TOKEN_BYTES or not entry.isascii():
        raise RemoteProtocolError("a capability token is empty, too long or not ASCII")
    return entry, start + length
