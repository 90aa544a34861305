"""A worker on a real endpoint, whose answers are in the test's hands."""

from __future__ import annotations

from nnrp_backend.profile import events
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.envelope import decode_envelope
from nnrp_backend.profile.operations import MODELS_LIST
from nnrp_backend.protocol.constants import DropReason
from nnrp_backend.server import NnrpServer, ServerOperation
from tests.support.fake_worker import record


class NnrpWorker:
    """Say what is served, and collect all other operations in `operations`.

    A CANCEL is answered by a drop, unless `stubborn`.
    """

    def __init__(self, capabilities: CapabilityRecord | None = None) -> None:
        self.capabilities = capabilities or record("m")
        self.operations: list[ServerOperation] = []
        self.cancelled: list[int] = []
        self.stubborn = False
        self.server = NnrpServer(self.serve)

    async def listen(self, endpoint: str) -> NnrpWorker:
        await self.server.listen(endpoint)
        return self

    async def close(self, *, drain_timeout: float = 0.0) -> None:
        await self.server.close(drain_timeout=drain_timeout)

    def serve(self, operation: ServerOperation) -> None:
        if decode_envelope(operation.payload, frame_id=1).operation == MODELS_LIST:
            operation.complete(events.completed(self.capabilities.models_list()))
            return
        operation.handler = _Handler(self, operation)
        self.operations.append(operation)


class _Handler:
    def __init__(self, worker: NnrpWorker, operation: ServerOperation) -> None:
        self.worker = worker
        self.operation = operation

    def on_cancel(self, reason: int, hard: bool) -> None:
        self.worker.cancelled.append(reason)
        if not self.worker.stubborn:
            self.operation.drop(DropReason.PEER_CANCELLED)

    def on_deadline(self, unix_ms: int, discard: bool) -> None:
        pass

    def on_priority(self, priority_class: int, delta: int) -> None:
        pass
