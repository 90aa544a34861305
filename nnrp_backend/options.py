"""What the options of several commands have in common."""

import math
import ssl
from collections.abc import Callable
from typing import Any

import click

from nnrp_backend.transport.endpoint import Endpoint, EndpointError, Scheme
from nnrp_backend.transport.tls import TlsFilesError, client_context, server_context

Command = Callable[..., Any]


class ConfigError(click.ClickException):
    """A command line that cannot work, found out later than click does."""

    exit_code = 2


class EndpointType(click.ParamType[Endpoint]):
    """An address such as `tcp://host:port` or `unix:///path`."""

    name = "url"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Endpoint:
        """Parse the address."""
        try:
            return value if isinstance(value, Endpoint) else Endpoint.parse(value)
        except EndpointError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.FloatRange):
    """A duration; `nan` and `inf` are numbers to Python, and no times to wait."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the number."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is no duration", param, ctx)
        return seconds


FILE = click.Path(exists=True, dir_okay=False)
POSITIVE_SECONDS = Seconds(min=0, min_open=True)


def client_tls_options(command: Command) -> Command:
    """Add the options that `client_tls` takes: `--tls-ca`, `--tls-cert` and `--tls-key`."""
    for option in (
        click.option("--tls-key", type=FILE, help="Its key, when the certificate's file has none."),
        click.option("--tls-cert", type=FILE, help="Our own certificate, where one is wanted."),
        click.option("--tls-ca", type=FILE, help="Trust this CA instead of the system's."),
    ):
        command = option(command)
    return command


def client_tls(
    endpoint: Endpoint, *, ca: str | None, cert: str | None, key: str | None
) -> ssl.SSLContext | None:
    """Make the context to connect to `endpoint` with; None where there is no TLS."""
    if endpoint.scheme is not Scheme.TLS:
        if ca or cert or key:
            raise ConfigError("--tls-ca, --tls-cert and --tls-key are for tls:// endpoints")
        return None
    try:
        return client_context(ca=ca, cert=cert, key=key)
    except TlsFilesError as error:
        raise ConfigError(str(error)) from None


def server_tls(
    listen: tuple[Endpoint, ...], *, cert: str | None, key: str | None, client_ca: str | None
) -> ssl.SSLContext | None:
    """Make the context of the `tls://` endpoints among `listen`; None where there are none."""
    if not any(endpoint.scheme is Scheme.TLS for endpoint in listen):
        if cert or key or client_ca:
            raise ConfigError("--tls-cert, --tls-key and --tls-client-ca are for tls:// endpoints")
        return None
    if cert is None:
        raise ConfigError("a tls:// endpoint needs --tls-cert")
    try:
        return server_context(cert, key, client_ca=client_ca)
    except TlsFilesError as error:
        raise ConfigError(str(error)) from None
