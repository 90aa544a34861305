"""Memory of one gateway process: idle, and with 1,000 open streams."""

import asyncio

import uvloop

from benchmarks.load import chat_request, open_streams
from benchmarks.processes import gateway_and_worker, heading

PORT, STREAMS = 8071, 1000


async def main() -> None:
    heading(f"Gateway memory at {STREAMS} concurrent streams")
    with gateway_and_worker(port=PORT) as (gateway, worker):
        idle = gateway.rss_mb()
        request = chat_request("/sim tokens=60 delay_ms=200", stream=True, port=PORT)
        readers = await open_streams(STREAMS, request, PORT)
        while any(reader.events < 10 for reader in readers):
            await asyncio.sleep(0.05)
        loaded = gateway.rss_mb()
        await asyncio.gather(*(reader.finished for reader in readers))
        short = [reader.events for reader in readers if reader.events < 60]
        print(f"idle {idle:.0f} MB; {STREAMS} streams {loaded:.0f} MB, ", end="")
        print(
            f"{1e3 * (loaded - idle) / STREAMS:.1f} kB each; worker {worker.rss_mb():.0f} MB; ",
            end="",
        )
        print(f"streams cut short: {len(short)}")


if __name__ == "__main__":
    uvloop.run(main())
