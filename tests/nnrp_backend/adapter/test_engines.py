import subprocess
import sys

import pytest

from nnrp_backend.adapter.engine import EngineConfigError
from nnrp_backend.adapter.engines import ENGINES, create_engine


def test_sim() -> None:
    engine = create_engine("sim", model="my/model")
    assert engine.name == "sim"
    assert engine.capabilities().models[0]["id"] == "my/model"


def test_vllm_is_made_without_importing_it() -> None:
    assert create_engine("vllm", model="some/model", flags=["--enforce-eager"]).name == "vllm"
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(
    ("name", "model", "flags"), [("sim", None, ["--dtype", "float32"]), ("vllm", None, [])]
)
def test_settings_that_cannot_work(name: str, model: str | None, flags: list[str]) -> None:
    with pytest.raises(EngineConfigError, match=f"^{name} engine: "):
        create_engine(name, model=model, flags=flags)


def test_an_engine_is_imported_only_when_it_is_asked_for() -> None:
    code = (
        "import sys, nnrp_backend.adapter.engines as e; "
        "assert not set(e.ENGINES.values()) & set(sys.modules); "
        "e.create_engine('sim'); "
        "assert e.ENGINES['sim'] in sys.modules and e.ENGINES['vllm'] not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_engine_has_a_name() -> None:
    assert set(ENGINES) == {"sim", "vllm"}
