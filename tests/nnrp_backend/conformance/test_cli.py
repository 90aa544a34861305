import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from nnrp_backend.conformance.cli import conformance
from nnrp_backend.transport.endpoint import Endpoint
from tests.support.broken_target import RECORD, Answer, Asked, Target, serving
from tests.support.case_results import CASE_RESULTS
from tests.support.certs import make_certificates
from tests.support.recordings import completed

RECIPE: dict[str, Any] = {
    "id": "mine",
    "profile": "openai-compatible",
    "schema_version": "openai-compatible/1",
    "operation": "chat.completions.create",
    "required_capabilities": ["api.level1"],
    "parameters": {"MODEL_ID": "example-model"},
    "request": {"body": {"model": "${MODEL_ID}", "messages": [{"role": "user"}], "stream": True}},
    "expect": {"events": [{"type": "response.output_text.delta"}], "terminal": "success"},
}


async def invoke(endpoint: Endpoint | str, *arguments: object) -> Result:
    """Run the command on a thread of its own, as it makes its own event loop."""
    command = ["--endpoint", str(endpoint), *map(str, arguments)]
    return await asyncio.to_thread(CliRunner().invoke, conformance, command)


def refuse_all(asked: Asked, answer: Answer) -> Answer:
    body = {"type": "server_error", "code": "backend_overload", "message": "no"}
    return Answer(end={"type": "response.error", "error": body})


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "mine.json").write_text(json.dumps(RECIPE))
    return folder


async def test_a_good_target_passes_the_built_in_set(tmp_path: Path) -> None:
    results = tmp_path / "results.json"

    async with serving(Target()) as endpoint:
        result = await invoke(endpoint, "--results", results)

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == "PASSED"
    assert sum(line.startswith("passed ") for line in lines) == 26
    document = json.loads(results.read_text())
    jsonschema.validate(document, CASE_RESULTS)
    assert document["adapter"] == "scripted"
    assert {each["outcome"] for each in document["results"]} == {"passed"}


async def test_a_failed_case_makes_the_command_fail(recipes: Path, tmp_path: Path) -> None:
    claims = tmp_path / "claims.json"
    claims.write_text(json.dumps(RECORD.manifest()))
    results = tmp_path / "results.json"

    async with serving(Target(refuse_all)) as endpoint:
        result = await invoke(
            endpoint, "--recipes", recipes, "--capabilities", claims, "--results", results
        )

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "NOT PASSED"
    assert "terminal-expected: success expected" in result.stdout
    (case,) = json.loads(results.read_text())["results"]
    assert case["outcome"] == "failed"


async def test_nothing_selected_proves_nothing(recipes: Path) -> None:
    needy = RECIPE | {"required_capabilities": ["api.level9"]}
    (recipes / "mine.json").write_text(json.dumps(needy))

    async with serving(Target()) as endpoint:
        result = await invoke(endpoint, "--recipes", recipes)

    assert result.exit_code == 1
    assert "not claimed: lacks api.level9" in result.stdout
    assert "Mandatory, not claimed, hence not proven: mine" in result.stdout


async def test_the_model_and_parameters_can_be_set(recipes: Path) -> None:
    async with serving(Target()) as endpoint:
        listed = await invoke(endpoint, "--recipes", recipes)
        named = await invoke(endpoint, "--recipes", recipes, "--model", "other")
        set_ = await invoke(endpoint, "--recipes", recipes, "--set", "MODEL_ID=other")

    assert listed.exit_code == 0, listed.output
    for result in (named, set_):
        assert result.exit_code == 1
        assert "response.error (unsupported_model)" in result.stdout


async def test_json_is_one_object_with_the_verdict(recipes: Path) -> None:
    async with serving(Target()) as endpoint:
        result = await invoke(endpoint, "--recipes", recipes, "--json")

    summary = json.loads(result.stdout)
    assert result.exit_code == 0
    assert summary["passed"] is True
    assert summary["counts"]["passed"] == 1
    assert [each["id"] for each in summary["results"]] == ["mine"]


async def test_a_target_that_hangs_is_given_up(recipes: Path) -> None:
    def hang(asked: Asked, answer: Answer) -> Answer:
        return Answer() if asked.streamed else answer

    async with serving(Target(hang)) as endpoint:
        result = await invoke(endpoint, "--recipes", recipes, "--timeout", "0.2")

    assert result.exit_code == 1
    assert "terminal-missing: none came within 0.2 s" in result.stdout


