"""The command `conformance`: play recipes against an endpoint and say whether it passed."""

from __future__ import annotations

import asyncio
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
from nnrp_backend.options import POSITIVE_SECONDS, EndpointType, client_tls, client_tls_options
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.transport.endpoint import Endpoint


def _settings(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    settings = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        settings[name] = setting
    return settings


@click.command()
@click.option("--endpoint", required=True, type=EndpointType(), help="The worker to judge.")
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
    type=POSITIVE_SECONDS,
    default=CASE_TIMEOUT,
    show_default=True,
    help="Seconds for each case.",
)
@client_tls_options
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
    tls = client_tls(endpoint, ca=tls_ca, cert=tls_cert, key=tls_key)
    connect = partial(NnrpClient, endpoint, ssl=tls)
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


def _write(path: Path, report: Report) -> None:
    try:
        path.write_text(_pretty(report.document()) + "\n")
    except OSError as error:
        raise click.ClickException(f"cannot write the results: {error}") from error


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
