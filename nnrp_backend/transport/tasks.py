"""The one place that starts asyncio tasks.

The event loop keeps only weak references to tasks, and an exception in a task that nobody awaits is
reported when the garbage collector finds it, if ever. A `TaskSet` names its tasks, keeps them until
they end, logs what they raise, and ends them all at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

__all__ = ["TaskSet"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TaskSet:
    """Start named tasks, keep them until they end, and log the exceptions they raise."""

    __slots__ = ("_tasks", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<TaskSet {self.name!r} [{len(self._tasks)} running]>"

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._tasks))

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start `coro` as a task called `<set>.<name>` on the running loop."""
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel_all(self) -> None:
        """Ask every running task to stop; `join` waits until they have."""
        for task in tuple(self._tasks):
            task.cancel()

    async def join(self) -> None:
        """Wait until no task is left, those that running tasks start meanwhile included.

        Exceptions of the tasks are not raised here: they were logged when they happened.
        """
        current = asyncio.current_task()
        while waiting := [task for task in self._tasks if task is not current]:
            await asyncio.wait(waiting)
            # The done callbacks that forget the tasks run in the same turn as this one.
            await asyncio.sleep(0)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)
