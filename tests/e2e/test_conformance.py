"""The conformance command against the worker command: two processes, one socket."""

import json
from pathlib import Path

import jsonschema
import pytest

from tests.support.case_results import CASE_RESULTS
from tests.support.processes import run, worker
from tests.support.suite import SUITE


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_the_sim_worker_conforms(scheme: str, tmp_path: Path) -> None:
    listen = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/worker.sock"
    results = tmp_path / "results.json"

    with worker("--engine", "sim", "--listen", listen) as (_, said):
        (endpoint,) = said["listen"]
        done = run("nnrp-backend", "conformance", "--endpoint", endpoint, "--results", results)

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(results.read_text())
    jsonschema.validate(document, CASE_RESULTS)
    assert len(document["results"]) >= 26
    assert {result["outcome"] for result in document["results"]} == {"passed"}


if SUITE is not None:  # its files lie beside the repository
    SUITE_FOLDER = SUITE

    def test_the_sim_worker_passes_the_suites_own_recipes(tmp_path: Path) -> None:
        results = tmp_path / "results.json"

        with worker("--engine", "sim", "--listen", f"unix://{tmp_path}/worker.sock") as (_, said):
            done = run(
                "nnrp-backend",
                "conformance",
                *("--endpoint", said["listen"][0]),
                *("--recipes", SUITE_FOLDER),
                *("--results", results),
            )

        assert done.returncode == 0, done.stdout + done.stderr
        schema = SUITE_FOLDER / "schemas" / "api-profile-case-results.schema.json"
        document = json.loads(results.read_text())
        jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(document)
        assert len(document["results"]) == 8
