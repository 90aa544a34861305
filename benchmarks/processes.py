"""Start what is measured as processes of their own, pin them apart, read their CPU and memory."""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

MEASURED_CORE = 0
OTHER_CORE = 1


class Process:
    """One child process under measurement."""

    def __init__(self, name: str, argv: list[str], *, core: int, env: dict[str, str] | None = None):
        self.name = name
        self.popen = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.pid = self.popen.pid
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(self.pid, {core})

    def ready_line(self) -> dict:
        """Wait for the line ``READY {json}`` on its standard output."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith("READY "):
                return json.loads(line[6:])
        raise RuntimeError(f"{self.name} ended before it was ready (exit {self.popen.wait()})")

    def cpu_seconds(self) -> float:
        """CPU time of all its threads (``schedstat``, nanoseconds; ``times`` has 10 ms ticks)."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def rss_mb(self) -> float:
        """Resident memory, in MB of 10^6 bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


@contextlib.contextmanager
def gateway_and_worker(
    *, port: int = 8071, admin_port: int = 9071, workers: int = 1
) -> Iterator[tuple[Process, Process]]:
    """Serve the sim engine behind a gateway; yields (gateway, first worker)."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pool: list[Process] = []
        urls = []
        for number in range(workers):
            urls.append(f"unix://{folder}/worker-{number}.sock")
            argv = [sys.executable, "-m", "nnrp_backend", "serve", "--engine", "sim"]
            worker = Process("worker", [*argv, "--listen", urls[-1]], core=OTHER_CORE)
            stack.callback(worker.stop)
            worker.ready_line()
            pool.append(worker)
        argv = [sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--admin-port", str(admin_port)]
        for url in urls:
            argv += ["--worker", url]
        gateway = Process("gateway", argv, core=MEASURED_CORE)
        stack.callback(gateway.stop)
        wait_for(f"http://127.0.0.1:{admin_port}/readyz")
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(0, {OTHER_CORE})
        yield gateway, pool[0]


def wait_for(url: str, timeout: float = 20.0) -> None:
    """Ask until the answer is 200."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise TimeoutError(url)


def heading(title: str) -> None:
    """Say what is measured, on what, with which versions."""
    names = ("nnrp-gateway", "uvicorn", "starlette", "msgspec", "uvloop", "httptools")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"# {title}")
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, ", end="")
    print(f"{os.cpu_count()} cores, {platform.machine()}; {versions}\n")
