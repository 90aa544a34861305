import asyncio
import gc

import pytest

from nnrp_backend.transport.tasks import TaskSet
from tests.support.waiting import until


async def test_a_task_is_named_after_its_set():
    tasks = TaskSet("pool")
    task = tasks.start(asyncio.sleep(0, "value"), name="probe")
    assert task.get_name() == "pool.probe"
    assert await task == "value"


async def test_a_task_is_kept_until_it_ends():
    tasks = TaskSet("kept")
    gate = asyncio.Event()
    ended = []

    async def work():
        await gate.wait()
        ended.append(True)

    tasks.start(work(), name="work")
    await asyncio.sleep(0)
    gc.collect()
    assert repr(tasks) == "<TaskSet 'kept' [1 running]>"
    gate.set()
    await until(lambda: ended)
    await tasks.join()
    assert len(tasks) == 0


async def test_a_failure_is_logged_with_the_task_name(caplog):
    tasks = TaskSet("set")

    async def fail():
        raise ValueError("broken")

    tasks.start(fail(), name="failing")
    await tasks.join()
    [record] = caplog.records
    assert record.getMessage() == "task set.failing failed"
    assert str(record.exc_info[1]) == "broken"


async def test_cancel_all_then_join_leaves_nothing_and_logs_nothing(caplog):
    tasks = TaskSet("set")
    started = [tasks.start(asyncio.Event().wait(), name=f"t{i}") for i in range(3)]
    assert set(tasks) == set(started)
    tasks.cancel_all()
    await tasks.join()
    assert all(task.cancelled() for task in started)
    assert not caplog.records


async def test_join_waits_for_tasks_started_meanwhile():
    tasks = TaskSet("set")
    second = []

    async def first():
        tasks.start(last(), name="second")

    async def last():
        await asyncio.sleep(0)
        second.append(True)

    tasks.start(first(), name="first")
    await tasks.join()
    assert second == [True]


async def test_join_from_inside_does_not_wait_for_itself():
    tasks = TaskSet("set")
    task = tasks.start(tasks.join(), name="joiner")
    async with asyncio.timeout(2):
        await task


def test_start_needs_a_running_loop():
    coro = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        TaskSet("set").start(coro, name="x")
    coro.close()
