"""The command `nnrp-backend`: serve an engine over NNRP, and ask workers about themselves.

Exit codes: 0 all is well, 1 it did not work, 2 the command line is wrong.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TextIO, TypeVar

import click
import msgspec

from nnrp_backend.adapter.adapter import DEFAULT_MAX_OPERATIONS
from nnrp_backend.adapter.engine import EngineConfigError
from nnrp_backend.adapter.engines import ENGINES, create_engine
from nnrp_backend.adapter.worker import ListenError, Worker, WorkerConfig
from nnrp_backend.client import ClientError, NnrpClient
from nnrp_backend.options import (
    FILE,
    POSITIVE_SECONDS,
    Command,
    ConfigError,
    EndpointType,
    Seconds,
    client_tls,
    client_tls_options,
    server_tls,
)
from nnrp_backend.probe import probe_worker, render_record, render_report
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.transport.endpoint import Endpoint

T = TypeVar("T")


class LevelsType(click.ParamType[frozenset[int]]):
    """Compatibility levels such as `1,3`."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        """Parse the list."""
        if isinstance(value, frozenset):
            return value
        levels = [level.strip() for level in value.split(",")]
        if not set(levels) <= {"1", "2", "3"}:
            self.fail(f"{value!r} is not a list of 1, 2 and 3, such as 1,3", param, ctx)
        return frozenset(map(int, levels))


class Commands(click.Group):
    """The commands; `conformance` is imported only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all commands, that one included."""
        return sorted([*super().list_commands(ctx), "conformance"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name."""
        if cmd_name == "conformance":
            return import_module("nnrp_backend.conformance.cli").conformance  # type: ignore[no-any-return]
        return super().get_command(ctx, cmd_name)


@click.group(cls=Commands)
@click.version_option(package_name="nnrp-gateway")
def main() -> None:
    """Serve models over NNRP, and look at workers that do."""


@main.command()
@click.option("--engine", type=click.Choice(list(ENGINES)), default="sim", show_default=True)
@click.option("--model", help="What the engine serves. sim needs none: it only takes the name.")
@click.option(
    "--listen",
    type=EndpointType(),
    multiple=True,
    default=["tcp://127.0.0.1:4510"],
    show_default=True,
    help="Where clients connect: tcp://, tls:// or unix://. May be given several times.",
)
@click.option("--admin-host", default="127.0.0.1", show_default=True)
@click.option(
    "--admin-port", type=click.IntRange(0, 65535), help="Health and metrics over HTTP; 0: any port."
)
@click.option("--levels", type=LevelsType(), help="Offer only these compatibility levels: 1,3.")
@click.option(
    "--max-operations",
    type=click.IntRange(1, 0xFFFF),
    default=DEFAULT_MAX_OPERATIONS,
    show_default=True,
    help="Operations at a time; more are refused.",
)
@click.option(
    "--stall-timeout", type=POSITIVE_SECONDS, help="Longest silence of the engine, in seconds."
)
@click.option(
    "--drain-timeout",
    type=Seconds(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running operations get after SIGTERM.",
)
@click.option("--tls-cert", type=FILE, help="Certificate chain of the tls:// endpoints.")
@click.option("--tls-key", type=FILE, help="Private key, when the certificate's file has none.")
@click.option("--tls-client-ca", type=FILE, help="Take only clients with a certificate of this CA.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.argument("engine_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_FLAGS]")
def serve(
    *,
    engine: str,
    model: str | None,
    listen: tuple[Endpoint, ...],
    admin_host: str,
    admin_port: int | None,
    levels: frozenset[int] | None,
    max_operations: int,
    stall_timeout: float | None,
    drain_timeout: float,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    log_level: str,
    engine_flags: tuple[str, ...],
) -> None:
    """Serve an engine over NNRP until SIGTERM or SIGINT.

    What stands after -- goes to the engine. When clients may connect, one line with READY and a
    JSON object goes to stdout; everything else goes to stderr.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    config = WorkerConfig(
        listen=listen,
        tls=server_tls(listen, cert=tls_cert, key=tls_key, client_ca=tls_client_ca),
        admin=None if admin_port is None else (admin_host, admin_port),
        levels=levels,
        max_operations=max_operations,
        stall_timeout=stall_timeout,
        drain_timeout=drain_timeout,
    )
    stdout = _take_stdout()

    def announce(description: dict[str, Any]) -> None:
        print("READY", json.dumps(description), file=stdout, flush=True)

    async def run() -> int:
        made = create_engine(engine, model=model, flags=engine_flags)
        return await Worker(made, config, on_ready=announce).run()

    try:
        code = _run(run())
    except EngineConfigError as error:
        raise ConfigError(str(error)) from None
    except ListenError as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)


def asks_a_worker(command: Command) -> Command:
    """Add what every command needs that connects to a worker."""
    for option in (
        click.argument("endpoint", type=EndpointType(), metavar="URL"),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        client_tls_options,
        click.option(
            "--timeout",
            type=POSITIVE_SECONDS,
            default=5.0,
            show_default=True,
            help="In seconds, each step.",
        ),
    ):
        command = option(command)
    return command


@main.command()
@click.option("--manifest", is_flag=True, help="Print the conformance manifest, as JSON.")
@asks_a_worker
def capabilities(
    *,
    endpoint: Endpoint,
    as_json: bool,
    manifest: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    timeout: float,
) -> None:
    """Print what the worker at URL offers."""
    tls = client_tls(endpoint, ca=tls_ca, cert=tls_cert, key=tls_key)

    async def ask() -> CapabilityRecord | None:
        async with NnrpClient(endpoint, ssl=tls, handshake_timeout=timeout) as client:
            return await client.capabilities(timeout)

    record = _ask(ask(), endpoint, timeout)
    if record is None:
        raise click.ClickException(f"{endpoint} does not say what it offers")
    if manifest or as_json:
        click.echo(json.dumps(record.manifest() if manifest else record.document(), indent=2))
    else:
        click.echo(render_record(record))


@main.command()
@asks_a_worker
def probe(
    *,
    endpoint: Endpoint,
    as_json: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    timeout: float,
) -> None:
    """Connect to the worker at URL, and see whether it answers.

    Works with workers of every implementation, and costs them no computing.
    """
    tls = client_tls(endpoint, ca=tls_ca, cert=tls_cert, key=tls_key)
    report = _ask(probe_worker(endpoint, ssl=tls, timeout=timeout), endpoint, timeout)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(report), indent=2))
    else:
        click.echo(render_report(report))
    if not report.ok:
        raise SystemExit(1)


# --- what the commands share --------------------------------------------------------------------


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop where that is installed."""
    try:
        factory = import_module("uvloop").new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _ask(question: Coroutine[Any, Any, T], endpoint: Endpoint, timeout: float) -> T:
    """Run a question to a worker; what goes wrong becomes one line."""
    try:
        return _run(question)
    except TimeoutError:
        message = f"{endpoint} did not answer within {timeout:g} s"
    except (ClientError, ProfileError) as error:
        message = str(error)
    raise click.ClickException(message)


def _take_stdout() -> TextIO:
    """Keep stdout for ourselves; what engines print there goes to stderr from now on."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return ours
