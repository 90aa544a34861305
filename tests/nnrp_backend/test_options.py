"""The options as a command gets them; the commands' own tests show them at work."""

import ssl
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from nnrp_backend.options import (
    POSITIVE_SECONDS,
    ConfigError,
    EndpointType,
    client_tls,
    client_tls_options,
    server_tls,
)
from nnrp_backend.transport.endpoint import Endpoint
from tests.support.certs import Certificates, make_certificates

TCP = Endpoint.parse("tcp://x:1")
TLS = Endpoint.parse("tls://x:1")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certs"))


def given(*arguments: str) -> dict[str, Any] | str:
    """Return what a command with all these options gets, or what it is told is wrong."""
    got: dict[str, Any] = {}

    @click.command()
    @click.argument("endpoint", type=EndpointType())
    @click.option("--timeout", type=POSITIVE_SECONDS, default=5.0)
    @client_tls_options
    def command(**options: Any) -> None:
        got.update(options)

    result = CliRunner().invoke(command, arguments)
    return got or result.stderr.splitlines()[-1]


def test_what_is_given_is_what_comes() -> None:
    assert given("tcp://x:1", "--timeout", "0.5", "--tls-ca", __file__) == {
        "endpoint": TCP,
        "timeout": 0.5,
        "tls_ca": __file__,
        "tls_cert": None,
        "tls_key": None,
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["http://x:1"], "unknown scheme 'http'"),
        (["tcp://x:1", "--timeout", "soon"], "'soon' is not a valid"),
        (["tcp://x:1", "--timeout", "0"], "0.0 is not in the range x>0"),
        (["tcp://x:1", "--timeout", "nan"], "nan is no duration"),
        (["tcp://x:1", "--timeout", "inf"], "inf is no duration"),
        (["tcp://x:1", "--tls-key", "/nowhere"], "File '/nowhere' does not exist"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], reason: str) -> None:
    assert reason in given(*arguments)


def test_a_context_where_there_is_tls(certificates: Certificates) -> None:
    cert, key = map(str, certificates.server_pair)
    client = client_tls(TLS, ca=str(certificates.authority), cert=None, key=None)
    assert isinstance(client, ssl.SSLContext)
    assert client.check_hostname
    server = server_tls((TCP, TLS), cert=cert, key=key, client_ca=None)
    assert isinstance(server, ssl.SSLContext)
    assert server.verify_mode is ssl.CERT_NONE


def test_none_where_there_is_none() -> None:
    assert client_tls(TCP, ca=None, cert=None, key=None) is None
    assert server_tls((TCP,), cert=None, key=None, client_ca=None) is None


def test_files_without_tls_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="are for tls:// endpoints"):
        client_tls(TCP, ca=None, cert=None, key="key.pem")
    with pytest.raises(ConfigError, match="are for tls:// endpoints"):
        server_tls((TCP,), cert=None, key=None, client_ca="ca.pem")


def test_files_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    cert, key = map(str, certificates.client_pair)
    with pytest.raises(ConfigError, match=r"nonsense\.pem: OpenSSL cannot use it"):
        client_tls(TLS, ca=str(nonsense), cert=None, key=None)
    with pytest.raises(ConfigError, match="without its certificate"):
        client_tls(TLS, ca=None, cert=None, key=key)
    with pytest.raises(ConfigError, match=r"nonsense\.pem: OpenSSL cannot use it"):
        server_tls((TLS,), cert=cert, key=key, client_ca=str(nonsense))
    with pytest.raises(ConfigError, match="needs --tls-cert"):
        server_tls((TLS,), cert=None, key=key, client_ca=None)
