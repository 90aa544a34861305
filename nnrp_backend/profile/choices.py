"""One choice of a streamed chat: its chunks made final, told as events, and gathered."""

from collections.abc import Callable
from typing import Any, Final

from nnrp_backend.profile import events
from nnrp_backend.profile.assembly import ChoiceAssembly
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.finality import (
    CUT_REASONS,
    cut_short,
    drop_nulls,
    finish_choice,
    finish_reasoning,
)
from nnrp_backend.profile.tool_calls import ToolCallStream

Marked = tuple[bytes, tuple[Callable[[str], None], ...]]

_PLAIN_KEYS: Final = frozenset({"index", "delta", "logprobs", "finish_reason"})
_TEXT_KEYS: Final = frozenset({"content", "reasoning", "reasoning_content"})


class ChoiceStream:
    """The state of one choice. `finish`, `split` and `take` each of its appearances, in order."""

    __slots__ = ("_call_ids", "assembly", "calls", "cut", "finish_reason", "index", "opened")

    def __init__(self, index: int, call_ids: set[str], *, assemble: bool) -> None:
        self.index = index
        self._call_ids = call_ids
        self.opened = False
        self.finish_reason: str | None = None
        self.cut: str | None = None
        self.calls: dict[int, ToolCallStream] = {}
        self.assembly = ChoiceAssembly() if assemble else None

    def finish(self, choice: dict[str, Any], options: ChunkOptions, completion_id: str) -> bool:
        """Make one appearance final and say whether it changed."""
        changed = False
        reason = choice.get("finish_reason")
        if reason in CUT_REASONS or (reason and self.finish_reason is not None):
            if self.finish_reason is None:
                self.cut = reason
            choice["finish_reason"] = None
            changed = True
        changed |= finish_choice(choice)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            choice["delta"] = delta = {}
            changed = True
        changed |= self._finish_delta(delta, options, completion_id)
        if choice["finish_reason"] is not None and delta == {"content": ""}:
            delta.clear()
            changed = True
        return changed

    def _finish_delta(
        self, delta: dict[str, Any], options: ChunkOptions, completion_id: str
    ) -> bool:
        changed = False
        if self.opened:
            if "role" in delta:
                del delta["role"]
                changed = True
        else:
            self.opened = True
            if not delta.get("role"):
                _put_first(delta, "role", "assistant")
                changed = True
        changed |= finish_reasoning(delta, options)
        calls = delta.get("tool_calls")
        if isinstance(calls, list) and calls:
            for position, call in enumerate(calls):
                changed |= self._finish_call(call, position, completion_id)
        elif "tool_calls" in delta:
            del delta["tool_calls"]
            changed = True
        # A role chunk may say that there will be no text: OpenAI does, before tool calls.
        return drop_nulls(delta, keep=("content",) if "role" in delta else ()) or changed

    def _finish_call(self, delta: Any, position: int, completion_id: str) -> bool:
        if not isinstance(delta, dict):
            raise ProfileError(ErrorCode.BACKEND_ERROR, "The engine sent a malformed tool call.")
        index = delta.get("index")
        if type(index) is not int or index < 0:
            index = position
        call = self.calls.get(index)
        if call is None:
            call = self.calls[index] = ToolCallStream(self.index, index)
        changed = call.finish_delta(delta, f"call-{completion_id}-{self.index}-{index}")
        if not call.call_id:
            # Some models count: "functions.lookup:0" is the first call of every choice.
            repeated = call.id in self._call_ids
            call.call_id = f"{call.id}.{self.index}.{index}" if repeated else call.id
            self._call_ids.add(call.call_id)
        return changed

    def split(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Take the finish reason out of a final choice that also has content.

        Returns:
            The choice of a chunk that only finishes, or None when `choice` is one itself, or does
            not finish.
        """
        if choice["finish_reason"] is None or not choice["delta"]:
            return None
        ending = {
            "index": self.index,
            "delta": {},
            "logprobs": None,
            "finish_reason": choice["finish_reason"],
        }
        if "stop_reason" in choice:
            ending["stop_reason"] = choice.pop("stop_reason")
        choice["finish_reason"] = None
        return ending

    def take(self, choice: dict[str, Any]) -> list[bytes]:
        """Gather a final choice and return its events."""
        delta = choice["delta"]
        told: list[bytes] = []
        content, calls = delta.get("content"), delta.get("tool_calls", ())
        if isinstance(content, str) and (content or not calls):
            told.append(events.text_delta(self.index, content))
        for call in calls:
            told += self.calls[call["index"]].events()
        if self.assembly is not None:
            self.assembly.add(choice)
        if choice["finish_reason"] is not None:
            self.finish_reason = choice["finish_reason"]
            told += self.end_calls()
        return told

    def mark_text(self, choice: dict[str, Any], mark: str) -> Marked | None:
        """Put `mark` for the text of a final choice that has one text and nothing else.

        Returns:
            The event of the marked choice and what gathers its text; None for other choices.
        """
        delta = choice["delta"]
        if choice.keys() != _PLAIN_KEYS or not delta or choice["logprobs"] is not None:
            return None
        if delta.keys() <= _TEXT_KEYS:
            for key in delta:
                delta[key] = mark
            event = events.text_delta(*((self.index, mark) if "content" in delta else (0, "")))
            if self.assembly is None:
                return event, ()
            return event, tuple(self.assembly.text(key).append for key in delta)
        if delta.keys() == {"tool_calls"} and len(delta["tool_calls"]) == 1:
            return self._mark_arguments(delta["tool_calls"][0], mark)
        return None

    def _mark_arguments(self, delta: dict[str, Any], mark: str) -> Marked | None:
        call = self.calls[delta["index"]]
        only_arguments = delta.keys() == {"index", "function"} and len(delta["function"]) == 1
        if not only_arguments or not call.started or call.ended:
            return None
        delta["function"]["arguments"] = mark
        return call.delta_event(mark), (call.gather,)

    def whole(self) -> dict[str, Any]:
        """Return the choice as it stands in a whole answer, or only how it ended."""
        if self.assembly is None:
            return {"index": self.index, "finish_reason": self.finish_reason}
        return self.assembly.choice(self.index, self.finish_reason, self.calls.values())

    def end_calls(self) -> list[bytes]:
        """Return the ends of the calls that are open when the choice has finished."""
        reason = self.finish_reason or "stop"
        return [call.end(reason) for call in self.calls.values() if not call.ended]

    def unfinished(self) -> ProfileError | None:
        """Say how the stream broke off, if it did."""
        if self.finish_reason is not None:
            return None
        if self.cut is not None:
            return cut_short(self.cut)
        return ProfileError(
            ErrorCode.BACKEND_ERROR,
            f"The engine's stream ended before choice {self.index} had finished.",
        )


def _put_first(tree: dict[str, Any], key: str, value: Any) -> None:
    rest = {other: tree[other] for other in tree if other != key}
    tree.clear()
    tree[key] = value
    tree.update(rest)