async def test_a_target_that_is_not_there_fails_the_command() -> None:
    async with serving(Target()) as endpoint:
        pass

    result = await invoke(endpoint)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: cannot connect to {endpoint}")


async def test_a_target_without_a_capability_document_has_to_be_described() -> None:
    async with serving(Target(refuse_all)) as endpoint:
        result = await invoke(endpoint)

    assert result.exit_code == 2
    assert "--capabilities" in result.stderr


async def test_a_malformed_capability_document_cannot_be_judged_by() -> None:
    def lie(asked: Asked, answer: Answer) -> Answer:
        return Answer(end=completed(data=[], nnrp={"capabilities": {"profile": "other"}}))

    async with serving(Target(lie)) as endpoint:
        result = await invoke(endpoint)

    assert result.exit_code == 2
    assert f"capabilities of {endpoint}: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "MODEL_ID"], "'MODEL_ID' is not NAME=VALUE"),
        (["--set", "=x"], "'=x' is not NAME=VALUE"),
        (["--set", "NOBODY=x"], "parameter NOBODY: no recipe has it"),
        (["--timeout", "0"], "0"),
        (["--recipes", "/nowhere"], "/nowhere"),
    ],
)
async def test_a_wrong_command_is_a_usage_error(arguments: list[str], message: str) -> None:
    async with serving(Target()) as endpoint:
        result = await invoke(endpoint, *arguments)

    assert result.exit_code == 2
    assert message in result.stderr


async def test_an_endpoint_that_is_none_is_a_usage_error() -> None:
    result = await invoke("http://127.0.0.1:1")

    assert result.exit_code == 2
    assert "unknown scheme 'http'" in result.stderr


@pytest.mark.parametrize("text", ["{", "[]", '{"profile": "other"}'])
async def test_claims_that_cannot_be_read_are_a_usage_error(tmp_path: Path, text: str) -> None:
    claims = tmp_path / "claims.json"
    claims.write_text(text)

    async with serving(Target()) as endpoint:
        result = await invoke(endpoint, "--capabilities", claims)

    assert result.exit_code == 2
    assert f"capabilities of {claims}: " in result.stderr


async def test_a_bad_recipe_is_a_usage_error(recipes: Path) -> None:
    (recipes / "bad.json").write_text("{}")

    async with serving(Target()) as endpoint:
        result = await invoke(endpoint, "--recipes", recipes)

    assert result.exit_code == 2
    assert "bad.json: " in result.stderr


async def test_results_that_cannot_be_written_fail_the_command(
    recipes: Path, tmp_path: Path
) -> None:
    async with serving(Target()) as endpoint:
        result = await invoke(
            endpoint, "--recipes", recipes, "--results", tmp_path / "none" / "results.json"
        )

    assert result.exit_code == 1
    assert "cannot write the results" in result.stderr


@pytest.mark.parametrize("with_certificate", [False, True])
async def test_a_tls_target_is_judged_with_the_authorities_named(
    recipes: Path, tmp_path: Path, with_certificate: bool
) -> None:
    files = make_certificates(tmp_path)
    context = files.server_context(require_client=with_certificate)
    cert, key = files.client_pair
    ours = ["--tls-cert", cert, "--tls-key", key] if with_certificate else []

    async with serving(Target(), "tls://127.0.0.1:0", ssl=context) as endpoint:
        trusted = await invoke(endpoint, "--recipes", recipes, "--tls-ca", files.authority, *ours)
        distrusted = await invoke(endpoint, "--recipes", recipes)

    assert trusted.exit_code == 0, trusted.output
    assert distrusted.exit_code == 1
    assert "certificate verify failed" in distrusted.stderr


async def test_tls_files_that_are_none_are_a_usage_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate")

    unreadable = await invoke("tls://127.0.0.1:1", "--tls-ca", broken)
    useless = await invoke("tcp://127.0.0.1:1", "--tls-ca", broken)

    assert (unreadable.exit_code, useless.exit_code) == (2, 2)
    assert str(broken) in unreadable.stderr
    assert "are for tls:// endpoints" in useless.stderr
