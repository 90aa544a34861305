"""Hear at once that the client left, in whatever state its request is."""

from __future__ import annotations

import asyncio
from typing import cast

from starlette.types import Receive, Scope

from gateway.http.direct import EXTENSION, DirectListener, DirectWriter
from nnrp_backend.transport.tasks import TaskSet

__all__ = ["DisconnectWatch", "direct_writer"]


def direct_writer(scope: Scope) -> DirectWriter | None:
    """Return the writer that the server lends to this request, if it does."""
    return cast("DirectWriter | None", scope.get("extensions", {}).get(EXTENSION))


class DisconnectWatch:
    """Call ``on_lost`` of a listener when the client leaves.

    Under our own server that is a callback of its connection. Under another it is a task that waits
    in ``receive``; the request's body must have been read to its end.
    """

    __slots__ = ("_listener", "_receive", "_task", "_tasks", "_writer")

    def __init__(
        self, scope: Scope, receive: Receive, listener: DirectListener, tasks: TaskSet
    ) -> None:
        self._writer = direct_writer(scope)
        self._receive = receive
        self._listener = listener
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    def start(self) -> bool:
        """Begin to watch. False: the client has already left."""
        if self._writer is not None:
            return self._writer.listen(self._listener)
        self._task = self._tasks.start(self._wait(), name="disconnect")
        return True

    def stop(self) -> None:
        """Stop using ``receive``: somebody else is about to. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._listener.on_lost()
