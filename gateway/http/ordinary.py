"""The way for servers that lend no writer: sse-starlette, given ready bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

__all__ = ["send_ready_bytes"]


async def send_ready_bytes(
    chunks: AsyncIterator[bytes],
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    send_timeout: float,
    drain_grace: float,
) -> None:
    """Send `chunks` as the body of a response whose start has been sent.

    The chunks are whole events and comments: nothing is added to them, not even pings. When the
    client leaves, the iteration is cancelled.

    Args:
        drain_grace: seconds that the stream may still run once the server shuts down.

    Raises:
        TimeoutError: the client took nothing for `send_timeout` seconds.
    """
    response = EventSourceResponse(
        chunks,
        ping=0,
        send_timeout=send_timeout,
        # Without these every stream would be cut as soon as uvicorn hears SIGTERM.
        shutdown_event=anyio.Event(),
        shutdown_grace_period=drain_grace,
    )

    async def send_body(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    await response(scope, receive, send_body)
