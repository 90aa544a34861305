"""The gateway's configuration: one YAML file, overridden by environment and command line.

Every section refuses unknown fields, is frozen, and holds secrets as paths of files, never as
values. A variable is `NNRP_GATEWAY__<SECTION>__<FIELD>`; its value is JSON where the field is not a
scalar.

* ConfigError           one line per problem, each beginning with the path to the field
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from nnrp_backend.transport.endpoint import Endpoint, EndpointError, Scheme

__all__ = ["ENV_PREFIX", "ConfigError", "GatewayConfig", "load"]

ENV_PREFIX: Final = "NNRP_GATEWAY__"
_DELIMITER: Final = "__"

MIB: Final = 1024 * 1024
#: An NNRP packet is 64 MiB at most, and the envelope needs some of it.
MAX_BODY: Final = 60 * MIB

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ConfigError(Exception):
    """The configuration is not usable.

    Attributes:
        problems: one sentence each, beginning with the path to the field where there is one.
        source: the file that cannot be read; None for a wrong value, whichever source it is from.
    """

    def __init__(self, problems: list[str], source: Path | None = None) -> None:
        self.problems = problems
        self.source = source
        prefix = f"{source}: " if source else ""
        super().__init__("\n".join(prefix + problem for problem in problems))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _endpoint(text: str) -> str:
    try:
        endpoint = Endpoint.parse(text)
    except EndpointError as error:
        raise ValueError(error.reason) from None
    if endpoint.scheme is not Scheme.UNIX and endpoint.port == 0:
        raise ValueError("a worker's port cannot be 0")
    return text


class WorkerTls(_Section):
    """TLS towards a `tls://` or `nnrps://` worker."""

    ca_file: FilePath | None = Field(
        default=None, description="CA bundle; the system's when absent."
    )
    cert_file: FilePath | None = Field(default=None, description="Client certificate chain (PEM).")
    key_file: FilePath | None = Field(
        default=None, description="Key of the client certificate (PEM)."
    )

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        return self


class WorkerConfig(_Section):
    """One worker: an NNRP adapter process."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        description="tcp://host:port, tls://host:port, unix:///path, nnrp://host or nnrps://host."
    )
    name: str = Field(
        default="",
        pattern=r"^[ -~]{0,100}$",
        description="Name in logs and metrics, printable ASCII; the endpoint when empty.",
    )
    models: tuple[str, ...] = Field(
        default=(), description="Models it serves, for a worker that cannot say so itself."
    )
    tls: WorkerTls = WorkerTls()


class HttpConfig(_Section):
    """The public port."""

    host: str = "127.0.0.1"
    port: Port = 8000
    implementation: Literal["httptools", "h11"] = Field(
        default="httptools", description="HTTP/1.1 parser: C, or pure Python."
    )
    loop: Literal["uvloop", "asyncio"] = "uvloop"
    backlog: int = Field(default=2048, ge=1, description="Connections the kernel queues.")
    keep_alive_timeout: int = Field(
        default=75,
        ge=1,
        description="Seconds an idle connection is kept; more than a load balancer's.",
    )
    access_log: bool = False
    send_buffer: int = Field(
        default=64 * 1024, ge=4096, description="SO_SNDBUF of client sockets, bytes."
    )
    high_water: int = Field(
        default=16 * 1024,
        ge=1024,
        description="Unsent bytes above which a stream stops granting credit.",
    )


class AdminConfig(_Section):
    """The port with `/livez`, `/readyz`, `/startupz` and `/metrics`."""

    host: str = "127.0.0.1"
    port: Port = 9000
    stall_after: PositiveSeconds = Field(
        default=10.0,
        description="Seconds without an event loop heartbeat after which `/livez` fails.",
    )
    ready_without_workers: bool = Field(
        default=True,
        description="Whether `/readyz`, once 200, stays so while no worker can serve: where "
        "gateways share their workers, a 503 there would take all of them away at once.",
    )


class LimitsConfig(_Section):
    """What a request may be."""

    body_bytes: int = Field(
        default=32 * MIB, ge=1024, le=MAX_BODY, description="Request body; above it 413."
    )
    json_depth: int = Field(default=64, ge=4, le=64, description="Nesting of a request's JSON.")


