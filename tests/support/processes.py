"""Run the project's own commands as processes, and end them whatever happens."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 30.0
"""A process imports a lot on a busy machine before it says that it is ready."""

STOP_SECONDS = 15.0

READY = "READY "
"""How the line begins that a worker prints when it serves."""


class Running:
    """A process, and what it has said so far, line by line."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [command(name), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._said = threading.Condition()
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), name=f"{name} reader")
            for stream, lines in (
                (self.process.stdout, self.stdout),
                (self.process.stderr, self.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()

    def __repr__(self) -> str:
        return f"<Running pid {self.pid} exit {self.process.poll()}>"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """Everything that it has written to stderr."""
        return "\n".join(self.stderr)

    def wait_for(self, wanted: Callable[[str], object]) -> str:
        """Wait for a line of its output; return it."""

        def found() -> str | None:
            return next((line for line in [*self.stdout, *self.stderr] if wanted(line)), None)

        with self._said:
            self._said.wait_for(lambda: found() or not self._open, START_SECONDS)
            line = found()
        assert line is not None, f"{self!r} did not say it; stderr:\n{self.log}"
        return line

    def kill(self) -> None:
        """End it the hard way, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self!r} did not end; stderr:\n{self.log}") from None
        finally:
            for reader in self._readers:
                reader.join()

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._said:
                    lines.append(line.rstrip("\n"))
                    self._said.notify_all()
        with self._said:
            self._open -= 1
            self._said.notify_all()


def command(name: str) -> str:
    """Return the path of a command that is installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def run(name: str, *arguments: object, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [command(name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextmanager
def running(name: str, *arguments: object, ready: str) -> Iterator[Running]:
    """Run a command until the block ends; enter it once a line begins with `ready`.

    At the end the process gets SIGTERM, and time to stop in order.
    """
    process = Running(name, *arguments)
    try:
        process.wait_for(lambda line: line.startswith(ready))
        yield process
    finally:
        process.stop()


@contextmanager
def worker(*arguments: object) -> Iterator[tuple[Running, dict[str, Any]]]:
    """Run `nnrp-backend serve`; yield it with what its READY line says."""
    with running("nnrp-backend", "serve", *arguments, ready=READY) as process:
        line = process.wait_for(lambda line: line.startswith(READY))
        yield process, json.loads(line.removeprefix(READY))
