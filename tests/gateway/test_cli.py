"""The command line, as far as no process has to be started for it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway import cli
from gateway.supervisor.process import Addresses


def nnrp_gateway(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def test_the_commands_are_those_of_the_documentation() -> None:
    assert sorted(cli.main.commands) == ["check-config", "config-schema", "serve", "up"]
    for command in cli.main.commands.values():
        assert command.help


def test_a_good_configuration(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("workers: [{endpoint: 'tcp://a:1'}]")
    result = nnrp_gateway("check-config", file)
    assert (result.exit_code, result.output) == (0, f"{file}: fine, 1 workers\n")


def test_a_bad_configuration_is_one_line_per_problem(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("http: {port: x}\nadmin: {prt: 1}")
    result = nnrp_gateway("check-config", file)
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "Error: http.port: Input should be a valid integer, unable to parse string as an integer",
        "admin.prt: there is no such setting",
    ]


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    result = nnrp_gateway("check-config", tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml: No such file or directory" in result.output


def test_the_schema_is_json_schema() -> None:
    result = nnrp_gateway("config-schema")
    assert result.exit_code == 0
    schema = json.loads(result.output)
    assert schema["properties"].keys() >= {"workers", "http", "admin", "limits", "stream", "drain"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "workers: there is none; give --worker, or list them in --config"),
        (["serve", "--worker", "ftp://a"], "workers.0.endpoint: unknown scheme 'ftp'"),
        (["serve", "--worker", "tcp://a:1", "--worker", "tcp://a:1"], "2 workers are called"),
        (["serve", "--worker", "tcp://a:1", "--port", "70000"], "70000 is not in the range"),
        (["up", "--engine", "vllm"], "--engine vllm needs --model"),
        (["up", "--engine", "http"], "'http' is not one of"),
        (["up", "--replicas", "0"], "0 is not in the range"),
        (["up", "--worker-python", "/nowhere"], "'/nowhere' does not exist"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], message: str) -> None:
    result = nnrp_gateway(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = nnrp_gateway("serve", "--worker", "tcp://127.0.0.1:1", "--port", port)
    assert result.exit_code == 1
    expected = f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert result.output.endswith(expected)


def test_more_replicas_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = nnrp_gateway("up", "--engine", "vllm", "--model", "m", "--replicas", "2")
    assert result.exit_code == 1
    assert "the replicas need 2 GPUs, and there are 1" in result.output


def test_the_greeting_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    cli._greet(Addresses("http://h:1", "http://h:2", ("org/m", "n")))
    said = capsys.readouterr().out
    assert "  API      http://h:1/v1\n" in said
    assert "  metrics  http://h:2/metrics\n" in said
    body = said[said.index("'{") + 1 : said.index("}'") + 1]
    assert json.loads(body)["model"] == "org/m"
    assert json.loads(body)["stream"] is True
