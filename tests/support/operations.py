"""A server operation that only remembers what it was told."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

from nnrp_backend.protocol.constants import PERCENT_UNKNOWN, PriorityClass
from nnrp_backend.protocol.session import Trace
from nnrp_backend.server import OperationEvents


class FakeOperation:
    """Stand in for `ServerOperation`, without a connection.

    `sent` has everything in order: ("event", JSON), ("progress", stage), ("retry_after", ms), and
    the terminal as ("complete", JSON, status), ("drop", reason) or ("abort_connection",). After the
    terminal nothing is remembered, as nothing would be sent.
    """

    id = 901
    frame_id = 1
    transport = "memory"

    def __init__(
        self,
        payload: bytes | dict[str, Any],
        *,
        progress: bool = False,
        peer_is_ours: bool = False,
    ) -> None:
        self.payload = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.priority_class: int = PriorityClass.BALANCED
        self.deadline_unix_ms: int | None = None
        self.trace: Trace | None = None
        self.received_at = time.monotonic()
        self.handler: OperationEvents | None = None
        self.done = False
        self.sent: list[tuple[Any, ...]] = []
        self.credit: int | None = None
        self.session = SimpleNamespace(peer_is_ours=peer_is_ours)
        self._hears_progress = progress
        self._granted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<FakeOperation [{len(self.sent)} sent]>"

    # --- what a test reads ------------------------------------------------------------------------

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events sent so far, without the terminal."""
        return [entry[1] for entry in self.sent if entry[0] == "event"]

    @property
    def text(self) -> str:
        """The text of all deltas."""
        return "".join(event.get("delta", "") for event in self.events)

    @property
    def terminal(self) -> tuple[Any, ...] | None:
        """The last entry, when it ended the operation."""
        return self.sent[-1] if self.done else None

    @property
    def error(self) -> dict[str, Any]:
        """The `error` of a `response.error` terminal."""
        assert self.terminal is not None
        assert self.terminal[1]["type"] == "response.error"
        return self.terminal[1]["error"]

    # --- what a test does -------------------------------------------------------------------------

    def grant(self, credit: int | None) -> None:
        """Replace the window, as a CREDIT_UPDATE does."""
        self.credit = credit
        self._granted.set()

    # --- ServerOperation --------------------------------------------------------------------------

    def set_credit(self, window: int | None) -> None:
        self.grant(window)

    @property
    def ready(self) -> bool:
        return self.credit is None or self.credit > 0

    async def wait_ready(self) -> None:
        while not (self.ready or self.done):
            self._granted.clear()
            await self._granted.wait()

    def send_event(self, body: bytes) -> None:
        if not self.done:
            self.sent.append(("event", json.loads(body)))
            if self.credit is not None:
                self.credit -= 1

    def send_progress(self, stage: int, percent_x100: int = PERCENT_UNKNOWN) -> None:
        if not self.done and self._hears_progress:
            self.sent.append(("progress", stage))

    def retry_after(self, ms: int) -> None:
        if not self.done:
            self.sent.append(("retry_after", ms))

    def complete(self, body: bytes, status_code: int = 200) -> bool:
        return self._end("complete", json.loads(body), status_code)

    def drop(self, reason: int, diagnostic: str = "") -> None:
        self._end("drop", reason)

    def abort_connection(self) -> None:
        self._end("abort_connection")

    def lose(self, reason: int) -> None:
        """Lose the connection: the handler hears of it when the operation is done already."""
        self._end("lost")
        assert self.handler is not None
        self.handler.on_cancel(reason, True)

    def _end(self, *entry: Any) -> bool:
        if self.done:
            return False
        self.sent.append(entry)
        self.done = True
        self._granted.set()
        return True
