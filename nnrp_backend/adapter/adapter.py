"""The service behind an NNRP server: each operation becomes one request to an engine."""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from typing import Final

import msgspec

from nnrp_backend.adapter.chat import ChatOperation
from nnrp_backend.adapter.engine import Engine, EngineConfigError, EngineDead
from nnrp_backend.adapter.outcomes import RETRY_AFTER_MS, Outcome, refuse
from nnrp_backend.adapter.request import prepare_chat
from nnrp_backend.profile import events
from nnrp_backend.profile.capabilities import CapabilityRecord, Extension
from nnrp_backend.profile.envelope import Envelope, decode_envelope
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import CHAT, CHUNKS_FINAL, MODELS_LIST
from nnrp_backend.protocol.constants import SERVED_CAPABILITIES, Capability
from nnrp_backend.server import ServerOperation
from nnrp_backend.transport.tasks import TaskSet

logger = logging.getLogger(__name__)

DEFAULT_MAX_OPERATIONS: Final = 1024
"""Operations in the engine at a time. Engines queue by themselves; this bounds the memory."""

CLOSE_SECONDS: Final = 5.0
"""How long an engine may take to let go of what it still works on."""

SERVED: Final = frozenset({CHAT, MODELS_LIST})
"""Operations that the adapter knows how to map; an engine may know fewer, or more."""

HONOURED: Final = SERVED_CAPABILITIES - {Capability.PRIORITY_UPDATE}
"""What foreign clients may be granted. An engine takes a priority with the request only."""


class Adapter:
    """Answer operations with an engine that has been started.

    Args:
        levels: compatibility levels to offer; None offers all that the engine has.
        max_operations: operations in the engine at a time; more are refused with
            `backend_overload`.
        stall_timeout: longest silence of the engine, in seconds, for operations whose envelope
            has no `timeout_ms`; None is no bound.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        levels: Collection[int] | None = None,
        max_operations: int = DEFAULT_MAX_OPERATIONS,
        stall_timeout: float | None = None,
    ) -> None:
        self.engine = engine
        self.record = offered(engine, levels)
        """What this worker offers: the engine's own record as the adapter can serve it."""
        self.max_operations = max_operations
        self.outcomes: Counter[Outcome] = Counter()
        """Operations ended so far."""
        self.death: EngineDead | None = None
        self._stall_timeout = stall_timeout
        self._models_list = events.completed(self.record.models_list())
        self._running: set[ChatOperation] = set()
        self._tasks = TaskSet("adapter")
        self._dead = asyncio.Event()

    def __repr__(self) -> str:
        state = "dead" if self.death else "ready"
        return (
            f"<Adapter {self.engine.name} {state} [{self.running}/{self.max_operations} running]>"
        )

    @property
    def running(self) -> int:
        """Operations that an engine is working on."""
        return len(self._running)

    async def wait_dead(self) -> EngineDead:
        """Wait until the engine dies; every running operation has been answered by then."""
        watch = self._tasks.start(self._watch(), name="watch")
        try:
            await self._dead.wait()
        finally:
            watch.cancel()
        assert self.death is not None
        return self.death

    async def close(self) -> None:
        """Abort what the engine still works on. The server has dropped the operations before."""
        self._tasks.cancel_all()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._tasks.join()
        except TimeoutError:
            logger.warning("%d requests did not let go of the engine", len(self._tasks))

    def handle(self, operation: ServerOperation) -> None:
        """Serve one operation: the `service` of an `NnrpServer`."""
        try:
            envelope = decode_envelope(
                operation.payload, frame_id=operation.frame_id, serves=self.record.serves
            )
            operation.payload = b""  # it may be megabytes, and the operation lives for minutes
            if envelope.operation == MODELS_LIST:
                operation.complete(self._models_list)
                self.outcomes[Outcome.COMPLETED] += 1
            else:
                self._start_chat(operation, envelope)
        except ProfileError as error:
            refuse(operation, error)
            self.outcomes[Outcome.REFUSED] += 1

    def _start_chat(self, operation: ServerOperation, envelope: Envelope) -> None:
        if self.death is not None:
            raise engine_error()
        work = prepare_chat(
            envelope, priority_class=operation.priority_class, trace=operation.trace
        )
        if self.running >= self.max_operations:
            raise ProfileError(
                ErrorCode.BACKEND_OVERLOAD,
                f"The worker runs {self.running} operations already.",
                retry_after_ms=RETRY_AFTER_MS,
            )
        logger.debug("%s from %s is %s", work.correlation_id, operation, work.request.id)
        chat = ChatOperation(
            operation,
            work,
            self.engine,
            stall_timeout=self._stall_timeout,
            ended=self._ended,
            engine_died=self._engine_died,
        )
        self._running.add(chat)
        chat.start(self._tasks)

    def _ended(self, chat: ChatOperation, outcome: Outcome) -> None:
        self._running.discard(chat)
        self.outcomes[outcome] += 1

    async def _watch(self) -> None:
        self._engine_died(await self.engine.wait_dead())

    def _engine_died(self, death: EngineDead) -> None:
        if self.death is None:
            logger.error("%s; %d operations fail", death, self.running)
        self.death = self.death or death
        for chat in tuple(self._running):
            chat.stop(engine_error())
        self._dead.set()


def offered(engine: Engine, levels: Collection[int] | None = None) -> CapabilityRecord:
    """Return what a worker with this engine offers, narrowed to some levels.

    Raises:
        EngineConfigError: the engine has none of the levels.
    """
    record = engine.capabilities()
    record = msgspec.structs.replace(
        record,
        operations=tuple(made for made in record.operations if made.name in SERVED),
        extensions=(*record.extensions, Extension(name=CHUNKS_FINAL)),
    )
    try:
        return record if levels is None else record.narrowed(levels)
    except ValueError as error:
        raise EngineConfigError(engine.name, f"--levels: {error}") from None


def engine_error() -> ProfileError:
    """Return the error of an operation whose engine is gone; the log says more."""
    return ProfileError(ErrorCode.BACKEND_ERROR, "The engine died.")
