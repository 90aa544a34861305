"""vLLM in this process: its `AsyncLLM` and its own OpenAI serving objects, without its HTTP server.

The only module that imports vLLM, and only when an engine starts. What the engine calls of it is
gathered in `Vllm`, so that a new version is one function to look at and tests can stand in for it.

    start     environment -> import -> version -> arguments -> EngineCore process -> serving objects
    stream    chat request -> vLLM's OpenAIServingChat -> SSE strings -> JSON bytes
    call      the same, for an answer that is not streamed
    close     ends the EngineCore process
"""

import asyncio
import gc
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import pydantic
from prometheus_client import CollectorRegistry, Metric, generate_latest
from starlette.datastructures import State
from starlette.requests import Request

from nnrp_backend.adapter import vllm_errors
from nnrp_backend.adapter.engine import (
    EngineConfigError,
    EngineDead,
    EngineInterrupted,
    EngineRequest,
    Pressure,
)
from nnrp_backend.adapter.vllm_args import (
    base_environment,
    check_flags,
    cpu_environment,
    serve_arguments,
)
from nnrp_backend.adapter.vllm_process import Interrupted, interruptible, mark_worker
from nnrp_backend.adapter.vllm_versions import check_version
from nnrp_backend.profile.capabilities import CapabilityRecord, OperationCapability
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import CHAT, MODELS_LIST

logger = logging.getLogger(__name__)

DEATH_POLL_SECONDS: Final = 0.25
"""How often the engine is asked whether it lives; a request in flight learns it at once."""

_PREFIX: Final = "data: "
_ERROR: Final = 'data: {"error"'
_DONE: Final = "data: [DONE]"
_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_KV_USAGE: Final = "vllm:kv_cache_usage_perc"


class Vllm(NamedTuple):
    """What the engine calls of vLLM."""

    version: str
    on_cpu: bool
    parse: Callable[[list[str]], Any]
    """Arguments of `vllm serve` to its checked namespace."""
    open_client: Callable[[Any], AbstractAsyncContextManager[Any]]
    """Start the engine; the value is vLLM's `EngineClient`."""
    init_state: Callable[..., Any]
    """Make the serving objects and put them into a state."""
    chat_request: Any
    """The model of a chat completion request."""
    describe: Callable[[Exception], Any]
    """An exception to vLLM's `ErrorResponse`."""
    dead_error: type[Exception]
    registry: Callable[[], CollectorRegistry]


def create(model: str | None, flags: Sequence[str]) -> "VllmEngine":
    """Make the engine of `--engine vllm --model MODEL -- FLAGS`; starts and imports nothing.

    Raises:
        EngineConfigError: no model, or a flag that a worker cannot have.
    """
    if not model:
        raise EngineConfigError("vllm", "--model is missing: a hub id or a local folder")
    return VllmEngine(model, flags)


