"""The engines by name. Each is imported only when it is asked for: vLLM alone takes seconds."""

from collections.abc import Sequence
from importlib import import_module
from typing import Final, cast

from nnrp_backend.adapter.engine import Engine

ENGINES: Final = {
    "sim": "nnrp_backend.adapter.sim",
    "vllm": "nnrp_backend.adapter.vllm",
}
"""Module of each engine; its `create(model, flags)` makes the engine and starts nothing."""


def create_engine(name: str, *, model: str | None = None, flags: Sequence[str] = ()) -> Engine:
    """Make the engine that a name of `ENGINES` stands for.

    Args:
        model: what `--model` says; every engine has its own idea of it.
        flags: what stands after `--`, for the engine alone.

    Raises:
        EngineConfigError: the engine cannot have this model or these flags.
    """
    return cast("Engine", import_module(ENGINES[name]).create(model, flags))
