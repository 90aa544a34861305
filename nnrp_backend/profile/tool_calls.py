"""Tool calls of one operation: streaming them out, reading them in, checking their order.

The contract, per `call_id`: `started` exactly once and first, any number of `delta`, then exactly
one of `completed` (whose `arguments` are the deltas joined) or `error`. Calls may interleave, and
none of the four ends the operation. A call that never got a name cannot be started: it has one
event, `error`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import Event, EventType

_CALL_TYPES: Final = frozenset(
    {
        EventType.TOOL_STARTED,
        EventType.TOOL_DELTA,
        EventType.TOOL_COMPLETED,
        EventType.TOOL_ERROR,
    }
)


def arguments_text(value: Any) -> str:
    """Return tool-call arguments as JSON text; some engines and clients give the object."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


class ToolCallStream:
    """One call of one choice, from the deltas of an engine's chunks.

    `finish_delta` makes a delta final for chat clients, who join every string they get: id, type
    and name come once, and no member is null. `events` then tells the same delta as events.
    """

    __slots__ = (
        "_arguments",
        "_reported",
        "call_id",
        "choice",
        "ended",
        "id",
        "index",
        "name",
        "started",
    )

    def __init__(self, choice: int, index: int) -> None:
        self.choice = choice
        self.index = index
        self.id = ""
        """As chat clients see it."""
        self.call_id = ""
        """As events name it; unlike `id` never the same for two calls of an operation."""
        self.name = ""
        self.started = False
        self.ended = False
        self._arguments: list[str] = []
        self._reported = 0

    @property
    def arguments(self) -> str:
        """The argument text so far."""
        return "".join(self._arguments)

    @property
    def item_id(self) -> str:
        """Name the call within the operation's output."""
        return f"call-{self.choice}-{self.index}"

    def finish_delta(self, delta: dict[str, Any], fallback_id: str) -> bool:
        """Edit one `delta.tool_calls[]` entry, keep what it says, and say whether it changed.

        Args:
            fallback_id: id for a call to which the engine gives none.
        """
        function = delta.get("function")
        if not isinstance(function, dict):
            function = {}
        final: dict[str, Any] = {"index": self.index}
        if not self.id:
            self.id = _text(delta.get("id")) or fallback_id
            final["id"] = self.id
            final["type"] = _text(delta.get("type")) or "function"
        final |= _others(delta, ("index", "id", "type", "function"))
        final["function"] = final_function = {}
        name = _text(function.get("name"))
        if name and not self.name:
            self.name = final_function["name"] = name
        final_function["arguments"] = arguments = arguments_text(function.get("arguments"))
        final_function |= _others(function, ("name", "arguments"))
        if arguments:
            self._arguments.append(arguments)
        if final == delta:
            return False
        delta.clear()
        delta.update(final)
        return True

    def events(self) -> list[bytes]:
        """Return the events for what `finish_delta` took in since the last time."""
        if self.ended or not self.name:
            return []
        fragment = "".join(self._arguments[self._reported :])
        self._reported = len(self._arguments)
        if self.started:
            return [self.delta_event(fragment)]
        self.started = True
        event = events.tool_started(
            self.index, self.item_id, self.call_id, self.name, choice=self.choice
        )
        return [event, self.delta_event(fragment)] if fragment else [event]

    def delta_event(self, fragment: str) -> bytes:
        """Return the event of one piece of the arguments."""
        return events.tool_delta(
            self.index, self.item_id, self.call_id, fragment, choice=self.choice
        )

    def gather(self, fragment: str) -> None:
        """Take a piece of the arguments whose event has been made already."""
        self._arguments.append(fragment)
        self._reported += 1

    def end(self, reason: str) -> bytes:
        """Return the event that ends the call, its choice having finished for `reason`.

        A call that the token limit or a filter cut open is an error: nobody may run it.
        """
        if not self.started:
            return self.fail(
                ProfileError(
                    ErrorCode.INVALID_TOOL_CALL_STREAM, "The engine never named the function."
                )
            )
        if reason in ("length", "content_filter") and not _is_json(self.arguments):
            return self.fail(
                ProfileError(
                    ErrorCode.TOOL_CALL_STREAM_INTERRUPTED,
                    f"The answer ended ({reason}) inside the arguments of this call.",
                )
            )
        self.ended = True
        return events.tool_completed(
            self.index, self.item_id, self.call_id, self.name, self.arguments, choice=self.choice
        )

    def fail(self, error: ProfileError) -> bytes:
        """Return the `error` event of this call."""
        self.ended = True
        return events.tool_error(self.index, self.item_id, self.call_id, error, choice=self.choice)

    def message(self) -> dict[str, Any]:
        """Return the call as an entry of `message.tool_calls`."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class ToolCallReader:
    """Bring the frozen profile's `tool_call` shape of a delta into the contract's events.

    The frozen text has `response.tool_call.delta` with `index` and `tool_call`; its later
    contract has four events with identities. A consumer that passes every tool event through one
    reader per operation meets only the second.
    """

    def __init__(self) -> None:
        self._call_ids: dict[int, str] = {}

    def read(self, event: Event) -> list[Event]:
        """Return contract-shaped events for one decoded event, identities filled in."""
        call = event.tool_call
        if event.type != EventType.TOOL_DELTA or call is None or event.call_id:
            return [event]
        index = call.get("index")
        index = index if type(index) is int else event.index
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name, fragment = _text(function.get("name")), arguments_text(function.get("arguments"))
        found: list[Event] = []
        if index not in self._call_ids:
            self._call_ids[index] = _text(call.get("id")) or f"call-{index}"
            found.append(self._event(EventType.TOOL_STARTED, index, name=name or ""))
        if fragment:
            found.append(self._event(EventType.TOOL_DELTA, index, arguments_delta=fragment))
        if found:
            found[0].openai_chunk = event.openai_chunk
        return found

    def _event(self, type_: EventType, index: int, **fields: Any) -> Event:
        call_id = self._call_ids[index]
        return Event(type=type_, index=index, item_id=call_id, call_id=call_id, **fields)


class _OpenCall(NamedTuple):
    item_id: str
    name: str | None
    deltas: list[str]


class ToolCallRules:
    """Check order and identity of one operation's tool events."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenCall] = {}
        self._ended: set[str] = set()

    def observe(self, event: Mapping[str, Any]) -> list[str]:
        """Take the next event and name the rules it breaks.

        Other events pass, and so do those that break a rule about their members already.
        """
        type_ = event.get("type")
        if type_ not in _CALL_TYPES or events.violations(event):
            return []
        call_id, item_id = event["call_id"], event["item_id"]
        if call_id in self._ended:
            return [f"{type_} for call {call_id!r} after its end"]
        call = self._open.get(call_id)
        if type_ == EventType.TOOL_STARTED:
            if call is not None:
                return [f"call {call_id!r} started twice"]
            self._open[call_id] = _OpenCall(item_id, event["name"], [])
            return []
        broken = []
        if call is None:
            call = _OpenCall(item_id, None, [])
            if type_ != EventType.TOOL_ERROR:
                broken.append(f"{type_} for call {call_id!r} before it started")
        if call.item_id != item_id:
            broken.append(f"call {call_id!r} changed its item_id")
        if type_ == EventType.TOOL_DELTA:
            self._open.setdefault(call_id, call).deltas.append(event["arguments_delta"])
            return broken
        self._open.pop(call_id, None)
        self._ended.add(call_id)
        if type_ == EventType.TOOL_COMPLETED:
            if event["arguments"] != "".join(call.deltas):
                broken.append(f"call {call_id!r} completed with other arguments than its deltas")
            if call.name not in (None, event["name"]):
                broken.append(f"call {call_id!r} completed with another name")
        return broken

    def finish(self) -> list[str]:
        """Name the calls that never ended; call it at the operation's terminal."""
        return [f"call {call_id!r} neither completed nor failed" for call_id in self._open]


def _others(tree: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in known and value is not None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
