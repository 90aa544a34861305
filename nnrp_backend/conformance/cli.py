"""The command `conformance`: play recipes against an endpoint and say whether it passed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from nnrp_backend.client import ClientError, NnrpClient
from nnrp_backend.conformance.errors import CapabilityError, ConformanceError
from nnrp_backend.conformance.planner import make_plan
from nnrp_backend.conformance.recipe import Recipe, builtin_recipes, load_recipes
from nnrp_backend.conformance.report import Report, id_width, rows
from nnrp_backend.conformance.runner import CASE_TIMEOUT, Connect, Played, play_all
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.transport.endpoint import Endpoint, EndpointError, Scheme


def _endpoint(ctx: click.Context, param: click.Parameter, value: str) -> Endpoint:
    try:
        return Endpoint.parse(value)
    except EndpointError as error:
        raise click.BadParameter(str(error)) from error


def _settings(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    settings = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        settings[name] = setting
    return settings


_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option(
    "--endpoint", required=True, metavar="URL", callback=_endpoint, help="The worker to judge."
)
@click.option(
    "--recipes",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of recipes, or of a suite with a manifest.json.  [default: the built-in set]",
)
@click.option(
    "--capabilities",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the worker claims, as JSON, for one that cannot be asked over the wire.",
)
@click.option("--model", help="The model to ask for.  [default: the first the worker lists]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A recipe parameter's value.",
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the case-results document here.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=CASE_TIMEOUT,
    show_default=True,
    help="Seconds for each case.",
)
@click.option("--tls-ca", type=_FILE, help="Trust this CA instead of the system's.")
@click.option("--tls-cert", type=_FILE, help="Our own certificate, where one is wanted.")
@click.option("--tls-key", type=_FILE, help="Its key, when the certificate's file has none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, not a table.")
def conformance(
    *,
    endpoint: Endpoint,
    recipes: Path | None,
    capabilities: Path | None,
    model: str | None,
    settings: dict[str, str],
    results: Path | None,
    timeout: float,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    as_json: bool,
) -> None:
    """Prove over the wire that a worker speaks openai-compatible/1.

    Exits 0 when every selected case passed, 1 when one failed or was skipped, none was selected
    or the worker cannot be reached, and 2 when the command itself is wrong.
    """
    connect = partial(NnrpClient, endpoint, ssl=_tls(endpoint, tls_ca, tls_cert, tls_key))
    try:
        chosen = load_recipes(recipes) if recipes else builtin_recipes()
        run = _run(connect, chosen, capabilities, model, settings, timeout, quiet=as_json)
        report = asyncio.run(run)
    except ConformanceError as error:
        raise click.UsageError(str(error)) from error
    except ClientError as error:
        raise click.ClickException(str(error)) from error
    click.echo(_pretty(report.summary()) if as_json else "\n".join(report.closing()))
    if results:
        _write(results, report)
    if not report.passed:
        raise SystemExit(1)


async def _run(
    connect: Connect,
    recipes: Sequence[Recipe],
    capabilities: Path | None,
    model: str | None,
    settings: dict[str, str],
    timeout: float,
    *,
    quiet: bool,
) -> Report:
    record = _read_record(capabilities) if capabilities else await _ask_record(connect)
    plan = make_plan(recipes, record, model=model, parameters=settings)
    width = id_width(plan)
    played: list[Played] = []
    async for one in play_all(plan, connect, timeout=timeout):
        played.append(one)
        if not quiet:
            click.echo("\n".join(rows(one, width)))
    return Report(plan, played)


async def _ask_record(connect: Connect) -> CapabilityRecord:
    async with connect() as client:
        source = str(client.endpoint)
        try:
            record = await client.capabilities()
        except (ProfileError, TimeoutError) as error:
            raise CapabilityError(source, str(error) or "no answer; use --capabilities") from error
    if record is None:
        raise CapabilityError(source, "it gives none; use --capabilities")
    return record


def _read_record(path: Path) -> CapabilityRecord:
    """Read a capability document, or a conformance manifest, which also names the adapter."""
    try:
        document = msgspec.json.decode(path.read_bytes())
        name = document.get("adapter") if isinstance(document, dict) else None
        return CapabilityRecord.from_document(document, adapter=str(name or path.stem))
    except (OSError, msgspec.DecodeError, ProfileError) as error:
        raise CapabilityError(str(path), str(error)) from error


def _tls(
    endpoint: Endpoint, ca: str | None, cert: str | None, key: str | None
) -> ssl.SSLContext | None:
    if endpoint.scheme is not Scheme.TLS:
        if ca or cert or key:
            raise click.UsageError("--tls-ca, --tls-cert and --tls-key are for tls:// endpoints")
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise click.UsageError(f"the TLS files cannot be used: {error}") from error
    return context


def _write(path: Path, report: Report) -> None:
    try:
        path.write_text(_pretty(report.document()) + "\n")
    except OSError as error:
        raise click.ClickException(f"cannot write the results: {error}") from error


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
