"""Rebuild the choices of a `chat.completion` from the final chunks of its stream."""

from collections.abc import Iterable
from typing import Any, Final

from nnrp_backend.profile.finality import finish_message
from nnrp_backend.profile.tool_calls import ToolCallStream

# Members of a choice that are not simply gathered.
_OWN_MEMBERS: Final = frozenset({"index", "delta", "finish_reason", "logprobs"})


class ChoiceAssembly:
    """Gather one choice: text joins, lists extend, objects merge, anything else is replaced."""

    __slots__ = ("_extras", "_logprobs", "_message", "_texts")

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._logprobs: dict[str, Any] | None = None
        self._extras: dict[str, Any] = {}

    def text(self, key: str) -> list[str]:
        """Return the pieces of one text member of the delta, to append to."""
        return self._texts.setdefault(key, [])

    def add(self, choice: dict[str, Any]) -> None:
        """Take the choice of one final chunk; tool calls are `ToolCallStream`'s to gather."""
        for key, value in choice["delta"].items():
            if key == "role":
                self._message[key] = value
            elif isinstance(value, str):
                self.text(key).append(value)
            elif key != "tool_calls" and value is not None:
                self._message[key] = _joined(self._message.get(key), value)
        if choice["logprobs"] is not None:
            self._logprobs = _joined(self._logprobs, choice["logprobs"])
        for key, value in choice.items():
            if key not in _OWN_MEMBERS:
                self._extras[key] = _joined(self._extras.get(key), value, text=False)

    def choice(
        self, index: int, reason: str | None, calls: Iterable[ToolCallStream]
    ) -> dict[str, Any]:
        """Return the choice as it stands in a whole answer."""
        message = self._message | {key: "".join(parts) for key, parts in self._texts.items()}
        if tool_calls := [call.message() for call in calls]:
            message["tool_calls"] = tool_calls
        finish_message(message)
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs,
            "finish_reason": reason,
            **self._extras,
        }


def _joined(old: Any, new: Any, *, text: bool = True) -> Any:
    if isinstance(old, list) and isinstance(new, list):
        old += new  # in place: a list of every token's logprobs must not be copied per token
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _joined(old.get(key), value) for key, value in new.items()}
    if text and isinstance(old, str) and isinstance(new, str):
        return old + new
    return old if new is None else new
