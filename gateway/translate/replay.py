"""Chat chunks of a worker that makes them final: copied, not rebuilt."""

from __future__ import annotations

from typing import Final

from gateway.errors import ApiError, from_profile
from gateway.translate.completed import usage_of
from gateway.translate.streams import ChatStream
from gateway.translate.usage import read_usage
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import Event, EventType, peek

__all__ = ["ReplayStream"]

#: Events with something for the client.
_CONTENT: Final = frozenset(
    {
        EventType.TEXT_DELTA,
        EventType.TOOL_STARTED,
        EventType.TOOL_DELTA,
        EventType.TOOL_COMPLETED,
    }
)


class ReplayStream(ChatStream):
    """Copy the `openai_chunk` of each event, byte for byte.

    Only for workers that declare `openai_chunk.final`: each upstream chunk comes on exactly one
    event, the first of those that it makes, and needs no change. So an event without one is another
    view of what was sent already. Where nothing has been, the worker does not do what it declares,
    and saying so is better than a stream that looks complete and is empty.
    """

    __slots__ = ("_copied",)

    def __init__(self) -> None:
        super().__init__()
        self._copied = False

    def feed(self, body: bytes) -> bytes:
        if self._ended:
            return b""
        try:
            head = peek(body)
        except ProfileError as error:
            raise from_profile(error) from None
        if head.usage:
            self.usage = read_usage(head.usage)
        if not head.openai_chunk:
            if not self._copied and head.type in _CONTENT:
                raise ApiError.worker_failed()
            return b""
        out = b"".join((b"data: ", head.openai_chunk, b"\n\n"))
        # A line end inside would cut the event in two for the client; either kind does. What is no
        # object is no chunk, and clients fall over it.
        if out.find(b"\n") != len(out) - 2 or b"\r" in out or out[6] != 0x7B:
            raise ApiError.worker_failed()
        self._copied = True
        return out

    def _complete(self, event: Event | None) -> bytes:
        if event is not None:
            self.usage = read_usage(usage_of(event.body)) or self.usage
        if not self._copied:
            raise ProfileError(ErrorCode.ADAPTER_RUNTIME_ERROR, "The worker sent no chunk.")
        return b""
