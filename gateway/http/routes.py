"""The public routes: chat completions, models, health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError
from gateway.http.asgi import header, read_body
from gateway.http.chat_request import ChatRequest
from gateway.http.edge import Edge
from gateway.http.stream import TokenStream
from gateway.http.whole import WholeResponse

__all__ = ["leave_to_errors", "routes"]


def routes(edge: Edge) -> list[Route]:
    """Return the routes of the API."""
    models = Models(edge)
    return [
        Route("/v1/chat/completions", ChatCompletions(edge), methods=["POST"]),
        Route("/v1/models", models.list, methods=["GET"]),
        # Model ids contain slashes.
        Route("/v1/models/{model:path}", models.get, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
    ]


async def leave_to_errors(request: Request, exception: Exception) -> Response:
    """Keep Starlette from answering routing's refusals in plain text: `Errors` answers them."""
    raise exception


class ChatCompletions:
    """`POST /v1/chat/completions`, as an ASGI application."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require_json(scope)
        raw = await read_body(receive)
        edge = self._edge
        meter = edge.metrics.begin(edge.clock())
        scope["state"]["metered"] = True
        try:
            request = ChatRequest(edge, scope, raw, meter)
        except ApiError as error:
            meter.end(edge.clock(), error.status)
            raise
        except BaseException:
            meter.end(edge.clock(), 500)
            raise
        del raw  # the plan keeps what it needs of it, for as long as it needs it
        response = TokenStream(edge, request) if request.stream else WholeResponse(edge, request)
        await response.respond(scope, receive, send)


def _require_json(scope: Scope) -> None:
    """Refuse a body that says it is something else; one that says nothing may be JSON.

    Raises:
        ApiError: 415.
    """
    coding = header(scope, b"content-encoding")
    if coding is not None and coding.strip().lower() not in ("", "identity"):
        raise ApiError.unsupported_coding(coding)
    given = header(scope, b"content-type")
    if given is None:
        return
    media_type = given.partition(";")[0].strip().lower()
    kind, _, subtype = media_type.partition("/")
    if kind != "application" or (subtype != "json" and not subtype.endswith("+json")):
        raise ApiError.unsupported_media_type(media_type)


class Models:
    """`GET /v1/models` and `GET /v1/models/{id}`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def list(self, request: Request) -> Response:
        return _json({"object": "list", "data": self._cards()})

    async def get(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        for card in self._cards():
            if card["id"] == wanted:
                return _json(card)
        raise ApiError.unknown_model(wanted)

    def _cards(self) -> Sequence[dict[str, Any]]:
        """Return the workers' cards with the members that OpenAI's clients expect.

        Raises:
            ApiError: 503, no worker has ever said what it serves: an empty list would be a lie.
        """
        pool = self._edge.pool
        if not any(worker.known for worker in pool.workers):
            raise ApiError.no_worker()
        return [{"object": "model", "created": 0, "owned_by": "", **card} for card in pool.models()]


async def health(request: Request) -> Response:
    """Say that the public port answers; readiness is on the admin port."""
    return _json({"status": "ok"})


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
