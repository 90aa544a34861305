"""From a client's disconnect to the CANCEL at the worker, through a real gateway process.

Client and worker live in this process, so that one clock sees both ends. Three phases: a stream
before its first event, a stream in the middle, and a whole answer that is still awaited.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from statistics import quantiles

import uvloop

from benchmarks.load import StreamReader, chat_request
from benchmarks.processes import MEASURED_CORE, Process, heading, wait_for
from nnrp_backend.profile import events
from nnrp_backend.profile.capabilities import CapabilityRecord, OperationCapability
from nnrp_backend.profile.envelope import decode_envelope
from nnrp_backend.profile.operations import CHAT, MODELS_LIST
from nnrp_backend.protocol.constants import DropReason
from nnrp_backend.server import NnrpServer, ServerOperation

PORT, ADMIN_PORT, TIMES = 8071, 9071, 500
CHUNK = b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"sim","choices":[]}'
RECORD = CapabilityRecord(
    adapter="bench",
    levels=(1, 3),
    operations=(
        OperationCapability(name=CHAT, streaming=True),
        OperationCapability(name=MODELS_LIST),
    ),
    models=({"id": "sim", "object": "model", "created": 1, "owned_by": "bench"},),
)


class Worker:
    """Answers nothing but the first event when asked to, and notes when a CANCEL comes."""

    def __init__(self) -> None:
        self.first_event = False
        self.arrived: asyncio.Future[None]
        self.cancelled: asyncio.Future[float]
        self.operation: ServerOperation

    def expect(self, *, first_event: bool) -> None:
        loop = asyncio.get_running_loop()
        self.first_event = first_event
        self.arrived, self.cancelled = loop.create_future(), loop.create_future()

    def serve(self, operation: ServerOperation) -> None:
        if decode_envelope(operation.payload, frame_id=1).operation == MODELS_LIST:
            operation.complete(events.completed(RECORD.models_list()))
            return
        self.operation = operation
        operation.handler = self
        if self.first_event:
            operation.send_event(events.text_delta(0, "x", CHUNK))
        self.arrived.set_result(None)

    def on_cancel(self, reason: int, hard: bool) -> None:
        self.cancelled.set_result(time.perf_counter())
        self.operation.drop(DropReason.PEER_CANCELLED)

    def on_deadline(self, unix_ms: int, discard: bool) -> None:
        """No deadline is sent here."""

    def on_priority(self, priority_class: int, delta: int) -> None:
        """No priority is sent here."""


async def leave(worker: Worker, *, stream: bool, first_event: bool) -> float:
    """Ask, leave, and return the milliseconds until the worker heard of it."""
    worker.expect(first_event=first_event)
    loop = asyncio.get_running_loop()
    request = chat_request("hello", stream=stream, port=PORT)
    _, reader = await loop.create_connection(lambda: StreamReader(request), "127.0.0.1", PORT)
    await worker.arrived
    while first_event and not reader.started:
        await asyncio.sleep(0.001)
    assert reader.transport is not None
    left = time.perf_counter()
    reader.transport.abort()
    milliseconds = 1e3 * (await worker.cancelled - left)
    with contextlib.suppress(ConnectionError):
        await reader.finished
    return milliseconds


async def main() -> None:
    heading(f"A client that leaves: to the CANCEL at the worker, {TIMES} times each")
    worker = Worker()
    server = NnrpServer(worker.serve)
    with tempfile.TemporaryDirectory() as folder:
        await server.listen(f"unix://{folder}/worker.sock")
        argv = [sys.executable, "-m", "gateway", "serve", "--port", str(PORT)]
        argv += ["--admin-port", str(ADMIN_PORT), "--worker", f"unix://{folder}/worker.sock"]
        gateway = Process("gateway", argv, core=MEASURED_CORE)
        try:
            await asyncio.to_thread(wait_for, f"http://127.0.0.1:{ADMIN_PORT}/readyz")
            for name, stream, first_event in (
                ("before the first event", True, False),
                ("mid-stream", True, True),
                ("whole answer", False, False),
            ):
                times = [
                    await leave(worker, stream=stream, first_event=first_event)
                    for _ in range(TIMES)
                ]
                cuts = quantiles(times, n=100)
                print(f"{name:22s}  p50 {cuts[49]:.2f} ms   p99 {cuts[98]:.2f} ms", end="   ")
                print(f"max {max(times):.2f} ms")
        finally:
            await asyncio.to_thread(gateway.stop)
            await server.close(drain_timeout=0)


if __name__ == "__main__":
    uvloop.run(main())
