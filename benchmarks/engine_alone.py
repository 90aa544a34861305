"""The sim engine alone: the same paced streams, read in process by a loop that only counts.

What it costs is not the adapter's: the difference to a whole worker is the NNRP side. Run as a
module with streams, tokens and delay in ms, it prints ``READY {}``, runs once, and prints
microseconds of CPU per chunk.
"""

import asyncio
import sys
import time

import uvloop

from nnrp_backend.adapter.engine import EngineRequest
from nnrp_backend.adapter.sim import SimEngine
from nnrp_backend.profile.operations import CHAT


async def read(engine: SimEngine, number: int, prompt: str) -> int:
    """Read one stream to its end; returns how many chunks it had."""
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = EngineRequest(f"{number:032x}", CHAT, body, True)
    return sum([1 async for _ in engine.stream(request)])


async def main(streams: int, tokens: int, delay_ms: int) -> None:
    engine = SimEngine()
    await engine.start()
    prompt = f"/sim tokens={tokens} delay_ms={delay_ms}"
    print("READY {}", flush=True)
    before = time.process_time()
    chunks = await asyncio.gather(*(read(engine, number, prompt) for number in range(streams)))
    print(1e6 * (time.process_time() - before) / sum(chunks), flush=True)
    await engine.close()


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:4])))
