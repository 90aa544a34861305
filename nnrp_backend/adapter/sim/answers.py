"""What the sim engine answers: the whole content, before any cut by `max_tokens` or `stop`.

The same request always gets the same answer.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from nnrp_backend.adapter.sim.directives import Script
from nnrp_backend.adapter.sim.request import ChatRequest, refuse
from nnrp_backend.adapter.sim.schema import SchemaError, generate
from nnrp_backend.adapter.sim.tools import ToolCall, choose_call

MAX_ECHO: Final = 1000
"""Characters of the last message that an answer repeats; a request may have megabytes."""

GREETING: Final = "This is the sim engine, which has no model."

_WORD: Final = re.compile(r"\s*\S+|\s+")
_ARGUMENTS_PIECE: Final = re.compile(r".{1,8}", re.DOTALL)


class Kind(Enum):
    """What a piece of an answer is part of."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"
    """The name of the called function; its arguments follow."""
    ARGUMENTS = "arguments"


class Answer(NamedTuple):
    """The parts of an answer, in the order in which they are given."""

    reasoning: str = ""
    text: str = ""
    call: ToolCall | None = None
    numbered_reasoning: int = 0
    numbered_text: int = 0
    """Pieces `think0 think1 …` and `tok0 tok1 …` after the words of the part."""

    @property
    def only_calls(self) -> bool:
        """Whether the answer has a tool call and no text beside it."""
        return self.call is not None and not self.text and not self.numbered_text

    def pieces(self) -> Iterator[tuple[Kind, str]]:
        """Cut the answer into what a model would call tokens; each begins with its space."""
        for piece in _cut(self.reasoning, "think", self.numbered_reasoning):
            yield Kind.REASONING, piece
        for piece in _cut(self.text, "tok", self.numbered_text):
            yield Kind.TEXT, piece
        if self.call is not None:
            yield Kind.CALL, self.call.name
            for piece in _ARGUMENTS_PIECE.findall(self.call.arguments):
                yield Kind.ARGUMENTS, piece


def _cut(text: str, word: str, count: int) -> Iterator[str]:
    for match in _WORD.finditer(text):
        yield match[0]
    space = " " if text else ""
    for number in range(count):
        yield f"{space}{word}{number}"
        space = " "


def count_words(text: str) -> int:
    """Count the pieces that a text is cut into."""
    return sum(1 for _ in _WORD.finditer(text))


def scripted_answer(script: Script) -> Answer:
    """Return what a `/sim` message asks for."""
    return Answer(
        text=script.text,
        call=None if script.tool is None else ToolCall(script.tool, script.args),
        numbered_reasoning=script.reasoning,
        numbered_text=script.tokens,
    )


def plain_answer(request: ChatRequest, *, reasoner: bool) -> Answer:
    """Answer a request without a script: a tool call, JSON, or words about the last message.

    Raises:
        ProfileError: the tool choice or the response format cannot be met.
    """
    words = _words_about(request)
    reasoning = f"The last message has {count_words(request.messages[-1].text())} words."
    call = choose_call(request)
    return Answer(
        reasoning=reasoning if reasoner else "",
        text="" if call is not None else _formatted(request, words),
        call=call,
    )


def _words_about(request: ChatRequest) -> str:
    last = request.messages[-1]
    text = last.text().strip()
    if not text:
        return GREETING
    if len(text) > MAX_ECHO:
        text = text[:MAX_ECHO] + "…"
    speaker = "The tool answered" if last.role == "tool" else "You said"
    return f"{GREETING} {speaker}: {text}"


def _formatted(request: ChatRequest, words: str) -> str:
    """Return the answer's text in the form that `response_format` asks for."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return words
    if wanted.type == "json_object":
        return msgspec.json.encode({"answer": words}).decode()
    if wanted.json_schema is None:
        raise refuse("json_schema is missing", param="response_format")
    try:
        return msgspec.json.encode(generate(wanted.json_schema.schema)).decode()
    except SchemaError as error:
        raise refuse(f"json_schema: {error}", param="response_format") from None
