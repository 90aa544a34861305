"""Answers that are not streamed."""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import from_profile, from_terminal
from gateway.translate.chat import ChatPlan
from gateway.translate.completed import usage_of
from gateway.translate.usage import Usage, read_usage
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile.completion import finalize_completion
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import EventType, decode_event

__all__ = ["WholeAnswer", "whole_answer"]


class WholeAnswer(NamedTuple):
    """A JSON body for the client."""

    body: bytes
    usage: Usage | None


def whole_answer(terminal: Terminal, plan: ChatPlan, *, final_chunks: bool) -> WholeAnswer:
    """Take the body out of a terminal, and make it final where the worker does not.

    Raises:
        ApiError: the terminal is not an answer.
    """
    if terminal.kind is not TerminalKind.RESULT or not terminal.body:
        raise from_terminal(terminal)
    try:
        event = decode_event(terminal.body)
        if event.type != EventType.COMPLETED or not event.body:
            raise from_terminal(terminal)
        body = bytes(event.body)
        if not final_chunks:
            body = finalize_completion(body, plan.chunks)
    except ProfileError as error:
        raise from_profile(error) from None
    return WholeAnswer(body, read_usage(usage_of(body)))
