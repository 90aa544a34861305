"""The command `nnrp-gateway`: start a gateway, alone or with workers, and check its configuration.

Exit codes: 0 all is well, 1 it did not work, 2 the command line or the configuration is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from gateway import __version__
from gateway.config import ConfigError, GatewayConfig, load
from gateway.supervisor.children import Child, WorkerStartError
from gateway.supervisor.files import raise_file_limit
from gateway.supervisor.gpus import GpuError, device_ids, share_out
from gateway.supervisor.process import Addresses, GatewayProcess

__all__ = ["main"]

PORT: Final = click.IntRange(0, 65535)
CONFIG: Final = click.Path(path_type=Path, dir_okay=False)

GREETING: Final = """\
nnrp-gateway serves {models}

  API      {url}/v1
  metrics  {admin_url}/metrics

Try it:

  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d \\
    '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

Ctrl-C stops it."""


class UnusableConfig(click.ClickException):
    """A configuration that cannot be used: one line per problem, no usage text."""

    exit_code = 2


@click.group()
@click.version_option(__version__, prog_name="nnrp-gateway")
def main() -> None:
    """An OpenAI-compatible front door for NNRP workers."""


def addresses(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the gateway listens."""
    for option in (
        click.option("--host", help="Address of the API.  [default: 127.0.0.1]"),
        click.option("--port", type=PORT, help="Port of the API; 0: any.  [default: 8000]"),
        click.option(
            "--admin-port",
            type=PORT,
            help="Port of health and metrics; 0: any.  [default: 9000]",
        ),
    ):
        command = option(command)
    return command


@main.command()
@click.option(
    "--engine",
    type=click.Choice(["sim", "vllm"]),
    default="sim",
    show_default=True,
    help="sim needs no model; vllm is a real one.",
)
@click.option("--model", help="A hub id or a local folder.")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Workers, each on GPUs of its own.",
)
@addresses
@click.option(
    "--worker-python",
    type=click.Path(exists=True, dir_okay=False),
    default=sys.executable,
    help="Interpreter of the workers, with the engine installed.  [default: this one]",
)
@click.argument("engine_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_FLAGS]")
def up(
    *,
    engine: str,
    model: str | None,
    replicas: int,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    worker_python: str,
    engine_flags: tuple[str, ...],
) -> None:
    """Start workers and a gateway in front of them, and stop both on Ctrl-C.

    What stands after -- goes to the engine unchanged.
    """
    if engine == "vllm" and model is None:
        raise click.UsageError("--engine vllm needs --model")
    command = [worker_python, "-m", "nnrp_backend", "serve", "--engine", engine]
    if model is not None:
        command += ["--model", model]
    with tempfile.TemporaryDirectory(prefix="nnrp-gateway-") as folder:
        sockets = [Path(folder) / f"worker-{number}.sock" for number in range(replicas)]
        workers = [
            {"name": f"worker-{number}", "endpoint": f"unix://{path}"}
            for number, path in enumerate(sockets)
        ]
        config = _load(None, host, port, admin_port, workers)
        environments = _gpus(replicas, engine_flags) if engine == "vllm" else [{}] * replicas
        children = _children(command, sockets, environments, config, engine_flags)
        _run(config, children)


@main.command()
@click.option("--config", "file", type=CONFIG, help="YAML file.")
@click.option("--worker", "workers", multiple=True, metavar="URL", help="May be given repeatedly.")
@addresses
def serve(
    *,
    file: Path | None,
    workers: tuple[str, ...],
    host: str | None,
    port: int | None,
    admin_port: int | None,
) -> None:
    """Serve the API with workers that run elsewhere.

    URL is tcp://host:port, tls://host:port, unix:///path, nnrp://host or nnrps://host.
    """
    config = _load(file, host, port, admin_port, [{"endpoint": worker} for worker in workers])
    if not config.workers:
        raise UnusableConfig("workers: there is none; give --worker, or list them in --config")
    _run(config, ())


@main.command("check-config")
@click.argument("file", type=CONFIG)
def check_config(*, file: Path) -> None:
    """Say whether FILE, with the environment's variables, is a configuration."""
    config = _load(file)
    click.echo(f"{file}: fine, {len(config.workers)} workers")


@main.command("config-schema")
def config_schema() -> None:
    """Print the JSON schema of the configuration."""
    click.echo(json.dumps(GatewayConfig.model_json_schema(), indent=2))


def _load(
    file: Path | None,
    host: str | None = None,
    port: int | None = None,
    admin_port: int | None = None,
    workers: Sequence[dict[str, str]] = (),
) -> GatewayConfig:
    http = {"host": host, "port": port}
    overrides: dict[str, Any] = {
        "http": {name: value for name, value in http.items() if value is not None},
        "admin": {} if admin_port is None else {"port": admin_port},
    }
    if workers:
        overrides["workers"] = workers
    try:
        return load(file, overrides)
    except ConfigError as error:
        raise UnusableConfig(str(error)) from None


def _gpus(replicas: int, engine_flags: Sequence[str]) -> list[Mapping[str, str]]:
    try:
        return share_out(device_ids(os.environ), replicas, engine_flags)
    except GpuError as error:
        raise click.ClickException(str(error)) from None


def _children(
    command: Sequence[str],
    sockets: Sequence[Path],
    environments: Sequence[Mapping[str, str]],
    config: GatewayConfig,
    engine_flags: Sequence[str],
) -> list[Child]:
    options = ["--admin-port", "0", "--log-level", config.log.level]
    flags = ["--", *engine_flags] if engine_flags else []
    return [
        Child(
            f"worker-{number}",
            [*command, "--listen", f"unix://{path}", *options, *flags],
            socket_path=path,
            environment=environment,
        )
        for number, (path, environment) in enumerate(zip(sockets, environments, strict=True))
    ]


def _run(config: GatewayConfig, children: Sequence[Child]) -> None:
    logging.basicConfig(
        level=config.log.level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Its servers come and go with the process, which says so itself; and what it warns of is one
    # line for each request that is not HTTP, which anybody may send without end.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    raise_file_limit()
    # What has been imported stays: a full collection would look at all of it, for ten milliseconds
    # and more in which no token moves.
    gc.freeze()
    process = GatewayProcess(config, children=children, on_serving=_greet)
    with _runner(config) as runner:
        try:
            runner.run(process.run())
        except (OSError, WorkerStartError) as error:
            raise click.ClickException(_sentence(error)) from None


@contextmanager
def _runner(config: GatewayConfig) -> Iterator[asyncio.Runner]:
    factory = None
    if config.http.loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def _sentence(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _greet(addresses: Addresses) -> None:
    click.echo(
        GREETING.format(
            models=", ".join(addresses.models) or "its workers",
            model=addresses.models[0] if addresses.models else "MODEL",
            url=addresses.url,
            admin_url=addresses.admin_url,
        )
    )
