"""CPU and latency of non-streamed chat, at concurrency 1 and 32."""

import asyncio
from statistics import median, quantiles

import uvloop

from benchmarks.load import WholeClient, chat_request
from benchmarks.processes import Process, gateway_and_worker, heading

PORT, REQUESTS, REPEATS = 8071, 4000, 3


async def run(
    gateway: Process, worker: Process, concurrency: int
) -> tuple[float, float, float, float, float]:
    """Gateway and worker microseconds per request, requests per second, p50 and p99 in ms."""
    loop = asyncio.get_running_loop()
    request = chat_request("/sim tokens=1", stream=False, port=PORT)
    clients = [
        (await loop.create_connection(lambda: WholeClient(request), "127.0.0.1", PORT))[1]
        for _ in range(concurrency)
    ]
    each = REQUESTS // concurrency
    before, start = (gateway.cpu_seconds(), worker.cpu_seconds()), loop.time()
    for client in clients:
        client.ask(each)
    await asyncio.gather(*(client.finished for client in clients))
    seconds = loop.time() - start
    after = (gateway.cpu_seconds(), worker.cpu_seconds())
    for client in clients:
        client.transport.close()
    count = each * concurrency
    latencies = quantiles([x for client in clients for x in client.latencies], n=100)
    ours, theirs = (1e6 * (b - a) / count for a, b in zip(before, after, strict=True))
    return ours, theirs, count / seconds, 1e3 * latencies[49], 1e3 * latencies[98]


async def main() -> None:
    heading("Non-streamed chat: CPU per request and latency")
    print("concurrency   gateway us   worker us   requests/s   p50 ms   p99 ms")
    with gateway_and_worker(port=PORT) as (gateway, worker):
        await run(gateway, worker, 8)  # warm
        for concurrency in (1, 32):
            rows = [await run(gateway, worker, concurrency) for _ in range(REPEATS)]
            ours, theirs, rate, p50, p99 = (median(column) for column in zip(*rows, strict=True))
            print(
                f"{concurrency:11d}   {ours:10.0f}   {theirs:9.0f}   {rate:10.0f}   "
                f"{p50:6.2f}   {p99:6.2f}"
            )


if __name__ == "__main__":
    uvloop.run(main())
