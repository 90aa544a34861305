"""CPU per streamed event: 128 streams, one event each every 20 ms, in the steady state.

Prints the gateway's and the worker's CPU per event beside the floor (a server that only sends), all
from one run, and the memory of the gateway.
"""

import asyncio
import sys
from statistics import median

import uvloop

from benchmarks.load import chat_request, open_streams
from benchmarks.processes import (
    MEASURED_CORE,
    OTHER_CORE,
    Process,
    gateway_and_worker,
    heading,
)

STREAMS, TOKENS, DELAY_MS, REPEATS = 128, 400, 20, 3
PORT, FLOOR_PORT = 8071, 8072
EDGE = 40  # events of each stream that do not count, at both ends: set-up and tear-down


async def cpu_per_event(
    processes: list[Process], request: bytes, port: int, *, streams: int, tokens: int
) -> list[float]:
    """Microseconds of each process per event between the first and the last ``EDGE`` events."""
    readers = await open_streams(streams, request, port)

    async def until(events: int) -> None:
        while sum(reader.events for reader in readers) < events * streams:
            await asyncio.sleep(0.005)

    await until(EDGE)
    before = [process.cpu_seconds() for process in processes]
    first = sum(reader.events for reader in readers)
    await until(tokens - EDGE)
    after = [process.cpu_seconds() for process in processes]
    events = sum(reader.events for reader in readers) - first
    await asyncio.gather(*(reader.finished for reader in readers))
    for reader in readers:
        assert reader.transport is not None
        reader.transport.close()
    return [1e6 * (b - a) / events for a, b in zip(before, after, strict=True)]


def engine_alone() -> float:
    """Microseconds per chunk of the sim engine with the same streams and no NNRP."""
    argv = [sys.executable, "-m", "benchmarks.engine_alone", str(STREAMS), str(TOKENS)]
    process = Process("engine", [*argv, str(DELAY_MS)], core=OTHER_CORE)
    try:
        process.ready_line()
        assert process.popen.stdout is not None
        return float(process.popen.stdout.readline())
    finally:
        process.stop()


async def main() -> None:
    heading(f"CPU per streamed event: {STREAMS} streams, one event each every {DELAY_MS} ms")
    argv = [sys.executable, "-m", "benchmarks.floor", str(FLOOR_PORT)]
    floor = Process("floor", [*argv, str(TOKENS), str(DELAY_MS / 1e3)], core=MEASURED_CORE)
    try:
        floor.ready_line()
        with gateway_and_worker(port=PORT) as (gateway, worker):
            prompt = f"/sim tokens={TOKENS} delay_ms={DELAY_MS}"
            request = chat_request(prompt, stream=True, port=PORT)
            rows = []
            for _ in range(REPEATS):
                size = {"streams": STREAMS, "tokens": TOKENS}
                [low] = await cpu_per_event([floor], request, FLOOR_PORT, **size)
                engine = await asyncio.to_thread(engine_alone)
                ours, worker_us = await cpu_per_event([gateway, worker], request, PORT, **size)
                rows.append((low, ours, worker_us, engine))
                print(f"  floor {low:5.1f} us   gateway {ours:5.1f} us   ", end="")
                print(f"worker {worker_us:5.1f} us   of it the engine {engine:5.1f} us")
            low, ours, worker_us, engine = (median(c) for c in zip(*rows, strict=True))
            print(f"\ngateway {ours:.1f} us per event (median of {REPEATS}), ", end="")
            print(f"{ours / low:.2f} x the floor; worker {worker_us:.1f} us, ", end="")
            print(f"{worker_us - engine:.1f} us of it not the engine; ", end="")
            print(f"gateway RSS {gateway.rss_mb():.0f} MB")
    finally:
        floor.stop()


if __name__ == "__main__":
    uvloop.run(main())
