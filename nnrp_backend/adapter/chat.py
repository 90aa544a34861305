"""One chat operation, from the engine's first chunk to the one terminal."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from nnrp_backend.adapter.diagnostics import cache_diagnostics, dispatch_diagnostics
from nnrp_backend.adapter.engine import DropConnection, Engine, EngineDead
from nnrp_backend.adapter.outcomes import Outcome, cancelled_for, refuse
from nnrp_backend.adapter.request import ChatWork
from nnrp_backend.adapter.timers import Deadline, StallTimer, to_seconds
from nnrp_backend.profile import events
from nnrp_backend.profile.chunks import ChatChunkMapper
from nnrp_backend.profile.completion import finalize_completion
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.protocol.constants import CancelReason, DropReason, Stage
from nnrp_backend.server import ServerOperation
from nnrp_backend.transport.tasks import TaskSet

logger = logging.getLogger(__name__)


class ChatOperation:
    """Run one chat operation, and stop it the moment that anybody says so.

    Whatever stops it (a CANCEL, the deadline, silence, the engine's death) answers the client
    first and cancels the task then: nobody waits for the engine to let go, and what the engine
    still produces finds the operation done.

    Args:
        stall_timeout: longest silence of the engine, in seconds, where the envelope says nothing.
        ended: called once, when the operation has had its terminal.
        engine_died: called when the engine says so to this operation.
    """

    def __init__(
        self,
        operation: ServerOperation,
        work: ChatWork,
        engine: Engine,
        *,
        stall_timeout: float | None,
        ended: Callable[["ChatOperation", Outcome], None],
        engine_died: Callable[[EngineDead], None],
    ) -> None:
        self.operation = operation
        self._work = work
        self._engine = engine
        self._stall_timeout = stall_timeout
        self._ended = ended
        self._engine_died = engine_died
        # Our own clients that asked for no diagnostics ignore the stages: each is a wake-up saved.
        self._tells_progress = work.nnrp.diagnostics or not operation.session.peer_is_ours
        self._outcome: Outcome | None = None
        self._mapper: ChatChunkMapper | None = None
        self._held: Sequence[bytes] = ()
        """Events of the chunk at hand that wait for the client to take them."""
        self._task: asyncio.Task[None] | None = None
        self._deadline = Deadline(asyncio.get_running_loop(), self._expire)
        self._stall: StallTimer | None = None

    def __repr__(self) -> str:
        state = self._outcome or "running"
        return f"<ChatOperation {self._work.request.id} {state}: {self.operation!r}>"

    def start(self, tasks: TaskSet) -> None:
        """Start, unless the deadline has passed before any work was done."""
        operation, nnrp = self.operation, self._work.nnrp
        operation.handler = self
        if operation.deadline_unix_ms is not None:
            self._deadline.set_unix_ms(operation.deadline_unix_ms)
        if nnrp.deadline_ms is not None:
            self._deadline.set_left(nnrp.deadline_ms, operation.received_at)
        if (left := self._deadline.left) is not None and left <= 0:
            self._expire()
            return
        if nnrp.credit is not None:
            operation.set_credit(nnrp.credit)
        self._progress(Stage.ADMITTED)
        self._task = tasks.start(self._run(), name=self._work.request.id)

    # --- OperationEvents: what the client says ----------------------------------------------------

    def on_cancel(self, reason: int, hard: bool) -> None:
        """Drop the operation, for the reason that the client gave."""
        if reason == CancelReason.SHUTDOWN:
            # Nobody but the worker itself wants this end: the client is told to go elsewhere.
            error = ProfileError(ErrorCode.BACKEND_CANCELLED, "The worker is shutting down.")
            self.stop(error, Outcome.LOST)
        else:
            self._drop(*cancelled_for(reason))

    def on_deadline(self, unix_ms: int, discard: bool) -> None:
        """Replace the wire's deadline; the envelope's own stays."""
        if self._outcome is None:
            self._deadline.set_unix_ms(unix_ms)

    def on_priority(self, priority_class: int, delta: int) -> None:
        """Do nothing: an engine takes a priority with the request, and no other later."""

    # --- stopping, from outside of the task -------------------------------------------------------

    def stop(self, error: ProfileError, outcome: Outcome = Outcome.ERROR) -> None:
        """End the operation with an error and abort the engine's work. No-op when it has ended."""
        self._fail(error, outcome)
        self._abort()

    def _drop(self, outcome: Outcome, reason: DropReason, diagnostic: str = "") -> None:
        if self._outcome is None:
            self.operation.drop(reason, diagnostic)
            self._conclude(outcome)
        self._abort()

    def _expire(self) -> None:
        self._drop(Outcome.EXPIRED, DropReason.DEADLINE_EXPIRED, "the deadline has passed")

    def _stalled(self) -> None:
        assert self._stall is not None
        message = f"The engine produced nothing for {self._stall.seconds:g} s."
        self.stop(ProfileError(ErrorCode.REQUEST_TIMEOUT, message), Outcome.STALLED)

    def _abort(self) -> None:
        # Once: a second cancellation would reach the engine in the middle of its own clean-up. And
        # a cancelled task keeps its traceback, which leads back to this object.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    # --- the task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            if self._work.request.stream:
                await self._stream()
            else:
                await self._call()
        except ProfileError as error:
            self._fail(error)
        except EngineDead as death:
            self._engine_died(death)
        except DropConnection:
            self.operation.abort_connection()
        except Exception:
            # Whatever it was may quote the prompt: the log has it, the client does not.
            logger.exception("%r failed", self)
            self._fail(ProfileError(ErrorCode.ADAPTER_RUNTIME_ERROR, "The adapter failed."))

    async def _call(self) -> None:
        for event in self._dispatch_diagnostics():
            # Windows are for streams: nothing else but the terminal will come, which needs none.
            self.operation.send_event(event)
        self._begin()
        body = await self._engine.call(self._work.request)
        usage = msgspec.json.decode(body).get("usage") if self._work.nnrp.diagnostics else None
        for event in self._cache_diagnostics(usage):
            self.operation.send_event(event)
        self._complete(events.completed(finalize_completion(body, self._work.chunk_options)))

    async def _stream(self) -> None:
        mapper = self._mapper = self._work.mapper()
        await self._send(self._dispatch_diagnostics())
        self._begin()
        producing = False
        async with aclosing(self._engine.stream(self._work.request)) as chunks:
            async for chunk in chunks:
                if self._outcome is not None:
                    return  # the engine did not let go when it was cancelled
                if self._stall is not None:
                    self._stall.beat()
                if not producing:
                    producing = True
                    self._progress(Stage.PRODUCING_PARTIAL)
                # Without credit one chunk is held here and no more are pulled. Were none pulled at
                # all, a client that does not read could not hear that the stream has ended.
                await self._send(mapper.feed(chunk))
        await self._send(mapper.finish())
        await self._send(self._cache_diagnostics(mapper.usage))
        self._complete(mapper.completed())

    def _begin(self) -> None:
        self._progress(Stage.EXECUTING)
        own = self._work.nnrp.timeout_ms
        bound = self._stall_timeout if own is None else to_seconds(own)
        if bound:
            self._stall = StallTimer(asyncio.get_running_loop(), bound, self._stalled)

    def _progress(self, stage: Stage) -> None:
        if self._tells_progress:
            self.operation.send_progress(stage)

    def _dispatch_diagnostics(self) -> Sequence[bytes]:
        if not self._work.nnrp.diagnostics:
            return ()
        return (events.diagnostics(dispatch_diagnostics(self.operation, self._engine)),)

    def _cache_diagnostics(self, usage: Any) -> Sequence[bytes]:
        if not self._work.nnrp.diagnostics or (fields := cache_diagnostics(usage)) is None:
            return ()
        return (events.diagnostics(fields),)

    async def _send(self, events: Sequence[bytes]) -> None:
        """Send events, each as soon as the client takes it."""
        operation = self.operation
        for place, event in enumerate(events):
            if not operation.ready:
                self._held = events[place:]
                await self._wait_ready()
                self._held = ()
            operation.send_event(event)

    async def _wait_ready(self) -> None:
        """Wait for the client to take more. That silence is not the engine's."""
        if self._stall is not None:
            self._stall.pause()
        await self.operation.wait_ready()
        if self._stall is not None:
            self._stall.resume()

    # --- the end ----------------------------------------------------------------------------------

    def _complete(self, terminal: bytes) -> None:
        if self._outcome is not None:
            return
        self._progress(Stage.FINALIZING)
        sent = self.operation.complete(terminal)
        self._conclude(Outcome.COMPLETED if sent else Outcome.ERROR)

    def _fail(self, error: ProfileError, outcome: Outcome = Outcome.ERROR) -> None:
        if self._outcome is not None:
            return
        if self._mapper is not None:
            # What was pulled goes out without credit: the mapper knows of calls that these end.
            for event in (*self._held, *self._mapper.interrupted(error)):
                self.operation.send_event(event)
        refuse(self.operation, error)
        self._conclude(outcome)

    def _conclude(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._deadline.cancel()
        if self._stall is not None:
            self._stall.cancel()
        self._ended(self, outcome)
