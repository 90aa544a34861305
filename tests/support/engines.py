"""An engine whose every chunk comes from a test."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from nnrp_backend.adapter.engine import EngineDead, EngineRequest, Pressure
from nnrp_backend.profile.capabilities import CapabilityRecord, OperationCapability
from nnrp_backend.profile.operations import CHAT, EMBEDDINGS, MODELS_LIST

USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
COMPLETION = {
    "id": "chatcmpl-x",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}


def chunk(
    delta: dict[str, Any] | None = None, *, finish: str | None = None, **fields: Any
) -> bytes:
    """Write one upstream chunk of a stream with one choice."""
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1700000000}
    return json.dumps({**head, "model": "m", "choices": [choice], **fields}).encode()


def text_chunks(*words: str, usage: dict[str, Any] = USAGE) -> list[bytes]:
    """Write a whole stream: role, words, finish reason, usage."""
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word}) for word in words),
        chunk(finish="stop"),
        chunk(choices=[], usage=usage),
    ]


class ScriptedEngine:
    """Answer with what a test feeds: chunks or a completion (bytes), or exceptions to raise."""

    name = "scripted"
    version = "1.2"

    def __init__(self) -> None:
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.obedient = True
        """Whether cancelling stops it."""
        self.levels: tuple[int, ...] = (1,)
        self.started = self.closed = 0
        self.start_error: Exception | None = None
        self._feeds: dict[str, asyncio.Queue[bytes | Exception | None]] = {}
        self._death: asyncio.Future[EngineDead] = asyncio.get_running_loop().create_future()

    def feed(self, *items: bytes | Exception, to: int = -1, end: bool = False) -> None:
        """Let the `to`-th request produce `items`, and then end if so asked."""
        for item in items:
            self._feeds[self.requests[to].id].put_nowait(item)
        if end:
            self._feeds[self.requests[to].id].put_nowait(None)

    def unread(self, request: int = -1) -> int:
        """Return how much of what was fed has not been pulled."""
        return self._feeds[self.requests[request].id].qsize()

    def die(self, reason: str = "killed") -> None:
        """Die, as when the engine's process is gone."""
        self._death.set_result(EngineDead(self.name, reason))

    # --- Engine -----------------------------------------------------------------------------------

    async def start(self) -> None:
        self.started += 1
        if self.start_error is not None:
            raise self.start_error

    async def close(self) -> None:
        self.closed += 1

    def capabilities(self) -> CapabilityRecord:
        return CapabilityRecord(
            adapter="scripted",
            levels=self.levels,
            operations=tuple(
                OperationCapability(name=name, streaming=True)
                for name in (CHAT, MODELS_LIST, EMBEDDINGS)
            ),
            models=({"id": "m", "owned_by": "tests", "max_model_len": 64},),
        )

    async def call(self, request: EngineRequest) -> bytes:
        item = await self._next(request)
        assert item is not None
        return item

    async def stream(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        while (item := await self._next(request)) is not None:
            yield item

    def pressure(self) -> Pressure:
        return Pressure(running=len(self.requests), waiting=1, capacity=4, kv_usage=0.25)

    async def wait_dead(self) -> EngineDead:
        return await asyncio.shield(self._death)

    def metrics(self) -> bytes:
        return b"# TYPE scripted_things gauge\nscripted_things 7\n"

    async def _next(self, request: EngineRequest) -> bytes | None:
        if request.id not in self._feeds:
            self._feeds[request.id] = asyncio.Queue()
            self.requests.append(request)
        while True:
            try:
                item = await self._feeds[request.id].get()
            except asyncio.CancelledError:
                self.aborted.append(request.id)
                if self.obedient:
                    raise
                continue
            if isinstance(item, Exception):
                raise item
            return item
