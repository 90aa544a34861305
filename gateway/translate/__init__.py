"""HTTP bodies to envelopes, and profile events to HTTP bodies or SSE bytes. Pure: no await here."""

from gateway.translate.chat import ChatPlan, open_chat_stream, plan_chat
from gateway.translate.streams import EventStream
from gateway.translate.usage import Usage
from gateway.translate.whole import WholeAnswer, whole_answer

__all__ = [
    "ChatPlan",
    "EventStream",
    "Usage",
    "WholeAnswer",
    "open_chat_stream",
    "plan_chat",
    "whole_answer",
]
