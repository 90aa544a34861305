"""An end for clients that begin a request and do not go on with it.

uvicorn bounds how long a connection may be idle between two requests, and nothing else: a client
that sends half a head would keep its connection for ever, and a few thousand of them all there are.
One timer looks at every connection now and then, which costs less than a timer for each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from gateway.http.refusals import SlowRequestError

__all__ = ["SlowRequests"]

#: Seconds for a whole head, and for the rest of a body whose request has been answered already.
HEAD_SECONDS: Final = 60.0
#: Seconds of silence within a body.
BODY_SECONDS: Final = 60.0
INTERVAL: Final = 5.0

#: What a client owes: while it stays the same, its time runs.
_Owed: TypeAlias = tuple[float, int]


class SlowRequests:
    """Look at connections, and refuse those whose client takes too long.

    Args:
        connections: uvicorn's protocols, with those of `gateway.http.direct` among their bases.
    """

    def __init__(
        self, connections: Collection[Any], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._owed: dict[Any, tuple[_Owed, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<SlowRequests [{len(self._owed)} of {len(self._connections)} awaited]>"

    def start(self) -> None:
        """Begin to look, in the running loop."""
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._run)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self.start()
        self.look(self._clock())

    def look(self, now: float) -> None:
        """Look at every connection once."""
        before, self._owed = self._owed, {}
        for connection in tuple(self._connections):
            owed = _owed(connection)
            if owed is None:
                continue
            was, since = before.get(connection, (None, now))
            if was != owed:
                since = now
            self._owed[connection] = (owed, since)
            if now - since >= owed[0]:
                connection.refuse(SlowRequestError())


def _owed(connection: Any) -> _Owed | None:
    """Return what a client owes: the seconds it has, and what changes as it goes on."""
    cycle = connection.cycle
    if connection.transport.is_closing():
        return None
    if cycle is None or cycle.response_complete:
        idle = connection.timeout_keep_alive_task is not None
        return None if idle else (HEAD_SECONDS, -1)
    return (BODY_SECONDS, connection.reads) if cycle.more_body else None
