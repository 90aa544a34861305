"""The configuration: three sources, and a path to the field in every complaint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import ConfigError, GatewayConfig, load

Environment = pytest.MonkeyPatch


def write(directory: Path, text: str) -> Path:
    file = directory / "gateway.yaml"
    file.write_text(text)
    return file


def test_defaults_are_those_of_the_documentation() -> None:
    config = load()
    assert (config.http.host, config.http.port, config.admin.port) == ("127.0.0.1", 8000, 9000)
    assert config.limits.body_bytes == 32 * 1024 * 1024
    assert config.limits.json_depth == 64
    assert config.stream.first_event_grace == 15
    assert config.stream.keep_alive == 15
    assert config.drain.propagation_delay == 0
    assert config.workers == ()


def test_command_line_over_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "http: {port: 1, backlog: 10, host: file}\nadmin: {port: 2}\n")
    monkeypatch.setenv("NNRP_GATEWAY__HTTP__PORT", "3")
    monkeypatch.setenv("NNRP_GATEWAY__HTTP__HOST", "environment")
    config = load(file, {"http": {"port": 4}})
    assert config.http.port == 4
    assert config.http.host == "environment"
    assert config.http.backlog == 10
    assert config.admin.port == 2


def test_lists_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNRP_GATEWAY__WORKERS", '[{"endpoint": "tcp://a:1", "models": ["m"]}]')
    (worker,) = load().workers
    assert (worker.endpoint, worker.models) == ("tcp://a:1", ("m",))


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing yet\n")).model_dump() == load().model_dump()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("http: {port: 65536}", ["http.port: Input should be less than or equal to 65535"]),
        ("http: {prt: 1}", ["http.prt: there is no such setting"]),
        ("htp: {}", ["htp: there is no such setting"]),
        (
            "http: {port: x}\nadmin: {host: 1}",
            [
                "http.port: Input should be a valid integer, unable to parse string as an integer",
                "admin.host: Input should be a valid string",
            ],
        ),
        ("workers: [{name: a}]", ["workers.0.endpoint: this setting is required"]),
        ("workers: [{endpoint: 'ftp://a'}]", ["workers.0.endpoint: unknown scheme 'ftp'"]),
        (
            'workers: [{endpoint: "tcp://a:1", name: "a\\nb"}]',
            ["workers.0.name: String should match pattern '^[ -~]{0,100}$'"],
        ),
        (
            "workers: [{endpoint: 'tcp://a:0'}]",
            ["workers.0.endpoint: a worker's port cannot be 0"],
        ),
        (
            "workers: [{endpoint: 'tcp://a:1'}, {endpoint: 'tcp://b:1', name: 'tcp://a:1'}]",
            ["2 workers are called 'tcp://a:1'"],
        ),
        (
            "workers: [{endpoint: 'tls://a:1', tls: {ca_file: /nowhere.pem}}]",
            ["workers.0.tls.ca_file: Path does not point to a file"],
        ),
        (
            f"workers: [{{endpoint: 'tls://a:1', tls: {{key_file: {__file__}}}}}]",
            ["workers.0.tls: cert_file and key_file go together"],
        ),
        (
            "limits: {body_bytes: 67108864}",
            ["limits.body_bytes: Input should be less than or equal to 62914560"],
        ),
        (
            "stream: {keep_alive: .inf}",
            ["stream.keep_alive: Input should be a finite number"],
        ),
    ],
)
def test_a_wrong_value_is_named_by_its_path(tmp_path: Path, text: str, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text))
    assert caught.value.problems == problems
    assert str(caught.value) == "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a: [", "not YAML: "), ("- a", "not a mapping of sections"), ("1: {}", "not a mapping")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: {problem}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: No such file or directory"):
        load(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("NNRP_GATEWAY__HTP__PORT", "1", "NNRP_GATEWAY__HTP__PORT: there is no such setting"),
        ("NNRP_GATEWAY__HTTP__PRT", "1", "http.prt: there is no such setting"),
        ("NNRP_GATEWAY__WORKERS", "[{", 'error parsing value for field "workers"'),
    ],
)
def test_a_wrong_variable_is_not_ignored(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load()
    assert str(caught.value).startswith(problem)


def test_it_cannot_be_changed() -> None:
    config = GatewayConfig()
    with pytest.raises(ValidationError):
        config.http.port = 1  # type: ignore[misc]


def test_every_setting_says_what_it_is_in_the_schema() -> None:
    def check(schema: dict[str, Any], path: str) -> None:
        for name, field in schema.get("properties", {}).items():
            obvious = name in {"host", "port", "access_log", "loop", "level"}
            assert obvious or "$ref" in field or "description" in field or path == "", name

    schema = GatewayConfig.model_json_schema()
    check(schema, "")
    for name, section in schema["$defs"].items():
        assert section["additionalProperties"] is False, name
        assert section["description"], name
        check(section, name)
