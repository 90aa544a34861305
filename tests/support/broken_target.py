"""A scripted worker that speaks the profile without a fault, and can be given one.

A *fault* is a function from the honest answer to a broken one. It sees what was asked, so that one
fault can spoil one kind of case and leave the others be.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

import msgspec

from nnrp_backend.profile.capabilities import CapabilityRecord, OperationCapability
from nnrp_backend.profile.envelope import Envelope, decode_envelope
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import CHAT, MODELS_LIST
from nnrp_backend.protocol.constants import DropReason
from nnrp_backend.protocol.states import OperationState
from nnrp_backend.server import NnrpServer, ServerOperation
from nnrp_backend.transport.endpoint import Endpoint
from nnrp_backend.transport.tasks import TaskSet
from tests.support.recordings import completed, event, text, tool_call

RECORD = CapabilityRecord(
    adapter="scripted",
    levels=(1,),
    operations=(
        OperationCapability(name=CHAT, streaming=True, non_streaming=True, tool_calls=True),
        OperationCapability(name=MODELS_LIST),
    ),
    models=(
        {"id": "scripted", "object": "model", "owned_by": "tests"},
        {"id": "backend-error", "object": "model", "owned_by": "tests"},
    ),
)
"""What the target claims: Level 1 with everything optional, and its own model list."""

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
WORDS = ("one", " two", " three", " four")


@dataclass(frozen=True)
class Answer:
    """What the target does with one request. Bodies may be raw bytes, to be no events."""

    parts: tuple[Any, ...] = ()
    """Bodies of the PARTIAL_RESULTs, in order."""
    end: Any = None
    """The body of RESULT_PUSH; b"" is an empty one, None is none at all."""
    stages: tuple[int, ...] = ()
    """PROGRESS stages sent first."""
    late: tuple[Any, ...] = ()
    """Bodies of PARTIAL_RESULTs sent after the terminal, which the server would not send."""
    late_end: Any = None
    """The body of a second RESULT_PUSH."""
    garbage: bool = False
    """Do bytes that are no packet follow the terminal?"""
    deaf: bool = False
    """Does it go on as if CANCEL had never come, and as if it had no credit to keep to?"""
    drop: int | None = None
    """The reason of a drop that takes the place of the end."""
    dies: bool = False
    """Does the connection end in place of the operation?"""


@dataclass(frozen=True)
class Asked:
    """The request that an answer is for; `envelope` is None when it could not be read."""

    envelope: Envelope | None = None
    error: ProfileError | None = None

    @property
    def body(self) -> dict[str, Any]:
        return self.envelope.body if self.envelope is not None else {}

    @property
    def streamed(self) -> bool:
        return self.body.get("stream") is True


Fault = Callable[[Asked, Answer], Answer]


def honest(asked: Asked, answer: Answer) -> Answer:
    """Leave an answer as it is."""
    return answer


@dataclass
class Target:
    """The service: `NnrpServer(target)` serves it."""

    fault: Fault = honest
    record: CapabilityRecord = RECORD
    operations: list[ServerOperation] = field(default_factory=list)
    tasks: TaskSet = field(default_factory=lambda: TaskSet("target"))

    def __call__(self, operation: ServerOperation) -> None:
        self.operations.append(operation)
        self.tasks.start(self._serve(operation), name=f"operation {operation.id}")

    async def _serve(self, operation: ServerOperation) -> None:
        asked = self._read(operation)
        answer = self.fault(asked, _answer(asked, self.record))
        operation.handler = _Cancel(operation, deaf=answer.deaf)
        if asked.envelope is not None and not answer.deaf:
            operation.set_credit(asked.envelope.nnrp.credit)
        for stage in answer.stages:
            operation.send_progress(stage)
        for part in answer.parts:
            if not answer.deaf:
                await operation.wait_ready()
            operation.send_event(_encode(part))
        self._end(operation, answer)

    def _read(self, operation: ServerOperation) -> Asked:
        try:
            envelope = decode_envelope(
                operation.payload, frame_id=operation.frame_id, serves=self.record.serves
            )
        except ProfileError as error:
            return Asked(error=error)
        return Asked(envelope)

    def _end(self, operation: ServerOperation, answer: Answer) -> None:
        if answer.dies:
            operation.abort_connection()
        elif answer.drop is not None:
            operation.drop(answer.drop, "scripted")
        elif answer.end is not None:
            operation.complete(_encode(answer.end))
        _misbehave(operation, answer)


def _misbehave(operation: ServerOperation, answer: Answer) -> None:
    """Send what a server of ours would not, by the back door."""
    link, core = operation._link, operation._core
    for part in answer.late:
        core.state = OperationState.ACTIVE
        link.core.send_partial(core, _encode(part))
    if answer.late_end is not None:
        core.state = OperationState.ACTIVE
        link.core.complete(core, _encode(answer.late_end))
    if answer.garbage:
        link.core._outgoing.append(b"garbage" * 10)
    link.flush_soon()


class _Cancel:
    """What the target does when it is told to stop."""

    def __init__(self, operation: ServerOperation, *, deaf: bool) -> None:
        self._operation = operation
        self._deaf = deaf

    def on_cancel(self, reason: int, hard: bool) -> None:
        if not self._deaf:
            self._operation.drop(DropReason.PEER_CANCELLED)

    def on_deadline(self, unix_ms: int, discard: bool) -> None:
        pass

    def on_priority(self, priority_class: int, delta: int) -> None:
        pass


@asynccontextmanager
async def serving(
    target: Target, listen: str = "tcp://127.0.0.1:0", *, ssl: SSLContext | None = None
) -> AsyncIterator[Endpoint]:
    """Serve a target, on a free port by default; yield its endpoint."""
    server = NnrpServer(target)
    endpoint = await server.listen(listen, ssl=ssl)
    try:
        yield endpoint
    finally:
        await server.close(drain_timeout=0)
        target.tasks.cancel_all()
        await target.tasks.join()


def _answer(asked: Asked, record: CapabilityRecord) -> Answer:
    try:
        if asked.error is not None:
            raise asked.error
        assert asked.envelope is not None
        if asked.envelope.operation == MODELS_LIST:
            return Answer(end=completed(**msgspec.json.decode(record.models_list())))
        return _chat(asked)
    except ProfileError as error:
        return Answer(end={"type": "response.error", "error": error.to_error()})


def _chat(asked: Asked) -> Answer:
    body = asked.body
    if body["model"] == "backend-error":
        raise ProfileError(ErrorCode.BACKEND_ERROR, "This model always fails.")
    if body["model"] != "scripted":
        raise ProfileError(ErrorCode.UNSUPPORTED_MODEL, "There is no such model.")
    if not isinstance(body.get("max_tokens", 1), int):
        raise ProfileError(ErrorCode.INVALID_BACKEND_REQUEST, "max_tokens is a number.")
    choices = range(body.get("n", 1))
    parts: list[Any] = []
    assert asked.envelope is not None
    if asked.envelope.nnrp.diagnostics:
        parts.append(event("diagnostics", diagnostics={"transport": "tcp"}))
    if asked.streamed:
        parts += _tool_parts(choices) if body.get("tools") else _text_parts(choices)
        if (body.get("stream_options") or {}).get("include_usage"):
            parts.append(event("usage", usage=USAGE))
    return Answer(tuple(parts), _completion(choices, tools=bool(body.get("tools"))))


def _text_parts(choices: range) -> list[Any]:
    return [text(word, choice) for word in WORDS for choice in choices]


def _tool_parts(choices: range) -> list[Any]:
    """One call for each choice, interleaved."""
    calls = [
        tool_call(
            '{"city":',
            '"Oslo"}',
            call={"index": 0, "item_id": f"item_{choice}", "call_id": f"call_{choice}"},
            name="get_weather",
        )
        for choice in choices
    ]
    return [each for step in zip(*calls, strict=True) for each in step]


def _completion(choices: range, *, tools: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(WORDS)}
    if tools:
        function = {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
        call = {"id": "call_0", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return completed(
        id="chatcmpl-1",
        object="chat.completion",
        choices=[{"index": n, "message": message, "finish_reason": "stop"} for n in choices],
        usage=USAGE,
    )


def _encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)
