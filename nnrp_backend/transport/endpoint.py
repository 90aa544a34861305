"""Where a worker listens: the address part of `tcp://`, `tls://`, `unix://`, `nnrp://`, `nnrps://`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

__all__ = ["DEFAULT_PORT", "Endpoint", "EndpointError", "Scheme"]

#: The port of `nnrp://host` and `nnrps://host`, which need not name one.
DEFAULT_PORT: Final = 4510


class Scheme(StrEnum):
    """How the bytes travel."""

    TCP = "tcp"
    TLS = "tls"
    UNIX = "unix"


#: The protocol's own schemes name a service; here they mean the transport it runs on by default.
_ALIASES: Final = {"nnrp": Scheme.TCP, "nnrps": Scheme.TLS}


class EndpointError(ValueError):
    """Raise for an address that names no endpoint."""

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(f"invalid endpoint {text!r}: {reason}")


class Endpoint(NamedTuple):
    """One parsed address. `host` and `port` are set for tcp and tls, `path` for unix."""

    scheme: Scheme
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read `tcp://host:port`, `tls://host:port`, `unix:///path`, `nnrp://host[:port]` or
        `nnrps://host[:port]`. An IPv6 host stands in brackets; port 0 means any free port.

        Raises:
            EndpointError: the text is none of these.
        """
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise EndpointError(text, str(error)) from None
        if parts.query or parts.fragment or parts.username is not None:
            raise EndpointError(text, "only a host and port, or a path, is allowed")
        if parts.scheme == Scheme.UNIX:
            return cls._unix(text, parts.netloc, parts.path)
        scheme = _ALIASES.get(parts.scheme) or _transport(text, parts.scheme)
        if parts.path not in ("", "/"):
            raise EndpointError(text, f"{parts.scheme}:// takes no path")
        if not parts.hostname:
            raise EndpointError(text, "no host")
        if port is None:
            if parts.scheme not in _ALIASES:
                raise EndpointError(text, "no port")
            port = DEFAULT_PORT
        return cls(scheme, parts.hostname, port)

    @classmethod
    def _unix(cls, text: str, netloc: str, path: str) -> Endpoint:
        if netloc:
            raise EndpointError(text, "the path must be absolute (three slashes)")
        if path in ("", "/"):
            raise EndpointError(text, "no path")
        return cls(Scheme.UNIX, path=path)

    def __str__(self) -> str:
        if self.scheme is Scheme.UNIX:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def _transport(text: str, scheme: str) -> Scheme:
    try:
        return Scheme(scheme)
    except ValueError:
        raise EndpointError(text, f"unknown scheme {scheme!r}") from None
