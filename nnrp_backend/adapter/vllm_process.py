"""No engine process outlives its worker.

vLLM runs the model in processes of its own (EngineCore, and below it one per GPU). They end with
the worker when it ends in order, but a worker that is killed leaves them behind, each with its
memory and its GPU. So each of these processes asks the kernel to be killed together with its
parent.

vLLM has a place for that: it calls the plugins of the group `vllm.general_plugins` in each of its
processes before it builds anything there. `end_with_worker` is such a plugin, and does nothing
unless it runs below a worker.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

PLUGIN: Final = "nnrp_backend"
"""The plugin's name as an entry point, which `VLLM_PLUGINS` may list."""

WORKER_PID: Final = "NNRP_WORKER_PID"
"""Environment variable that marks the processes below a worker, with the worker's process id."""

_PR_SET_PDEATHSIG: Final = 1


def mark_worker(environ: MutableMapping[str, str]) -> None:
    """Make this process the worker that the engine's processes end with."""
    environ[WORKER_PID] = str(os.getpid())


def end_with_worker() -> None:
    """Be killed when the parent process is gone, and leave Ctrl-C to the worker.

    The kernel sends the signal when the *thread* that started this process ends, so a worker
    must start its engine from a thread that lives as long as it does.
    """
    worker = os.environ.get(WORKER_PID)
    if worker is None or worker == str(os.getpid()):
        return
    if threading.current_thread() is threading.main_thread():
        # A terminal's Ctrl-C goes to the whole foreground group; the worker wants to finish
        # what is running before it ends the engine.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # It died before the kernel knew that this process cares.
        os._exit(1)


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


class Interrupted(BaseException):
    """SIGTERM or SIGINT came while something blocked the loop.

    Not KeyboardInterrupt: vLLM's `zmq_socket_ctx` swallows that one and then waits for an engine
    whose greeting it has lost.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGINT raise `Interrupted` in the current task while it blocks the loop.

    Loading a model takes minutes in which the loop's own signal handlers cannot run. They do run
    afterwards: the signal has reached the loop's wake-up file as well. When another task is
    running, the loop is not blocked and the handlers of the loop are enough.

    The process's children are killed. An engine that loads has nothing to save, and vLLM would
    first wait for it to answer a SIGTERM, which it does not do while it loads.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if asyncio.current_task(loop) is task:
            for child in multiprocessing.active_children():
                child.kill()
            raise Interrupted

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