class VllmEngine:
    """Serve chat completions from vLLM."""

    name = "vllm"

    def __init__(
        self,
        model: str,
        flags: Sequence[str] = (),
        *,
        load: Callable[[str, Sequence[str]], Vllm] | None = None,
    ) -> None:
        self.model = model
        self.version = ""
        self._flags = list(flags)
        self._without_effect = check_flags(flags)
        self._load = load or load_vllm
        self._stack = AsyncExitStack()
        self._vllm: Any = None
        self._client: Any = None
        self._chat: Any = None
        self._record: CapabilityRecord | None = None
        self._capacity = 0
        self._has_priorities = False
        self._has_traces = False

    def __repr__(self) -> str:
        if self._client is None:
            state = "not running"
        elif self._client.errored:
            state = "dead"
        else:
            state = f"{self._client.get_num_unfinished_requests()} requests"
        return f"<VllmEngine {self.model!r} [{state}]>"

    async def start(self) -> None:
        """Import vLLM, start its engine process and load the model.

        The loop stands still meanwhile, as in vLLM's own server; SIGTERM and SIGINT end it.

        Raises:
            EngineConfigError: vLLM is missing or of a version that was never tested, or it cannot
                start with this model and these flags. `close` must be called all the same.
        """
        if self._without_effect:
            names = ", ".join(self._without_effect)
            logger.warning("%s: no effect, a worker is no HTTP server", names)
        try:
            with interruptible():
                await self._start()
        except EngineConfigError:
            raise
        except Interrupted:
            raise EngineInterrupted("vllm") from None
        except Exception as exc:
            logger.exception("vLLM did not start")
            raise EngineConfigError("vllm", _reason(exc)) from exc

    async def _start(self) -> None:
        self._vllm = vllm = self._load(self.model, self._flags)
        self.version = vllm.version
        args = vllm.parse(serve_arguments(self.model, self._flags, on_cpu=vllm.on_cpu))
        client = await self._stack.enter_async_context(vllm.open_client(args))
        state = State()
        await vllm.init_state(client, state, args, await client.get_supported_tasks())
        self._chat = getattr(state, "openai_serving_chat", None)
        if self._chat is None:
            raise EngineConfigError("vllm", f"{self.model} does not generate text")
        scheduler = client.vllm_config.scheduler_config
        self._capacity = (
            scheduler.max_num_seqs * client.vllm_config.parallel_config.data_parallel_size
        )
        self._has_priorities = scheduler.policy == "priority"
        self._has_traces = await client.is_tracing_enabled()
        models = await state.openai_serving_models.show_available_models()
        self._record = _offer([card.model_dump() for card in models.data])
        self._client = client

    async def close(self) -> None:
        """End the engine process, and with it the requests in flight."""
        self._client = self._chat = None
        await self._stack.aclose()
        # Its objects refer to each other, and complain when they last until the interpreter ends.
        gc.collect()

    def capabilities(self) -> CapabilityRecord:
        """Return what is served; only once started."""
        if self._record is None:
            raise RuntimeError("the engine has not started")
        return self._record

    async def call(self, request: EngineRequest) -> bytes:
        """Answer with a whole chat completion."""
        answer = await self._ask(request)
        body: str = answer.model_dump_json()
        return body.encode()

    async def stream(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        """Answer with chat completion chunks.

        vLLM joins what it has generated since the last chunk was taken, so a slow consumer gets
        fewer and longer chunks, and nothing piles up.
        """
        events = await self._ask(request)
        try:
            async with aclosing(events):
                async for event in events:
                    if event.startswith(_ERROR):
                        raise self._failure(msgspec.json.decode(event[len(_PREFIX) :])["error"])
                    if not event.startswith(_DONE):
                        yield event[len(_PREFIX) :].rstrip().encode()
        except BaseException:
            # Closing vLLM's generator leaves its request to the garbage collector.
            await self._abort(request)
            raise

    def pressure(self) -> Pressure:
        """Return vLLM's own count of what runs and waits, as of its last step."""
        registry = self._vllm.registry().restricted_registry([_RUNNING, _WAITING, _KV_USAGE])
        totals: dict[str, list[float]] = {}
        for family in registry.collect():
            for sample in family.samples:
                totals.setdefault(sample.name, []).append(sample.value)
        if _RUNNING not in totals:  # --disable-log-stats
            return Pressure(self._client.get_num_unfinished_requests(), 0, self._capacity)
        usage = totals.get(_KV_USAGE)
        return Pressure(
            running=int(sum(totals[_RUNNING])),
            waiting=int(sum(totals.get(_WAITING, ()))),
            capacity=self._capacity,
            kv_usage=sum(usage) / len(usage) if usage else None,
        )

    async def wait_dead(self) -> EngineDead:
        """Wait until the engine process is gone without having been closed."""
        # vLLM has a flag for this and no event.
        while self._client is None or not self._client.errored:  # noqa: ASYNC110
            await asyncio.sleep(DEATH_POLL_SECONDS)
        return _dead()

    def metrics(self) -> bytes:
        """Return vLLM's own metrics; those of the Python process are left to the worker."""
        if self._vllm is None:
            return b""
        return generate_latest(_OnlyVllm(self._vllm.registry()))

    async def _ask(self, request: EngineRequest) -> Any:
        """Return vLLM's answer object, or its generator of SSE strings for a streamed request."""
        if request.operation != CHAT:
            raise ProfileError(
                ErrorCode.UNSUPPORTED_OPERATION, f"vLLM does not serve {request.operation} here"
            )
        if self._client is None:
            raise _dead()
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            chat = self._vllm.chat_request.model_validate(self._body(request))
            answer = await self._chat.create_chat_completion(chat, self._http_request(request))
        except Exception as exc:
            raise self._refusal(exc, request) from exc
        if task and task.cancelling() > cancels:
            # vLLM has aborted the request, but answers a cancelled caller with an error object.
            raise asyncio.CancelledError
        error = getattr(answer, "error", None)
        if error is not None:
            raise self._failure(error.model_dump())
        return answer

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        # vLLM finds a request to abort by this id: two clients must never share one.
        request.body["request_id"] = request.id
        if request.priority and self._has_priorities:
            request.body["priority"] = request.priority
        return request.body

    def _http_request(self, request: EngineRequest) -> Request | None:
        # Only the headers of an HTTP request can tell vLLM of a trace.
        if request.traceparent is None or not self._has_traces:
            return None
        headers = [(b"traceparent", request.traceparent.encode("latin-1"))]
        return Request({"type": "http", "headers": headers})

    def _refusal(self, exc: Exception, request: EngineRequest) -> Exception:
        if isinstance(exc, pydantic.ValidationError):
            errors = exc.errors(include_url=False, include_context=False, include_input=False)
            return vllm_errors.from_validation(errors, request.body)
        if isinstance(exc, self._vllm.dead_error):
            return _dead()
        error = self._vllm.describe(exc).error.model_dump()
        if error["code"] == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("vLLM failed on request %s", request.id, exc_info=exc)
        return self._failure(error)

    def _failure(self, error: Mapping[str, Any]) -> Exception:
        if self._client is None or self._client.errored:
            return _dead()
        return vllm_errors.from_error(error)

    async def _abort(self, request: EngineRequest) -> None:
        if self._client is not None:
            await self._client.abort(f"chatcmpl-{request.id}")


class _OnlyVllm(CollectorRegistry):
    """vLLM's part of a registry that also holds collectors of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._registry.collect() if family.name.startswith("vllm"))


def _dead() -> EngineDead:
    return EngineDead("vllm", "its EngineCore process is gone; the log has the reason")


def _offer(cards: Sequence[dict[str, Any]]) -> CapabilityRecord:
    # A card's root and permissions are of no use to clients; a root can be a path of this machine.
    kept = ("id", "object", "created", "owned_by", "parent", "max_model_len")
    return CapabilityRecord(
        adapter="nnrp-backend-vllm",
        levels=(1,),
        operations=(
            OperationCapability(name=CHAT, streaming=True, tool_calls=True),
            OperationCapability(name=MODELS_LIST, cancellation=False),
        ),
        models=tuple(
            {key: card[key] for key in kept if card.get(key) is not None} for card in cards
        ),
    )


def _reason(exc: Exception) -> str:
    """Return one line for the operator."""
    if isinstance(exc, pydantic.ValidationError):
        return str(exc.errors()[0]["msg"]).removeprefix("Value error, ")
    return next(iter(str(exc).strip().splitlines()), "") or type(exc).__name__


def load_vllm(model: str, flags: Sequence[str]) -> Vllm:
    """Import vLLM and gather what the engine calls of it.

    Sets environment variables first: vLLM, its libraries and its processes read them at import.

    Raises:
        EngineConfigError: vLLM is missing, or of a version that was never tested.
    """
    mark_worker(os.environ)
    os.environ.update(base_environment(model, flags, os.environ))
    try:
        import vllm
    except ModuleNotFoundError as exc:
        if exc.name != "vllm":
            raise
        check_version(None)
        raise
    version = check_version(vllm.__version__)

    from vllm.platforms import current_platform

    on_cpu: bool = current_platform.is_cpu()
    if on_cpu:
        os.environ.update(cpu_environment(flags, os.environ))

    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.logger import configure_logging_from_args
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.exceptions import EngineDeadError
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    def refuse(message: str) -> NoReturn:
        raise EngineConfigError("vllm", message)

    def parse(arguments: list[str]) -> Any:
        parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
        parser.error = refuse  # argparse would print its usage of 300 flags and exit
        args = parser.parse_args(arguments)
        if args.model_tag is not None:
            refuse(f"unexpected argument {args.model_tag!r}")
        configure_logging_from_args(args)
        validate_parsed_serve_args(args)
        if args.tool_parser_plugin:
            ToolParserManager.import_tool_parser(args.tool_parser_plugin)
        if args.reasoning_parser_plugin:
            ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
        return args

    return Vllm(
        version=version,
        on_cpu=on_cpu,
        parse=parse,
        open_client=build_async_engine_client,
        init_state=init_app_state,
        chat_request=ChatCompletionRequest,
        describe=create_error_response,
        dead_error=EngineDeadError,
        registry=get_prometheus_registry,
    )
