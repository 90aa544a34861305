"""One choice of an answer being generated: cut where `max_tokens` and `stop` say."""

from collections.abc import Iterator
from typing import NamedTuple

from nnrp_backend.adapter.sim.answers import Answer, Kind


class Piece(NamedTuple):
    """What one step adds to a choice."""

    kind: Kind
    text: str
    """May be empty: the token could be the beginning of a stop string."""
    tokens: tuple[str, ...]
    """The tokens whose text this is, for their log probabilities."""


class Generation:
    """Iterate over the pieces of one choice; then `finish_reason` and the counts are final."""

    __slots__ = ("_answer", "_limit", "_stops", "finish_reason", "reasoning_tokens", "tokens")

    def __init__(self, answer: Answer, *, limit: int | None, stops: list[str]) -> None:
        self._answer = answer
        self._limit = limit
        self._stops = stops
        self.finish_reason = "stop" if answer.call is None else "tool_calls"
        self.tokens = 0
        self.reasoning_tokens = 0

    def __repr__(self) -> str:
        return f"<Generation [{self.tokens} tokens, {self.finish_reason}]>"

    def __iter__(self) -> Iterator[Piece]:
        filtered = StopFilter(self._stops) if self._stops else None
        for kind, text in self._limited():
            if filtered is None or kind is not Kind.TEXT:
                if filtered is not None and filtered.held:
                    yield Piece(Kind.TEXT, *filtered.flush())
                yield Piece(kind, text, (text,))
                continue
            yield Piece(kind, *filtered.feed(text))
            if filtered.found:
                self.finish_reason = "stop"
                return
        if filtered is not None and filtered.held:
            yield Piece(Kind.TEXT, *filtered.flush())

    def _limited(self) -> Iterator[tuple[Kind, str]]:
        for kind, text in self._answer.pieces():
            if self.tokens == self._limit:
                self.finish_reason = "length"
                return
            self.tokens += 1
            self.reasoning_tokens += kind is Kind.REASONING
            yield kind, text


class StopFilter:
    """Let text through up to the first stop string, which may lie across tokens."""

    __slots__ = ("_stops", "_tokens", "found", "held")

    def __init__(self, stops: list[str]) -> None:
        self._stops = stops
        self._tokens: list[str] = []
        self.held = ""
        """Text that could be the beginning of a stop string."""
        self.found = False

    def feed(self, token: str) -> tuple[str, tuple[str, ...]]:
        """Take one token; return the text that is safe to show, and the tokens behind it."""
        self._tokens.append(token)
        text = self.held + token
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.found = True
            self.held = ""
            return text[: min(found)], self._take_tokens()
        held = max(_overlap(text, stop) for stop in self._stops)
        self.held = text[len(text) - held :]
        safe = text[: len(text) - held]
        return safe, self._take_tokens() if safe else ()

    def flush(self) -> tuple[str, tuple[str, ...]]:
        """Return what was held back; no stop string came."""
        text, self.held = self.held, ""
        return text, self._take_tokens()

    def _take_tokens(self) -> tuple[str, ...]:
        tokens = tuple(self._tokens)
        self._tokens.clear()
        return tokens


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` begin `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