class StreamConfig(_Section):
    """Streamed answers."""

    first_event_grace: PositiveSeconds = Field(
        default=15.0,
        description="Seconds without an event after which 200 is sent, and keep-alives.",
    )
    keep_alive: PositiveSeconds = Field(
        default=15.0, description="Seconds of silence after which a comment is sent."
    )
    send_timeout: PositiveSeconds = Field(
        default=60.0,
        description="Seconds a client may read nothing of its answer before it is cut off.",
    )
    credit: int = Field(default=64, ge=2, description="Window of events per stream (NNRP credit).")
    unsent_bytes: int = Field(
        default=4 * MIB,
        ge=64 * 1024,
        description="Unsent bytes at which a stream whose worker knows no credit is cancelled.",
    )


class ChatConfig(_Section):
    """Chat completions."""

    reasoning: Literal["reasoning_content", "reasoning", "both"] = Field(
        default="reasoning_content", description="Key that carries reasoning text in answers."
    )


class PoolConfig(_Section):
    """Admission, and the queue in front of the workers."""

    max_in_flight: int = Field(default=4096, ge=1, description="Requests at workers at a time.")
    max_queue: int = Field(default=1024, ge=0, description="Requests waiting; above it 429.")
    queue_timeout: Seconds = Field(
        default=30.0, description="Seconds a request waits in the queue."
    )
    patience: Seconds = Field(
        default=0.5, description="Seconds a request waits when no worker can take it; then 503."
    )
    per_worker_in_flight: int = Field(
        default=1024, ge=1, description="Operations asked of each worker; it may grant fewer."
    )


class DrainConfig(_Section):
    """What happens on SIGTERM and SIGINT."""

    propagation_delay: Seconds = Field(
        default=0.0, description="Seconds to keep serving after readiness went away."
    )
    grace: Seconds = Field(
        default=30.0, description="Seconds for requests in flight to end before they are cancelled."
    )


class LogConfig(_Section):
    """Log lines, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class GatewayConfig(BaseSettings):
    """Configuration of one gateway process: the arguments over the environment's variables."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    workers: tuple[WorkerConfig, ...] = ()
    http: HttpConfig = HttpConfig()
    admin: AdminConfig = AdminConfig()
    limits: LimitsConfig = LimitsConfig()
    stream: StreamConfig = StreamConfig()
    chat: ChatConfig = ChatConfig()
    pool: PoolConfig = PoolConfig()
    drain: DrainConfig = DrainConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _distinct_workers(self) -> Self:
        names = Counter(worker.name or worker.endpoint for worker in self.workers)
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"{count} workers are called {name!r}")
        return self


def load(file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> GatewayConfig:
    """Read the configuration: `overrides` over the environment over `file` over the defaults.

    Args:
        file: a YAML mapping of sections.
        overrides: nested values, from the command line.

    Raises:
        ConfigError: a file that cannot be read, an unknown field or variable, a wrong value.
    """
    unknown = [
        f"{name}: there is no such setting" for name in os.environ if _is_unknown_variable(name)
    ]
    if unknown:
        raise ConfigError(unknown)
    values = _read(file) if file else {}

    class Loaded(GatewayConfig):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    try:
        return Loaded(**(overrides or {}))
    except ValidationError as error:
        raise ConfigError(list(_problems(error))) from None
    except SettingsError as error:
        raise ConfigError([str(error)]) from None


def _is_unknown_variable(name: str) -> bool:
    """Whether a variable has our prefix and names no section: pydantic ignores those in silence."""
    if not name.upper().startswith(ENV_PREFIX):
        return False
    section = name[len(ENV_PREFIX) :].split(_DELIMITER)[0].lower()
    return section not in GatewayConfig.model_fields


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise ConfigError([error.strerror or str(error)], file) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(["not YAML: " + " ".join(str(error).split())], file) from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(["not a mapping of sections"], file)
    return values


def _problems(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        path = ".".join(str(part) for part in detail["loc"])
        message = _SENTENCES.get(detail["type"], detail["msg"].removeprefix("Value error, "))
        yield f"{path}: {message}" if path else message


_SENTENCES: Final = {
    "extra_forbidden": "there is no such setting",
    "missing": "this setting is required",
}
