"""Open and accept sockets: tcp, tls and unix, tuned for small frames and fast notice of death.

The options (nodelay, keepalive, user timeout) are set on both ends, because the published runtime
sets none of them: without TCP_NODELAY, Nagle's algorithm and delayed acknowledgements hold
back-to-back small frames for 40 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl as ssl_module
import stat
from collections.abc import Callable
from typing import Final, TypeVar

from nnrp_backend.transport.endpoint import Endpoint, Scheme

__all__ = ["Listener", "dial", "listen", "tune"]

#: A dead peer on an idle connection is noticed after 10 + 3 * 5 seconds.
KEEPALIVE_IDLE_SECONDS: Final = 10
KEEPALIVE_INTERVAL_SECONDS: Final = 5
KEEPALIVE_PROBES: Final = 3
#: A dead peer that owes acknowledgements is noticed after this.
USER_TIMEOUT_MS: Final = 20_000
#: Connections that wait to be accepted; every gateway process of a fleet may reconnect at once.
BACKLOG: Final = 512

P = TypeVar("P", bound=asyncio.Protocol)


def tune(transport: asyncio.BaseTransport) -> None:
    """Set the TCP options on an open transport; do nothing for other kinds of socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        # Linux has all four, other systems only some.
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def dial(
    endpoint: Endpoint, factory: Callable[[], P], *, ssl: ssl_module.SSLContext | None = None
) -> P:
    """Connect, with TLS where the endpoint says so, and return the protocol `factory` made.

    Bound it with `asyncio.timeout`: name resolution, connect and TLS all happen in here.

    Raises:
        OSError: refused, unreachable, or the TLS handshake failed (`ssl.SSLError`).
        ValueError: a context was given for an endpoint without TLS.
    """
    check_tls(endpoint, ssl)
    loop = asyncio.get_running_loop()
    if endpoint.scheme is Scheme.UNIX:
        _, protocol = await loop.create_unix_connection(factory, endpoint.path)
    elif endpoint.scheme is Scheme.TLS:
        _, protocol = await loop.create_connection(
            factory, endpoint.host, endpoint.port, ssl=ssl or ssl_module.create_default_context()
        )
    else:
        _, protocol = await loop.create_connection(factory, endpoint.host, endpoint.port)
    return protocol


class Listener:
    """One listening socket; `endpoint` names what was really bound."""

    __slots__ = ("_inode", "_server", "endpoint")

    def __init__(self, endpoint: Endpoint, server: asyncio.Server) -> None:
        self.endpoint = endpoint
        self._server = server
        self._inode = _inode(endpoint.path) if endpoint.scheme is Scheme.UNIX else None

    def __repr__(self) -> str:
        return f"<Listener {self.endpoint}>"

    def close(self) -> None:
        """Stop accepting; connections already accepted live on. Removes a unix socket's file."""
        self._server.close()
        # Another process may have taken the path over since: only our own file goes.
        if self._inode is not None and _inode(self.endpoint.path) == self._inode:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.endpoint.path)


async def listen(
    endpoint: Endpoint,
    factory: Callable[[], asyncio.Protocol],
    *,
    ssl: ssl_module.SSLContext | None = None,
    handshake_timeout: float = 5.0,
) -> Listener:
    """Listen on `endpoint`, making one protocol for each connection.

    `handshake_timeout` bounds each TLS handshake; a silent peer in one holds up nobody else.

    Raises:
        OSError: the address cannot be bound; for a unix path also when somebody listens there.
        ValueError: TLS without a context, or a context without TLS.
    """
    check_tls(endpoint, ssl)
    loop = asyncio.get_running_loop()
    if endpoint.scheme is Scheme.UNIX:
        _refuse_live_path(endpoint.path)
        server = await loop.create_unix_server(factory, endpoint.path, backlog=BACKLOG)
        return Listener(endpoint, server)
    if endpoint.scheme is Scheme.TLS:
        if ssl is None:
            raise ValueError(f"{endpoint} needs an ssl.SSLContext with a certificate")
        server = await loop.create_server(
            factory,
            endpoint.host,
            endpoint.port,
            ssl=ssl,
            ssl_handshake_timeout=handshake_timeout,
            backlog=BACKLOG,
        )
    else:
        server = await loop.create_server(factory, endpoint.host, endpoint.port, backlog=BACKLOG)
    port = server.sockets[0].getsockname()[1]
    return Listener(endpoint._replace(port=port), server)


def check_tls(endpoint: Endpoint, ssl: ssl_module.SSLContext | None) -> None:
    """Refuse an `ssl.SSLContext` that the endpoint would silently ignore."""
    if ssl is not None and endpoint.scheme is not Scheme.TLS:
        raise ValueError(f"an ssl.SSLContext makes no sense for {endpoint}: use tls://")


def _refuse_live_path(path: str) -> None:
    """asyncio removes whatever socket lies at the path; one with a listener is not ours to take."""
    if _inode(path) is None:
        return
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except BlockingIOError:
            pass  # Its backlog is full: alive.
        except OSError:
            return  # Nobody listens: a leftover.
    raise OSError(errno.EADDRINUSE, f"somebody listens on {path} already")


def _inode(path: str) -> int | None:
    """The inode of the unix socket at `path`, None when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None
