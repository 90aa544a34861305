"""Child workers: small programs that behave, or do not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.supervisor.children import Child, Restarts, WorkerStartError
from tests.support.waiting import until

Make = Callable[..., Child]

SERVE = """\
import signal, sys
print("READY", '{"pid": 1, "models": ["m"]}', flush=True)
signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Make]:
    children: list[Child] = []

    def make(program: str, **options: object) -> Child:
        # Signals are blocked before READY, so that none is lost before sigwait.
        block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        command = [sys.executable, "-c", block + program]
        made = Child("worker-0", command, socket_path=tmp_path / "w.sock", **options)  # type: ignore[arg-type]
        children.append(made)
        return made

    yield make
    for each in children:
        await each.stop(0)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_is_started_when_it_says_so(child: Make) -> None:
    worker = child("print('hello', flush=True)\n" + SERVE)
    assert await worker.start() == {"pid": 1, "models": ["m"]}
    assert worker.pid is not None
    assert repr(worker) == f"<Child worker-0 [pid {worker.pid}]>"


async def test_what_else_it_prints_goes_to_our_standard_error(
    child: Make, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    await child("print('hello', flush=True)\nimport os; os.write(2, b'oh')\n" + SERVE).start()
    assert sorted(capfdbinary.readouterr().err) == sorted(b"hello\noh")


async def test_a_stale_socket_is_removed_first(child: Make, tmp_path: Path) -> None:
    (tmp_path / "w.sock").touch()
    await child(SERVE).start()
    assert not (tmp_path / "w.sock").exists()


async def test_its_environment_is_ours_and_more(child: Make) -> None:
    program = "import os; assert os.environ['PATH'] and os.environ['EXTRA'] == '1'\n" + SERVE
    await child(program, environment={"EXTRA": "1"}).start()


async def test_a_worker_that_ends_before_it_is_ready_says_how(child: Make) -> None:
    with pytest.raises(WorkerStartError, match="worker-0 ended with code 3") as caught:
        await child("raise SystemExit(3)").start()
    assert caught.value.code == 3


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    worker = Child("worker-0", [str(tmp_path / "none")], socket_path=tmp_path / "w.sock")
    with pytest.raises((WorkerStartError, FileNotFoundError)):
        await worker.start()
    await worker.stop(1)


async def test_a_ready_line_without_facts_is_still_ready(child: Make) -> None:
    assert await child(SERVE.replace("{", "[").replace("}", "]")).start() == {}


async def test_it_ends_when_asked(child: Make) -> None:
    worker = child(SERVE)
    await worker.start()
    pid = worker.pid
    assert pid is not None
    await worker.stop(10)
    assert worker.pid is None
    assert not is_running(pid)
    assert repr(worker) == "<Child worker-0 [not running]>"
    await worker.stop(10)


async def test_it_is_killed_when_it_does_not_listen(child: Make) -> None:
    worker = child("print('READY', '{}', flush=True)\nimport time; time.sleep(60)")
    await worker.start()
    pid = worker.pid
    assert pid is not None
    await worker.stop(0.05)
    assert not is_running(pid)


async def test_it_is_started_again_when_it_dies(child: Make) -> None:
    worker = child(SERVE, restarts=Restarts(first=0.01))
    await worker.start()
    first = worker.pid
    assert first is not None
    serving: list[int | None] = []
    keeping = asyncio.create_task(worker.keep_running(lambda: serving.append(worker.pid)))
    os.kill(first, signal.SIGKILL)
    await until(lambda: serving)
    assert serving == [worker.pid]
    assert worker.pid not in (None, first)
    keeping.cancel()


async def test_it_is_started_again_until_it_works(
    child: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mark = tmp_path / "works"
    program = f"import os, sys\nif not os.path.exists({str(mark)!r}): sys.exit(7)\n" + SERVE
    mark.touch()
    worker = child(program, restarts=Restarts(first=0.01))
    await worker.start()
    first = worker.pid
    assert first is not None
    mark.unlink()
    serving: list[int | None] = []
    keeping = asyncio.create_task(worker.keep_running(lambda: serving.append(worker.pid)))
    os.kill(first, signal.SIGKILL)
    await until(lambda: "ended with code 7 before it was ready" in caplog.text)
    assert serving == [], "a start that fails is none"
    mark.touch()
    await until(lambda: caplog.text.count("worker-0 is ready") == 2)
    assert serving == [worker.pid]
    keeping.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's leash is Linux's")
async def test_it_ends_with_us_however_we_end(tmp_path: Path) -> None:
    program = f"""\
import asyncio, os, sys
from pathlib import Path
from gateway.supervisor.children import Child

async def main():
    child = Child("w", [sys.executable, "-c", {SERVE!r}], socket_path=Path({str(tmp_path)!r}, "s"))
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(pid))


def test_pauses_grow_and_start_over_after_a_long_run() -> None:
    restarts = Restarts(first=1, most=5, stable_after=60)
    assert [restarts.pause(0) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert restarts.pause(61) == 1
    assert restarts.pause(1) == 2
