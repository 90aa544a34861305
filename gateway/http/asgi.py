"""The few things that every answer of the API needs, on bare ASGI."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError

__all__ = [
    "ClientLeftError",
    "header",
    "new_request_id",
    "read_body",
    "request_id",
    "send_error",
    "send_json",
]


class ClientLeftError(Exception):
    """The client disconnected before its request was complete: there is nobody to answer."""

    def __init__(self) -> None:
        super().__init__("the client left before its request was complete")


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of the first header called `name` (lower case), None when there is none."""
    for each, value in scope["headers"]:
        if each == name:
            text: str = value.decode("latin-1")
            return text
    return None


def new_request_id() -> str:
    """Return an id for a request whose client gave none."""
    return f"req_{secrets.token_hex(16)}"


def request_id(scope: Scope) -> str:
    """Return the id that the `RequestId` middleware gave the request."""
    found: str = scope.get("state", {}).get("request_id", "")
    return found


async def read_body(receive: Receive) -> bytes:
    """Read the request's body to its end.

    Raises:
        ClientLeftError: the client disconnected first.
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def send_json(
    send: Send, body: bytes, *, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer with `body`, which is JSON."""
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(
    send: Send, error: ApiError, *, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with `error` in OpenAI's shape, and the headers that steer a client's retries."""
    fields = {**error.headers, **(headers or {})}
    encoded = [
        (name.lower().encode("ascii"), value.encode("latin-1")) for name, value in fields.items()
    ]
    await send_json(send, error.body(), status=error.status, headers=encoded)
