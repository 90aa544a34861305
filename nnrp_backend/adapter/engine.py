"""The interface between the adapter and whatever generates tokens.

An engine knows nothing of NNRP: it gets an `EngineRequest` whose body is an ordinary OpenAI request
and answers with ordinary OpenAI JSON. It refuses a request by raising `ProfileError`.

Exceptions:

    Exception
    ├── EngineDead          the engine is gone for good; the worker must exit
    ├── EngineConfigError   the engine cannot start with these settings
    │   └── EngineInterrupted   a signal ended the start
    └── DropConnection      fault injection: close the operation's whole connection
"""

from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, Protocol

from nnrp_backend.profile.capabilities import CapabilityRecord


class EngineRequest(NamedTuple):
    """One unit of work for an engine."""

    id: str
    """Unique in this process and made by the adapter; a client's own id is never used here."""
    operation: str
    """A profile operation that the engine's capability record advertises."""
    body: dict[str, Any]
    """The OpenAI request, already normalised. The engine owns it and may change it.

    `stream_options.include_usage` is always true on a streamed request, whatever the client asked
    for, and a client's `request_id` has been taken out.
    """
    stream: bool
    """The body's `stream`: whether `Engine.stream` or `Engine.call` answers it."""
    priority: int = 0
    """Lower runs first; 0 is the ordinary class. An engine without priorities ignores it."""
    traceparent: str | None = None
    """W3C trace context of the caller."""


class Pressure(NamedTuple):
    """How busy an engine is."""

    running: int
    """Requests that are being computed."""
    waiting: int
    """Requests that the engine holds back."""
    capacity: int = 0
    """Requests that can run at once; 0 where the engine cannot say."""
    kv_usage: float | None = None
    """Used part of the key-value cache, 0 to 1; None where there is none."""


class EngineDead(Exception):
    """The engine process or thread is gone and will not come back."""

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(f"the {engine} engine died: {reason}")
        self.engine = engine
        self.reason = reason


class EngineConfigError(Exception):
    """The engine cannot start with these settings; the text is one line for the operator."""

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(f"{engine} engine: {reason}")
        self.engine = engine
        self.reason = reason


class EngineInterrupted(EngineConfigError):
    """SIGTERM or SIGINT came while the engine blocked the loop to load its model."""

    def __init__(self, engine: str) -> None:
        super().__init__(engine, "interrupted while the model was loading")


class DropConnection(Exception):
    """Ask the adapter to close the operation's connection the way a killed worker would."""

    def __init__(self) -> None:
        super().__init__("the engine asked for the connection to be dropped")


class Engine(Protocol):
    """What the adapter needs from a source of tokens.

    Cancelling the task that awaits `call` or iterates `stream`, or closing the generator, must
    abort the work in the engine. Everything runs on the worker's event loop and must not block it,
    but `start`, which may, and `pressure` and `metrics`, which are called from other threads too.
    """

    name: str
    """`sim`, `vllm`, ...: shown in capabilities, diagnostics and metrics."""
    version: str
    """The engine's own version."""

    async def start(self) -> None:
        """Load the model. Returns when requests can be served.

        Raises:
            EngineConfigError: the settings cannot work.
            EngineInterrupted: a signal came that the loop could not hear.
        """

    async def close(self) -> None:
        """Free everything, also after a failed or cancelled start. May be called twice."""

    def capabilities(self) -> CapabilityRecord:
        """Say what is really served; valid once started."""

    async def call(self, request: EngineRequest) -> bytes:
        """Answer a request that is not streamed with the whole response body as JSON.

        Raises:
            ProfileError: the engine refuses the request or failed on it.
            EngineDead: the engine is gone.
        """

    def stream(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        """Answer a streamed request with upstream chunks, one JSON object each.

        No SSE framing and no `[DONE]`. The chunks end with one whose `choices` is empty and that
        carries `usage`. Same errors as `call`, at the first iteration or at any later one.
        """

    def pressure(self) -> Pressure:
        """Say how busy the engine is. Cheap: called for each operation that asks diagnostics."""

    async def wait_dead(self) -> EngineDead:
        """Wait until the engine dies, and say why. Never returns after an orderly `close`."""

    def metrics(self) -> bytes:
        """Return the engine's own metrics in the Prometheus text format; b"" where it has none."""
