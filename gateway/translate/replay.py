"""Chat chunks of a worker that makes them final: copied, not rebuilt."""

from __future__ import annotations

from gateway.errors import ApiError, from_profile
from gateway.translate.completed import usage_of
from gateway.translate.streams import ChatStream
from gateway.translate.usage import read_usage
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import Event, peek

__all__ = ["ReplayStream"]


class ReplayStream(ChatStream):
    """Copy the `openai_chunk` of each event, byte for byte.

    Only for workers that declare `openai_chunk.final`: each upstream chunk comes on exactly one
    event and needs no change, so an event without one is another view of what was sent already.
    """

    __slots__ = ()

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
            return b""
        out = b"".join((b"data: ", head.openai_chunk, b"\n\n"))
        # A line end inside would cut the event in two for the client; either kind does. What is no
        # object is no chunk, and clients fall over it.
        if out.find(b"\n") != len(out) - 2 or b"\r" in out or out[6] != 0x7B:
            raise ApiError.worker_failed()
        return out

    def _complete(self, event: Event | None) -> bytes:
        if event is not None:
            self.usage = read_usage(usage_of(event.body)) or self.usage
        return b""
