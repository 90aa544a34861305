"""From CANCEL to the confirmed drop, while 64 other streams run on the same connection."""

import asyncio
import sys
import tempfile
import time
from statistics import quantiles

import msgspec
import uvloop

from benchmarks.processes import OTHER_CORE, Process, heading
from nnrp_backend.client import ClientOperation, NnrpClient, Terminal
from nnrp_backend.profile.envelope import encode_envelope

CANCELS, BACKGROUND = 1000, 64


def envelope(prompt: str) -> bytes:
    body = {"model": "sim", "messages": [{"role": "user", "content": prompt}], "stream": True}
    return encode_envelope(
        "chat.completions.create", msgspec.json.encode(body), request_id=None, nnrp=None
    )


class CancelAfterFirst:
    """Cancels its operation at the first event and times the answer."""

    def __init__(self) -> None:
        self.operation: ClientOperation | None = None
        self.asked = 0.0
        self.dropped: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_events(self, bodies: list[bytes]) -> None:
        if not self.asked and self.operation is not None:
            self.asked = time.perf_counter()
            self.operation.cancel()

    def on_progress(self, stage: int, percent_x100: int) -> None:
        pass

    def on_terminal(self, terminal: Terminal) -> None:
        self.dropped.set_result(time.perf_counter() - self.asked)


class Ignore(CancelAfterFirst):
    def on_events(self, bodies: list[bytes]) -> None:
        pass


async def main() -> None:
    heading(f"Cancel to drop: {CANCELS} cancels beside {BACKGROUND} running streams")
    with tempfile.TemporaryDirectory() as folder:
        url = f"unix://{folder}/worker.sock"
        argv = [sys.executable, "-m", "nnrp_backend", "serve", "--engine", "sim"]
        worker = Process("worker", [*argv, "--listen", url], core=OTHER_CORE)
        try:
            worker.ready_line()
            async with NnrpClient(url) as client:
                others = []
                for _ in range(BACKGROUND):
                    ignore = Ignore()
                    long = envelope("/sim tokens=1000000 delay_ms=20")
                    ignore.operation = client.submit(long, ignore)
                    others.append(ignore)
                times = []
                for _ in range(CANCELS):
                    handler = CancelAfterFirst()
                    payload = envelope("/sim tokens=1000 delay_ms=1")
                    handler.operation = client.submit(payload, handler)
                    times.append(1e3 * await handler.dropped)
                cuts = quantiles(times, n=100)
                print(f"p50 {cuts[49]:.2f} ms   p99 {cuts[98]:.2f} ms   max {max(times):.2f} ms")
                for ignore in others:
                    assert ignore.operation is not None
                    ignore.operation.cancel()
                await asyncio.gather(*(ignore.dropped for ignore in others))
        finally:
            worker.stop()


if __name__ == "__main__":
    uvloop.run(main())
