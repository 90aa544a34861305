"""What every translator of an event stream offers, and how every SSE stream of chat ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Protocol

from gateway.errors import ApiError, from_profile, from_terminal
from gateway.translate.usage import Usage
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import Event, EventType, decode_event

__all__ = ["DONE", "KEEP_ALIVE", "ChatStream", "EventStream", "sse"]

DONE: Final = b"data: [DONE]\n\n"

#: A comment. An event without data, or an `id:` line, makes the OpenAI SDKs raise.
KEEP_ALIVE: Final = b": keep-alive\n\n"


def sse(data: bytes) -> bytes:
    """Frame one line of data."""
    return b"data: %b\n\n" % data


class EventStream(Protocol):
    """Turn one request's profile events into SSE bytes. One object per stream, not shared.

    Every stream ends exactly once, by `end` or `fail`, whichever comes first; after that all three
    verbs return b"".
    """

    keep_alive: ClassVar[bytes]
    """What to send during silence."""
    usage: Usage | None
    """Known after `end`, for most workers; None where nobody counted."""
    error: ApiError | None
    """The in-band error that `end` found in the terminal, None where it was an answer."""

    def feed(self, body: bytes) -> bytes:
        """Translate one event; b"" when it has no form in this API.

        Raises:
            ApiError: the event breaks the profile. Cancel the request and write `fail(error)`.
        """

    def end(self, terminal: Terminal) -> bytes:
        """Translate the end, whatever kind it is; an error goes in band."""

    def fail(self, error: ApiError) -> bytes:
        """End the stream with an in-band error."""


class ChatStream(ABC):
    """The ends of a chat stream: `data: [DONE]` once and last, also after an error."""

    __slots__ = ("_ended", "error", "usage")

    keep_alive: ClassVar[bytes] = KEEP_ALIVE

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.error: ApiError | None = None
        self._ended = False

    def end(self, terminal: Terminal) -> bytes:
        if self._ended:
            return b""
        rest = b""
        try:
            event = decode_event(terminal.body) if terminal.body else None
            if terminal.kind is TerminalKind.RESULT and _is_answer(event):
                rest = self._complete(event)
            else:
                self.error = from_terminal(terminal)
        except ProfileError as error:
            self.error = from_profile(error)
        if self.error is not None:
            return self.fail(self.error)
        self._ended = True
        return rest + DONE

    def fail(self, error: ApiError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        return sse(error.body()) + DONE

    @abstractmethod
    def _complete(self, event: Event | None) -> bytes:
        """Return what is still to be sent before the end, given `response.completed`.

        Raises:
            ProfileError: the answer is not complete.
        """


def _is_answer(event: Event | None) -> bool:
    """Whether a terminal's event is one; a worker that sends none has nothing to add."""
    return event is None or event.type == EventType.COMPLETED
