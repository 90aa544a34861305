"""Iterate over one operation's events, or wait for its terminal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from nnrp_backend.client.operation import ClientOperation, OperationHandler, Terminal

__all__ = ["Answer", "OperationStream", "Submit"]

Submit = Callable[[OperationHandler], ClientOperation]


class Answer:
    """A handler that keeps only the terminal."""

    __slots__ = ("terminal",)

    def __init__(self) -> None:
        self.terminal: asyncio.Future[Terminal] = asyncio.get_running_loop().create_future()

    def on_events(self, bodies: list[bytes]) -> None:
        pass

    def on_progress(self, stage: int, percent_x100: int) -> None:
        pass

    def on_terminal(self, terminal: Terminal) -> None:
        if not self.terminal.done():
            self.terminal.set_result(terminal)


class OperationStream:
    """Read one operation's raw event bodies with `async for`; `terminal` is set afterwards.

    An async context manager: entering it submits, leaving it before the end cancels. The iteration
    ends with the operation, however that ended; `terminal` says how. Without a `window`, or with a
    worker that keeps none, events that are not read pile up here.
    """

    def __init__(self, submit: Submit, window: int | None = None) -> None:
        self.terminal: Terminal | None = None
        self._submit = submit
        self._window = window
        self._consumed = 0
        self._left = False
        self._operation: ClientOperation | None = None
        self._events: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "ended" if self.terminal else "open" if self._operation else "new"
        return f"<OperationStream {state} [{len(self._events)} events waiting]>"

    @property
    def operation(self) -> ClientOperation:
        """The operation itself, once the context was entered."""
        if self._operation is None:
            raise RuntimeError("enter the stream with `async with` first")
        return self._operation

    async def __aenter__(self) -> Self:
        self._operation = self._submit(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.operation.cancel()
        self._left = True
        self._events.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._waiter is not None:
            raise RuntimeError("a stream has one reader at a time")
        while not self._events:
            if self.terminal is not None:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        body = self._events.popleft()
        self._count()
        return body

    def _count(self) -> None:
        """Open the window anew once half of it has been read."""
        if self._window is None:
            return
        self._consumed += 1
        if self._consumed * 2 >= self._window:
            self._consumed = 0
            self.operation.grant(self._window)

    # --- OperationHandler -------------------------------------------------------------------------

    def on_events(self, bodies: list[bytes]) -> None:
        if not self._left:
            self._events.extend(bodies)
            self._wake()

    def on_progress(self, stage: int, percent_x100: int) -> None:
        pass

    def on_terminal(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
