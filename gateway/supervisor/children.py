"""Worker processes that `nnrp-gateway up` starts, restarts when they die, and stops.

* WorkerStartError      a worker that ended, or kept silent, before it was ready
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

__all__ = ["Child", "Restarts", "WorkerStartError"]

logger = logging.getLogger(__name__)

#: The line on a worker's standard output that says it serves; the rest of the line is JSON.
READY: Final = b"READY "

#: Longest line of a worker's standard output; a READY line names every model.
_LINE_LIMIT: Final = 1024 * 1024

# Linux ends the worker with us however we end; it then drains as after any SIGTERM. The check
# closes the gap between the fork and the request.
_LEASHED: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the gateway has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


class WorkerStartError(Exception):
    """A worker did not come up.

    Attributes:
        name: the worker.
        code: its exit code, None when it was still silent.
    """

    def __init__(self, name: str, code: int | None) -> None:
        self.name = name
        self.code = code
        what = "is not ready" if code is None else f"ended with code {code} before it was ready"
        super().__init__(f"{name} {what}; what it said is above")


class Restarts:
    """How long to wait before the next start: longer each time, unless the last run was long.

    Args:
        first, most: seconds.
        stable_after: a run of this many seconds is no failure to start.
    """

    def __init__(self, first: float = 0.5, most: float = 30.0, stable_after: float = 60.0) -> None:
        self._first = first
        self._most = most
        self._stable_after = stable_after
        self._next = first

    def pause(self, ran: float) -> float:
        """Return the seconds to wait after a run of `ran` seconds."""
        if ran >= self._stable_after:
            self._next = self._first
        pause = self._next
        self._next = min(self._most, self._next * 2)
        return pause


class Child:
    """One worker process on a unix socket, kept running.

    Its standard error is ours. It runs in a session of its own, so that a terminal's Ctrl-C reaches
    the gateway alone, which lets requests end before it stops its workers.

    Args:
        command: program and arguments.
        socket_path: where it listens; removed before each start.
        environment: added to ours.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        socket_path: Path,
        environment: Mapping[str, str] | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._socket_path = socket_path
        self._environment = dict(environment or {})
        self._restarts = restarts or Restarts()
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<Child {self.name} [{f'pid {self.pid}' if self.pid else 'not running'}]>"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> dict[str, Any]:
        """Start the process and wait until it serves; return what its READY line says.

        Raises:
            WorkerStartError: it ended first.
            OSError: the program cannot be run.
        """
        self._socket_path.unlink(missing_ok=True)
        process = self._process = await asyncio.create_subprocess_exec(
            *_leashed(self._command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(READY):
                facts = _facts(line)
                logger.info("%s is ready: %s", self.name, facts)
                return facts
            _pass_on(line)
        raise WorkerStartError(self.name, await process.wait())

    async def keep_running(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Start it again whenever it ends, until cancelled. It has been started before.

        Args:
            on_ready: called each time that it serves again.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            code = await self._ended()
            pause = self._restarts.pause(loop.time() - started)
            logger.error("%s ended with code %s; next start in %g s", self.name, code, pause)
            await asyncio.sleep(pause)
            started = loop.time()
            try:
                await self.start()
            except (WorkerStartError, OSError) as error:
                logger.error("%s", error)
            else:
                on_ready()

    async def stop(self, grace: float) -> None:
        """Ask it to end, and kill it after `grace` seconds. A no-op when it does not run."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self._ended()
        except TimeoutError:
            logger.warning("%s did not end within %g s: it is killed", self.name, grace)
            _signal(process, signal.SIGKILL)
            await self._ended()

    async def _ended(self) -> int:
        """Wait for its end, and pass on what it still says: a full pipe would stop it."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        async for line in process.stdout:
            _pass_on(line)
        return await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        pass  # it has just ended


def _leashed(command: Sequence[str]) -> list[str]:
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LEASHED, str(os.getpid()), *command]


def _facts(line: bytes) -> dict[str, Any]:
    try:
        facts = msgspec.json.decode(line[len(READY) :])
    except msgspec.DecodeError:
        facts = None
    return facts if isinstance(facts, dict) else {}


def _pass_on(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()
