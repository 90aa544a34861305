"""Promises of the tree: tests mirror the packages, files stay small, dependencies have reasons."""

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "nnrp_backend")
UNMIRRORED = {"__init__.py", "__main__.py"}
LINE_LIMIT = 800


def modules() -> list[Path]:
    return [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name not in UNMIRRORED
    ]


def mirrored(module: Path) -> Path:
    return Path("tests", *module.parts[:-1], f"test_{module.name}")


@pytest.mark.parametrize("module", modules(), ids=str)
def test_each_module_has_its_test_file(module: Path) -> None:
    assert (ROOT / mirrored(module)).is_file(), f"{module} has no {mirrored(module)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_each_test_file_has_its_module(package: str) -> None:
    expected = {mirrored(module) for module in modules()}
    found = {
        path.relative_to(ROOT)
        for path in (ROOT / "tests" / package).rglob("test_*.py")
        if "interop" not in path.parts
    }
    assert found <= expected, f"these test files mirror no module: {sorted(found - expected)}"


def test_no_source_file_is_too_long() -> None:
    sources = [p for top in (*PACKAGES, "tests", "benchmarks") for p in (ROOT / top).rglob("*.py")]
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if (lines := path.read_text().count("\n")) > LINE_LIMIT
    }
    assert not long


def test_each_dependency_is_justified_in_the_docs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[A-Za-z0-9_.-]+", spec)[0] for group in groups for spec in group}
    text = (ROOT / "docs" / "dependencies.md").read_text()
    assert {name for name in names if f"`{name}`" not in text} == set()


def imported(package: str) -> set[str]:
    """Return the top-level modules that a package imports, neither ours nor Python's."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


def test_what_is_imported_is_what_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    specs = project["dependencies"] + project["optional-dependencies"]["vllm"]
    declared = {re.match(r"[A-Za-z0-9_.-]+", spec)[0].replace("-", "_") for spec in specs}
    modules = set().union(*map(imported, PACKAGES))
    # pydantic pins its core to one version, and is made to be used together with it.
    named = {"yaml": "pyyaml", "pydantic_core": "pydantic"}
    assert {named.get(module, module) for module in modules} == declared


def test_every_dependency_has_a_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    loose = [spec for spec in project["dependencies"] if not re.search(r">=.*<", spec)]
    assert loose == []


def test_a_missing_mirror_would_be_noticed(tmp_path: Path) -> None:
    assert not (tmp_path / mirrored(Path("gateway/nowhere.py"))).exists()
    assert mirrored(Path("gateway/pool/pool.py")) == Path("tests/gateway/pool/test_pool.py")


def test_the_readme_shows_the_configuration_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("config_table", ROOT / "scripts/config_table.py")
    assert spec is not None
    assert spec.loader is not None
    config_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config_table)
    readme = (ROOT / "README.md").read_text()
    assert readme == config_table.replaced(readme), "run scripts/config_table.py --write"
