"""A stand-in for EngineCore (`engine_child`) lives below a stand-in for a worker (`worker`)."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from importlib.metadata import entry_points

import psutil
import pytest

from nnrp_backend.adapter.vllm_process import (
    PLUGIN,
    WORKER_PID,
    Interrupted,
    end_with_worker,
    interruptible,
    mark_worker,
)
from tests.support.waiting import until

PR_GET_PDEATHSIG = 2

WORKER = """
import multiprocessing, os, sys, time
from nnrp_backend.adapter.vllm_process import mark_worker
from tests.nnrp_backend.adapter.test_vllm_process import engine_child

if __name__ == "__main__":
    mark_worker(os.environ)
    context = multiprocessing.get_context("spawn")
    ready, told = context.Pipe()
    child = context.Process(target=engine_child, args=(told, sys.argv[1]))
    child.start()
    print(child.pid, ready.recv(), flush=True)
    time.sleep(600)
"""


def engine_child(told: "multiprocessing.connection.Connection", when: str) -> None:
    """What every process of vLLM does, in the order given by the test."""
    if when == "orphaned":
        told.send("waits for its parent to die")
        while multiprocessing.parent_process().is_alive():
            time.sleep(0.01)
        end_with_worker()
    else:
        end_with_worker()
        told.send(signal.getsignal(signal.SIGINT).name)
    time.sleep(600)


def death_signal() -> int:
    value = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(value), 0, 0, 0) == 0
    return value.value


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Worker:
    def __init__(self, when: str) -> None:
        command = [sys.executable, "-c", WORKER, when]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        pid, _, self.said = self.process.stdout.readline().strip().partition(" ")
        self.child = int(pid)

    async def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        try:
            await until(lambda: gone(self.child))
        except AssertionError:
            os.kill(self.child, signal.SIGKILL)
            raise


@pytest.fixture
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    worker = Worker(request.param)
    yield worker
    await worker.end()


@pytest.mark.parametrize("worker", ["at once"], indirect=True)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV], ids=str
)
async def test_the_engine_dies_with_its_worker(worker: Worker, number: signal.Signals) -> None:
    assert not gone(worker.child)
    worker.process.send_signal(number)
    await until(lambda: gone(worker.child))


@pytest.mark.parametrize("worker", ["orphaned"], indirect=True)
async def test_an_engine_that_was_already_orphaned_ends(worker: Worker) -> None:
    assert not gone(worker.child)
    worker.process.kill()
    await until(lambda: gone(worker.child))


@pytest.mark.parametrize("worker", ["at once"], indirect=True)
async def test_the_engine_leaves_ctrl_c_to_its_worker(worker: Worker) -> None:
    assert worker.said == "SIG_IGN"


def test_the_worker_itself_may_outlive_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_PID, raising=False)
    before = signal.getsignal(signal.SIGINT)
    mark_worker(os.environ)
    assert os.environ[WORKER_PID] == str(os.getpid())
    end_with_worker()
    assert death_signal() == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_vllm_that_is_not_ours_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_PID, raising=False)
    end_with_worker()
    assert death_signal() == 0


def test_vllm_finds_the_plugin() -> None:
    (found,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == PLUGIN]
    assert found.load() is end_with_worker


def block_and_signal(number: signal.Signals) -> None:
    with interruptible():
        signal.raise_signal(number)


class TestInterruptible:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
    async def test_a_blocked_loop_can_be_interrupted(self, number: signal.Signals) -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        try:
            with pytest.raises(Interrupted):
                block_and_signal(number)
            # The loop's own handler, which could not run meanwhile, has not been cheated.
            await asyncio.wait_for(stopped.wait(), 5)
        finally:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def test_an_engine_that_loads_is_not_waited_for(self) -> None:
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        child.start()
        with pytest.raises(Interrupted):
            block_and_signal(signal.SIGTERM)
        child.join(5)
        assert child.exitcode == -signal.SIGKILL

    async def test_handlers_are_put_back(self) -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        with interruptible():
            assert signal.getsignal(signal.SIGTERM) is not before[0]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    async def test_a_loop_that_runs_something_else_is_not_disturbed(self) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        try:
            with interruptible():
                loop.call_soon(signal.raise_signal, signal.SIGTERM)
                await asyncio.wait_for(stopped.wait(), 5)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
