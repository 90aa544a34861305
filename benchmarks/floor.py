"""The floor: a bare asyncio server that writes the same paced stream and does nothing else.

What it costs is the kernel's send and the loop: no gateway can be cheaper per event. Run as a
module, it prints ``READY {}`` and serves until it is stopped. Every request gets ``tokens`` events,
one each every ``delay`` seconds, on a tick that all streams share.
"""

import asyncio
import sys

CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1764500000,"model":"sim","choices":[{"index":0,"delta":{"content":"tok123 "},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
FRAMED = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TAIL = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Floor(asyncio.Protocol):
    def __init__(self, streams: dict["Floor", int], tokens: int) -> None:
        self.streams = streams
        self.tokens = tokens

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(HEAD)
        self.streams[self] = self.tokens

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.pop(self, None)


async def main(port: int, tokens: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    streams: dict[Floor, int] = {}
    await loop.create_server(lambda: Floor(streams, tokens), "127.0.0.1", port)
    print("READY {}", flush=True)
    tick = loop.time()
    while True:
        tick += delay
        await asyncio.sleep(tick - loop.time())
        for stream, left in list(streams.items()):
            if left:
                stream.transport.write(FRAMED)
                streams[stream] = left - 1
            else:
                stream.transport.write(TAIL)
                del streams[stream]


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
