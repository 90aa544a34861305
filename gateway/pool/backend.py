"""One worker: its connection, what it serves, and whether it can take work now.

The state is synchronous and changes in `attach`, `detach` and the listener's callbacks; `run` is
the only coroutine and does the waiting.

    CONNECTING --attach--> READY <--probe answered / missed--> DEGRADED
        ^                    | \\--drain--> DRAINING
        |                    v                 |
        '---- DOWN <------detach---------------'
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ssl import SSLContext
from typing import Any, Final

from gateway.pool.backoff import Backoff
from gateway.pool.interfaces import Client, ClientFactory, Clock, Timer, Worker
from nnrp_backend.client import ClientError, NotConnected
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.operations import CHAT, CHUNKS_FINAL
from nnrp_backend.protocol.constants import PressureLevel
from nnrp_backend.transport.endpoint import Endpoint

__all__ = ["Backend", "BackendState", "WorkerSpec"]

logger = logging.getLogger(__name__)

#: How often a connected worker is asked again what it serves: models come and go (LoRA, reloads).
REFRESH_INTERVAL: Final = 30.0

#: A connection that lived shorter than this is followed by a pause, a longer one is not.
STABLE_AFTER: Final = 1.0

#: Why a connection ends that nobody has lost.
CLOSED_HERE: Final = "closed here"

#: How long "full" holds when the worker does not say: a lost report must not close it for good.
DEFAULT_PAUSE: Final = 1.0


class BackendState(StrEnum):
    """What a worker is good for."""

    CONNECTING = "connecting"
    READY = "ready"
    DEGRADED = "degraded"
    """Connected, but it missed a liveness probe or did not answer a CANCEL: no new work."""
    DRAINING = "draining"
    """It ends what it has and takes no more."""
    DOWN = "down"
    """Not connected; the next attempt comes after a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A configured worker.

    Attributes:
        endpoint: `tcp://h:p`, `tls://h:p`, `unix:///path`, `nnrp://h:p` or `nnrps://h:p`.
        name: label in logs and metrics; the endpoint when empty.
        models: what it serves, for a worker that cannot say so itself.
        ssl: TLS context for `tls` and `nnrps`.
    """

    endpoint: str
    name: str = ""
    models: tuple[str, ...] = ()
    ssl: SSLContext | None = None


class Backend:
    """One worker of the pool.

    Attributes:
        state: see the module.
        worker: what requests may know of it; set while connected.
        in_flight: requests that the pool has given to it, over all its connections.
        epoch: counts connections; a request that died with one is not sent down the same again.
        record: its capability document as last heard, None when the last connection brought none.
        known: it has been asked what it serves, or configuration says it.
        connects, losses: counters.
        rtt: seconds that the last liveness probe took, None before the first.
        last_error: why the last attempt or connection ended, for a log or a status page.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        connect: ClientFactory,
        clock: Clock,
        on_change: Callable[[], None],
        backoff: Callable[[], Backoff] = Backoff,
        refresh_interval: float = REFRESH_INTERVAL,
    ) -> None:
        Endpoint.parse(spec.endpoint)  # a typing error is told at start-up, not on each attempt
        self.spec = spec
        self.name = spec.name or spec.endpoint
        self.state = BackendState.CONNECTING
        self.worker: Worker | None = None
        self.client: Client | None = None
        self.in_flight = 0
        self.epoch = 0
        self.record: CapabilityRecord | None = None
        self.known = bool(spec.models)
        self.connects = 0
        self.losses = 0
        self.rtt: float | None = None
        self.last_error = ""
        self._connect = connect
        self._clock = clock
        self._on_change = on_change
        self._refusals = backoff()
        self._flaps = backoff()
        self._refresh_interval = refresh_interval
        self._models: frozenset[str] = frozenset(spec.models)
        self._paused: Timer | None = None
        self._lost = asyncio.Event()
        self._woken = asyncio.Event()

    def __repr__(self) -> str:
        facts = [str(self.state)]
        if self.client is not None and self.worker is not None:
            facts.append("ours" if self.worker.ours else "foreign")
            facts.append(f"{self.in_flight} in flight of {self.client.granted_in_flight}")
        if self._paused is not None:
            facts.append("paused")
        facts.append("models: " + (", ".join(sorted(self._models)) or "unknown"))
        return f"<Backend {self.name} [{' | '.join(facts)}]>"

    # What the scheduler asks.

    def is_usable(self) -> bool:
        """Whether it takes work, now or as soon as it has room. May be asked from any thread."""
        client = self.client
        return self.state is BackendState.READY and client is not None and client.connected

    def has_room(self) -> bool:
        """Whether it can take one more request now. The granted number is enforced here."""
        client = self.client
        return (
            client is not None
            and self._paused is None
            and self.in_flight < client.granted_in_flight
            and client.available > 0
        )

    def serves(self, model: str, operation: str) -> bool:
        """Whether it serves a model by an operation, by what it last said.

        A worker that has no capability document and no configured models serves chat, which every
        worker must, of any model: only it can tell which.
        """
        if not self.known or (self._models and model not in self._models):
            return False
        if self.record is None:
            return operation == CHAT
        return bool(self._models) and self.record.serves(operation)

    def has_model(self, model: str) -> bool:
        """Whether it serves a model by some operation, by what it last said."""
        return model in self._models

    def models(self) -> Iterable[dict[str, Any]]:
        """Iterate over the cards of the models it serves, by what it last said. Any thread may."""
        record = self.record
        heard = record.models if record is not None else ()
        cards = {card["id"]: card for card in heard if isinstance(card.get("id"), str)}
        for model in self.spec.models or cards:
            yield cards.get(model) or {"id": model, "object": "model", "owned_by": self.name}

    # What changes the state.

    def attach(self, client: Client, record: CapabilityRecord | None) -> None:
        """Take a connected client into service.

        Raises:
            NotConnected: the connection was lost meanwhile.
        """
        if not client.connected:
            raise NotConnected(self.spec.endpoint)
        self.client = client
        self.epoch += 1
        self.connects += 1
        self.last_error = ""
        self._lost.clear()
        self.state = BackendState.DRAINING if client.draining else BackendState.READY
        # Another program may listen there now: what the last one declared does not bind it.
        self.record = record
        self._learn(client)
        logger.info("worker %s is %s", self.name, self.state)
        self._on_change()

    def detach(self, reason: str = "") -> None:
        """Let go of a connection that has ended, and of what was reported before it served."""
        self._resume()
        if self.client is None:
            return
        self.client = None
        self.worker = None
        self.losses += 1
        self.last_error = reason
        self.state = BackendState.DOWN
        self._lost.set()
        level = logging.INFO if reason == CLOSED_HERE else logging.WARNING
        logger.log(level, "worker %s is lost: %s", self.name, reason or "it closed the connection")
        self._on_change()

    def degrade(self) -> None:
        """Give it no new work until it answers a liveness probe."""
        if self.state is BackendState.READY:
            self.state = BackendState.DEGRADED
            logger.warning("worker %s is degraded", self.name)
            self._on_change()

    # nnrp_backend.client.ClientListener

    def on_lost(self, error: Exception | None) -> None:
        self.detach(str(error) if error else "")

    def on_drain(self) -> None:
        if self.state in (BackendState.READY, BackendState.DEGRADED):
            self.state = BackendState.DRAINING
            self._on_change()

    def on_probe(self, rtt: float | None) -> None:
        if rtt is None:
            self.degrade()
            return
        self.rtt = rtt
        if self.state is BackendState.DEGRADED:
            self.state = BackendState.READY
            self._on_change()

    def on_pressure(self, window: int | None, level: int, retry_after_ms: int) -> None:
        """Stop or go. Between them the number in flight is a better guide than a stale window."""
        self._resume()
        full = level >= PressureLevel.HARD and window == 0
        if full or level >= PressureLevel.PAUSED:
            pause = retry_after_ms / 1000 or DEFAULT_PAUSE
            self._paused = self._clock.call_later(pause, self._pause_over)
        self._on_change()

    def _pause_over(self) -> None:
        self._paused = None
        self._on_change()

    def _resume(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None

    # The waiting.

    def wake(self) -> None:
        """Try to connect now, not at the end of a pause: somebody knows that the worker is back."""
        self._refusals.succeeded()
        self._flaps.succeeded()
        self._woken.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            self._woken.clear()
            self.state = BackendState.CONNECTING
            client = self._connect(self)
            pause = 0.0
            try:
                await client.connect()
                self.attach(client, await self._ask(client))
                self._refusals.succeeded()
                attached = self._clock.time()
                await self._stay(client)
                if self._clock.time() - attached < STABLE_AFTER:
                    pause = self._flaps.failed()
                else:
                    self._flaps.succeeded()
            except (ClientError, TimeoutError) as error:
                pause = self._failed(str(error) or "it does not say what it serves")
            except Exception as error:
                # Without this loop the worker would be gone until the gateway restarts.
                logger.exception("the connection to %s failed unexpectedly", self.name)
                pause = self._failed(type(error).__name__)
            finally:
                await client.close()
                self.detach(CLOSED_HERE)
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt; not at all if a wake came during the last one."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _stay(self, client: Client) -> None:
        """Return when the connection is lost; ask now and then what is served."""
        while True:
            try:
                async with asyncio.timeout(self._refresh_interval):
                    await self._lost.wait()
                return
            except TimeoutError:
                await self._refresh(client)

    async def _refresh(self, client: Client) -> None:
        try:
            record = await self._ask(client)
        except (ClientError, TimeoutError) as error:
            # What it said before holds: the connection's own probes judge its health.
            logger.info("worker %s did not say again what it serves: %s", self.name, error)
            return
        if client is self.client:
            self.record = record or self.record
            self._learn(client)
            self._on_change()

    async def _ask(self, client: Client) -> CapabilityRecord | None:
        try:
            return await client.capabilities()
        except ProfileError as error:
            # A list that cannot be read is as good as none: configuration may say what it serves.
            logger.info("worker %s does not say what it serves: %s", self.name, error)
            return None

    def _learn(self, client: Client) -> None:
        self.known = True
        final_chunks = self.record is not None and self.record.extends(CHUNKS_FINAL)
        self.worker = Worker(self.name, client.peer_is_ours, final_chunks)
        self._models = frozenset(card["id"] for card in self.models())

    def _failed(self, reason: str) -> float:
        """Note a failed attempt and return the seconds until the next."""
        if reason != self.last_error:
            logger.warning("worker %s cannot be used: %s", self.name, reason)
        self.last_error = reason
        self.state = BackendState.DOWN
        self._on_change()
        return self._refusals.failed()
