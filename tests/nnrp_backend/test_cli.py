import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from click.testing import CliRunner, Result

from nnrp_backend.adapter.worker import EXIT_FAILED
from nnrp_backend.cli import main
from nnrp_backend.client import NnrpClient
from nnrp_backend.profile.envelope import encode_envelope
from nnrp_backend.profile.operations import CHAT
from tests.support.certs import Certificates, make_certificates
from tests.support.processes import run, worker
from tests.support.suite import SUITE
from tests.support.waiting import until

TCP = "tcp://127.0.0.1:0"


def invoke(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, list(map(str, arguments)))


def error_line(result: Result) -> str:
    """Return the last line, which says what is wrong."""
    return result.stderr.splitlines()[-1]


def payload(text: str) -> bytes:
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], "stream": True}
    return encode_envelope(CHAT, json.dumps(body).encode())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A sim worker in a process of its own."""
    path = tmp_path_factory.mktemp("worker") / "w.sock"
    with worker("--listen", f"unix://{path}") as (_, ready):
        yield ready["listen"][0]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


# --- serve --------------------------------------------------------------------------------------


async def test_serve_from_start_to_drain(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    arguments = ("--listen", TCP, "--listen", f"unix://{path}", "--admin-port", 0)
    with worker(*arguments, "--model", "my/model") as (process, ready):
        assert ready["pid"] == process.pid
        assert ready["models"] == ["my/model", "sim", "sim-reasoner", "backend-error"]
        assert [line for line in process.stdout if not line.startswith("READY ")] == []
        async with httpx.AsyncClient(base_url=ready["admin"], trust_env=False) as http:
            assert (await http.get("/readyz")).text == "ok\n"
            assert "nnrp_backend_engine_alive 1.0" in (await http.get("/metrics")).text
        for address in ready["listen"]:
            async with NnrpClient(address) as client:
                terminal = await client.request(payload("/sim tokens=1"))
                assert json.loads(terminal.body)["type"] == "response.completed"
        async with NnrpClient(ready["listen"][0]) as client:
            async with client.stream(payload("/sim tokens=20 delay_ms=10")) as stream:
                events = [await anext(stream)]
                process.process.send_signal(signal.SIGTERM)
                events += [event async for event in stream]
            assert len(events) == 22
            assert stream.terminal is not None
            assert json.loads(stream.terminal.body)["type"] == "response.completed"
        await until(lambda: process.process.poll() is not None, timeout=10)
        assert process.process.returncode == 0
    assert not path.exists()


async def test_a_second_signal_ends_at_once() -> None:
    with worker("--listen", TCP) as (process, ready):
        async with (
            NnrpClient(ready["listen"][0]) as client,
            client.stream(payload("/sim tokens=1000000 delay_ms=5")) as stream,
        ):
            await anext(stream)  # what comes after the signal is refused, and holds up nothing
            process.process.send_signal(signal.SIGTERM)
            await until(lambda: client.draining)
            process.process.send_signal(signal.SIGINT)
            await until(lambda: process.process.poll() is not None, timeout=10)
        assert process.process.returncode == EXIT_FAILED


async def test_die_after_takes_the_connection_and_no_other() -> None:
    with worker("--listen", TCP) as (_, ready):
        address = ready["listen"][0]
        async with NnrpClient(address) as doomed, NnrpClient(address) as other:
            async with doomed.stream(payload("/sim tokens=9 delay_ms=1 die_after=3")) as stream:
                texts = [json.loads(event)["delta"] async for event in stream]
            assert "".join(texts) == "tok0 tok1 tok2"
            assert stream.terminal is not None
            assert stream.terminal.kind == "lost"
            assert not doomed.connected
            terminal = await other.request(payload("/sim tokens=1"))
            assert json.loads(terminal.body)["type"] == "response.completed"


async def test_tls_with_client_certificates(certificates: Certificates) -> None:
    cert, key = certificates.server_pair
    options = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", certificates.authority)
    with worker("--listen", "tls://127.0.0.1:0", *options) as (_, ready):
        address = ready["listen"][0]
        trusting = ("--tls-ca", certificates.authority)
        ours = ("--tls-cert", certificates.client_pair[0], "--tls-key", certificates.client_pair[1])
        known = await asyncio.to_thread(invoke, "probe", address, *trusting, *ours)
        assert known.exit_code == 0, known.output
        unknown = await asyncio.to_thread(invoke, "probe", address, *trusting)
        assert unknown.exit_code == 1
        assert error_line(unknown).startswith(f"Error: cannot connect to {address}: ")
        distrusting = await asyncio.to_thread(invoke, "probe", address, *ours)
        assert distrusting.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "http://x:1"], "invalid endpoint 'http://x:1': unknown scheme 'http'"),
        (["--listen", "unix://relative"], "the path must be absolute"),
        (["--levels", "1,4"], "'1,4' is not a list of 1, 2 and 3, such as 1,3"),
        (["--levels", ""], "'' is not a list"),
        (["--max-operations", "0"], "0 is not in the range 1<=x<=65535"),
        (["--max-operations", "65536"], "65536 is not in the range"),
        (["--drain-timeout", "nan"], "nan is no duration"),
        (["--drain-timeout", "-1"], "-1.0 is not in the range x>=0"),
        (["--stall-timeout", "0"], "0.0 is not in the range x>0"),
        (["--engine", "magic"], "'magic' is not one of 'sim', 'vllm'"),
        (["--admin-port", "70000"], "70000 is not in the range 0<=x<=65535"),
        (["--listen", "tls://127.0.0.1:0"], "a tls:// endpoint needs --tls-cert"),
        (["--tls-cert", __file__], "are for tls:// endpoints"),
        (["--tls-cert", "/nowhere"], "File '/nowhere' does not exist"),
        (["--listen", "tls://x:1", "--tls-cert", __file__], f"{__file__}: OpenSSL cannot use it"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], reason: str) -> None:
    result = invoke("serve", *arguments)
    assert result.exit_code == 2
    assert reason in error_line(result)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ["--", "--dtype", "float32"],
            2,
            "Error: sim engine: there are no engine flags, but '--dtype' was given",
        ),
        (["--levels", "2", "--listen", TCP], 2, "Error: sim engine: --levels: "),
        (["--engine", "vllm"], 2, "Error: vllm engine: --model is missing"),
        (
            ["--listen", "unix:///nowhere/w.sock"],
            1,
            "Error: cannot listen on unix:///nowhere/w.sock: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_served(arguments: list[str], code: int, line: str) -> None:
    result = run("nnrp-backend", "serve", "--log-level", "error", *arguments)
    assert result.returncode == code
    assert result.stdout == ""
    (said,) = result.stderr.splitlines()
    assert said.startswith(line)


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        result = run("nnrp-backend", "serve", "--log-level", "error", "--listen", address)
    assert result.returncode == 1
    assert result.stderr == f"Error: cannot listen on {address}: Address already in use\n"


# --- capabilities -------------------------------------------------------------------------------


def test_capabilities_for_a_person(url: str) -> None:
    result = invoke("capabilities", url)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "adapter     nnrp-backend-sim"
    assert "model       sim (owned by nnrp-sim)" in result.stdout.splitlines()


def test_capabilities_as_a_document(url: str) -> None:
    result = invoke("capabilities", url, "--json")
    document = json.loads(result.stdout)
    assert document["profile"] == "openai-compatible"
    assert document["compatibility_levels"] == [1]
    assert [model["id"] for model in document["models"]] == ["sim", "sim-reasoner", "backend-error"]


def test_the_manifest_satisfies_the_suites_schema(url: str) -> None:
    manifest = json.loads(invoke("capabilities", url, "--manifest").stdout)
    assert manifest["adapter"] == "nnrp-backend-sim"
    assert "models" not in manifest
    if SUITE is not None:
        schemas = SUITE / "schemas"
        schema = json.loads((schemas / "api-profile-capabilities.schema.json").read_text())
        jsonschema.validate(manifest, schema)


# --- probe --------------------------------------------------------------------------------------


def test_probe_for_a_person(url: str) -> None:
    result = invoke("probe", url)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"worker      {url} ok"


def test_probe_for_a_program(url: str) -> None:
    report: dict[str, Any] = json.loads(invoke("probe", url, "--json").stdout)
    assert report["ok"] is True
    assert report["problem"] is None
    assert report["models"] == ["sim", "sim-reasoner", "backend-error"]


@pytest.mark.parametrize("command", ["probe", "capabilities"])
def test_nobody_there(command: str, tmp_path: Path) -> None:
    result = invoke(command, f"unix://{tmp_path}/w.sock")
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: cannot connect to unix://{tmp_path}/w.sock: ")


@pytest.mark.parametrize("command", ["probe", "capabilities"])
def test_somebody_silent(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        result = invoke(command, address, "--timeout", "0.2")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")


@pytest.mark.parametrize("command", ["probe", "capabilities"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Missing argument 'URL'"),
        (["nonsense"], "invalid endpoint 'nonsense'"),
        (["tcp://x:1", "--timeout", "0"], "0.0 is not in the range x>0"),
        (["tcp://x:1", "--timeout", "inf"], "inf is no duration"),
        (["tcp://x:1", "--tls-ca", __file__], "are for tls:// endpoints"),
        (["tls://x:1", "--tls-ca", __file__], f"{__file__}: OpenSSL cannot"),
    ],
)
def test_a_wrong_question(command: str, arguments: list[str], reason: str) -> None:
    result = invoke(command, *arguments)
    assert result.exit_code == 2
    assert reason in error_line(result)


# --- the rest -----------------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("capabilities", "conformance", "probe", "serve"):
        assert f"\n  {command} " in result.output


def test_conformance_is_there(url: str) -> None:
    result = invoke("conformance", "--endpoint", url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "PASSED"


def test_an_unknown_command() -> None:
    result = invoke("fly")
    assert result.exit_code == 2
    assert "No such command 'fly'" in error_line(result)


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "nnrp_backend", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.endswith(f"version {version('nnrp-gateway')}\n")
