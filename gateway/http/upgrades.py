"""Requests that offer another protocol, answered as if they did not.

Java's HTTP client offers h2c with its first request on a connection, body and all. A server may
ignore that (RFC 9110, section 7.8), but the parser stops at the end of the head, as if what follows
were in the other protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["head_without_upgrade"]

_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})


def head_without_upgrade(
    method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """Return the head of a request as it would be without its offer to change the protocol."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode("ascii"))]
    for name, value in headers:
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in _OFFER)
        if value and name not in _OFFER:
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
