"""The sim engine: deterministic answers without weights, for first steps, tests and load tests."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final, NamedTuple

from nnrp_backend.adapter.engine import EngineConfigError, EngineDead, EngineRequest, Pressure
from nnrp_backend.adapter.sim.answers import Answer, plain_answer, scripted_answer
from nnrp_backend.adapter.sim.chunks import (
    ChunkWriter,
    Identity,
    LogprobOptions,
    completion,
)
from nnrp_backend.adapter.sim.directives import MAX_PIECES, Script, parse_script
from nnrp_backend.adapter.sim.generation import Piece
from nnrp_backend.adapter.sim.request import ChatRequest, StreamOptions, read_request
from nnrp_backend.adapter.sim.run import Run, scripted_error
from nnrp_backend.adapter.sim.steps import StepClocks
from nnrp_backend.profile.capabilities import CapabilityRecord, OperationCapability
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import CHAT, MODELS_LIST

OWNER: Final = "nnrp-sim"
"""`owned_by` of every model card: whoever lists the models sees that there is none."""

SIM: Final = "sim"
SIM_REASONER: Final = "sim-reasoner"
BACKEND_ERROR: Final = "backend-error"


class _Job(NamedTuple):
    """A request, understood."""

    chat: ChatRequest
    identity: Identity
    answer: Answer
    run: Run

    @property
    def logprobs(self) -> LogprobOptions:
        return LogprobOptions(bool(self.chat.logprobs), self.chat.top_logprobs or 0)


class SimEngine:
    """Answer chat requests deterministically, or as a `/sim` message scripts it.

    Args:
        model: one more name under which `sim` is served, listed first.
        clock: Unix time in seconds, for `created`.
    """

    name = "sim"

    def __init__(self, model: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.version = version("nnrp-gateway")
        named = [] if model in (None, SIM, SIM_REASONER, BACKEND_ERROR) else [model]
        self._models = [*named, SIM, SIM_REASONER, BACKEND_ERROR]
        self._clock = clock
        self._started_at = int(clock())
        self._steps = StepClocks()
        self._running = 0

    def __repr__(self) -> str:
        return f"<SimEngine [{self._running} running]>"

    async def start(self) -> None:
        """Do nothing: there is no model to load."""

    async def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def capabilities(self) -> CapabilityRecord:
        """Offer chat, and the list of models."""
        return CapabilityRecord(
            adapter="nnrp-backend-sim",
            levels=(1,),
            operations=(
                OperationCapability(name=CHAT, streaming=True, tool_calls=True),
                OperationCapability(name=MODELS_LIST, cancellation=False),
            ),
            models=tuple(
                {"id": model, "object": "model", "created": self._started_at, "owned_by": OWNER}
                for model in self._models
            ),
        )

    async def call(self, request: EngineRequest) -> bytes:
        """Answer at the end, at the pace at which a stream would."""
        job = self._prepare(request)
        made: list[list[Piece]] = [[] for _ in job.run.choices]
        with self._counted():
            await job.run.begin()
            for pieces in job.run.steps():
                for index, piece in pieces:
                    made[index].append(piece)
                await job.run.pace()
                if job.run.steps_taken * len(made) > MAX_PIECES:
                    raise ProfileError(
                        ErrorCode.RESULT_TOO_LARGE,
                        f"the choices have more than {MAX_PIECES} tokens together",
                    )
        choices = list(zip(job.run.choices, made, strict=True))
        return completion(job.identity, choices, job.logprobs, job.run.usage())

    async def stream(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        """Answer chunk by chunk."""
        job = self._prepare(request)
        run, options = job.run, job.chat.stream_options or StreamOptions()
        counts = run.usage if options.continuous_usage_stats else None
        writer = ChunkWriter(job.identity, len(run.choices), job.logprobs, counts)
        with self._counted():
            await run.begin()
            for index in range(len(run.choices)):
                yield writer.role(index, calls=job.answer.only_calls)
            for pieces in run.steps():
                for index, piece in pieces:
                    if piece.text:
                        yield writer.piece(index, piece)
                await run.pace()
            for index, choice in enumerate(run.choices):
                yield writer.finish(index, choice.finish_reason)
            if options.include_usage:
                yield writer.usage(run.usage())

    def pressure(self) -> Pressure:
        """Say how many requests are being answered; there is no limit to them."""
        return Pressure(running=self._running, waiting=0)

    async def wait_dead(self) -> EngineDead:
        """Wait for ever: what is not alive cannot die."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    def metrics(self) -> bytes:
        """Return nothing: the adapter counts what there is to count."""
        return b""

    def _prepare(self, request: EngineRequest) -> _Job:
        chat = read_request(request.body)
        if chat.model not in self._models:
            raise ProfileError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"the model {chat.model!r} does not exist",
                param="model",
            )
        if chat.model == BACKEND_ERROR:
            raise scripted_error(ErrorCode.BACKEND_ERROR)
        last = chat.messages[-1]
        script = parse_script(last.text()) if last.role == "user" else None
        if script is None:
            answer = plain_answer(chat, reasoner=chat.model == SIM_REASONER)
        else:
            answer = scripted_answer(script)
        run = Run(chat, script or Script(), answer, self._steps)
        identity = Identity(f"chatcmpl-{request.id}", int(self._clock()), chat.model)
        return _Job(chat, identity, answer, run)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def create(model: str | None, flags: Sequence[str]) -> SimEngine:
    """Make the engine that `nnrp-backend serve --engine sim` runs.

    Raises:
        EngineConfigError: there are flags, of which the sim engine has none.
    """
    if flags:
        raise EngineConfigError("sim", f"there are no engine flags, but {flags[0]!r} was given")
    return SimEngine(model)
