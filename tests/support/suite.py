"""Find the public conformance suite's files, where they lie beside the repository."""

from pathlib import Path

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data" / "nnrp-conformance"

SUITE: Path | None = _BESIDE if _BESIDE.is_dir() else None
"""The folder with the suite's `manifest.json`, `recipes/` and `schemas/`; None without it."""
