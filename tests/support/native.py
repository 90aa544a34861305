"""Drive the published `nnrp-py` runtime (`native_peer.py`) as a child process."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("native_peer.py")
#: Import, library load and handshake of the child, on a slow and busy machine.
_START_SECONDS = 20.0

Report = dict[str, Any]


class NativePeer:
    """One child process; `reports` is everything it has said, in order."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._arrived = asyncio.Condition()
        self._ended = False
        self._stderr = b""
        self.reports: list[Report] = []

    async def tell(self, do: str, **fields: Any) -> None:
        """Give the child one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        await self._process.stdin.drain()

    async def wait_for(
        self, wanted: Callable[[Report], object], *, count: int = 1, timeout: float = 20.0
    ) -> list[Report]:
        """Return the first `count` reports that are `wanted`, as soon as there are so many."""

        def found() -> list[Report]:
            return [report for report in self.reports if wanted(report)]

        async with self._arrived:
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait_for(lambda: len(found()) >= count or self._ended)
            except TimeoutError:
                raise AssertionError(f"the native peer said only {self.reports[-20:]}") from None
        assert len(found()) >= count, (
            f"the native peer ended after {self.reports[-20:]}\n{self._stderr.decode()}"
        )
        return found()[:count]

    async def event(self, kind: str, **fields: Any) -> Report:
        """Wait for a report of this kind with these fields."""
        [report] = await self.wait_for(lambda report: matches(report, kind, **fields))
        return report

    def seen(self, kind: str, **fields: Any) -> list[Report]:
        """Reports of this kind with these fields, so far."""
        return [report for report in self.reports if matches(report, kind, **fields)]

    def kill(self) -> None:
        """End the process the hard way, as a crash would."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._arrived:
                self.reports.append(json.loads(line))
                self._arrived.notify_all()
        assert self._process.stderr is not None
        self._stderr = await self._process.stderr.read()
        async with self._arrived:
            self._ended = True
            self._arrived.notify_all()


def matches(report: Report, kind: str, **fields: Any) -> bool:
    return report["event"] == kind and all(report.get(k) == v for k, v in fields.items())


@asynccontextmanager
async def _peer(role: str, endpoint: str, **options: Any) -> AsyncIterator[NativePeer]:
    arguments = json.dumps({"role": role, "endpoint": endpoint, **options})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_SCRIPT),
        arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    peer = NativePeer(process)
    reader = asyncio.create_task(peer._read())
    try:
        await peer.wait_for(lambda report: report["event"] == "ready", timeout=_START_SECONDS)
        yield peer
    finally:
        peer.kill()
        await process.wait()
        await reader


def native_client(endpoint: str, **options: Any) -> Any:
    """Connect a native client with one session: `async with native_client(url) as peer`."""
    return _peer("client", endpoint, **options)


def native_server(endpoint: str, **options: Any) -> Any:
    """Start a native server: `async with native_server(url) as peer`.

    `max_in_flight` and `credit` are its limits; `negotiate=True` makes it accept every capability.
    """
    return _peer("server", endpoint, **options)
