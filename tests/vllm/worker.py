"""`nnrp-backend serve --engine vllm` as a child process, with a look at what it leaves behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / ".models"
TINY = MODELS / "tiny"
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct"

TINY_FLAGS = (
    "--max-model-len", "2048", "--max-num-seqs", "16", "--dtype", "float32",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    # Reasons only where a request asks its template for `thinking`.
    "--reasoning-parser", "deepseek_v3",
    "--enable-prompt-tokens-details",
    "--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}',
)  # fmt: skip

START_SECONDS = 150
STOP_SECONDS = 30


class Program:
    """One of our commands, below which vLLM runs; its stderr goes to a file."""

    def __init__(self, command: str, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-")
        self.folder = Path(self._folder.name)
        self.log = self.folder / "log"
        environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", **os.environ}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name(command)),
                    *(argument.replace("FOLDER", str(self.folder)) for argument in arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.stop()
        for process in self.left_behind(within=0):
            process.kill()
        self.process.stdout.close()
        self._folder.cleanup()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the program and return its exit status."""
        self.engines()
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop\n{self.tail()}") from None

    def engines(self) -> list[psutil.Process]:
        """Return the EngineCore processes below, and remember all that is below."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self._seen.update(below)
        return [process for process in below if "EngineCore" in process.name()]

    def left_behind(self, within: float = 5.0) -> list[psutil.Process]:
        """Return the processes, once seen below the program, that outlive it by some seconds."""
        deadline = time.monotonic() + within
        while True:
            left = [process for process in self._seen if not gone(process)]
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(0.02)

    def tail(self, lines: int = 40) -> str:
        return "".join(self.log.read_text().splitlines(keepends=True)[-lines:])


async def started(predicate: Callable[[], object]) -> None:
    """Wait for a model to be loaded; look seldom, for the processors are needed for that."""
    async with asyncio.timeout(START_SECONDS):
        while not predicate():
            await asyncio.sleep(0.25)


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Worker(Program):
    """A worker on a unix socket.

    Attributes:
        ready: what its READY line says, once `wait_ready` has returned.
    """

    def __init__(self, model: Path = TINY, flags: Sequence[str] = TINY_FLAGS) -> None:
        super().__init__(
            "nnrp-backend", "serve", "--engine", "vllm", "--model", str(model),
            "--listen", "unix://FOLDER/socket", "--admin-port", "0", "--", *flags,
        )  # fmt: skip
        self.url = f"unix://{self.folder}/socket"
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> Self:
        line = self.process.stdout.readline()
        if not line.startswith("READY "):
            self.process.wait(STOP_SECONDS)
            raise AssertionError(f"exit status {self.process.returncode}\n{self.tail()}")
        self.ready = json.loads(line.removeprefix("READY "))
        self.engines()
        return self

    async def wait_for_engine(self) -> None:
        """Wait only until EngineCore loads the model."""
        await started(lambda: "Initializing a V1 LLM engine" in self.log.read_text())
        assert len(self.engines()) == 1

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.ready['admin']}/metrics", timeout=5) as answer:
            return answer.read().decode()

    def running(self) -> int:
        """Return vLLM's own count of running requests."""
        return running(self.metrics())


def running(metrics: str) -> int:
    values = re.findall(r"^vllm:num_requests_running{[^}]*} (\S+)$", metrics, re.MULTILINE)
    assert values, "no vllm:num_requests_running in the metrics"
    return int(sum(float(value) for value in values))
