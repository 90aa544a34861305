"""Which GPUs each replica of a worker gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["GpuError", "device_ids", "share_out"]

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

#: Flags of the engine whose product is the number of GPUs of one replica.
_PARALLEL: Final = {
    "--tensor-parallel-size": 0,
    "-tp": 0,
    "--pipeline-parallel-size": 1,
    "-pp": 1,
    "--data-parallel-size": 2,
    "-dp": 2,
}


class GpuError(Exception):
    """There are fewer GPUs than the replicas need.

    Attributes:
        needed, available: numbers of GPUs.
    """

    def __init__(self, needed: int, available: int) -> None:
        self.needed = needed
        self.available = available
        super().__init__(f"the replicas need {needed} GPUs, and there are {available}")


def device_ids(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Return the ids of the GPUs that this process may use; none on a machine without."""
    listed = environment.get(VISIBLE)
    if listed is not None:
        return [id.strip() for id in listed.split(",") if id.strip()]
    found = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return sorted((match[1] for match in found if match), key=int)


def share_out(ids: Sequence[str], replicas: int, flags: Sequence[str]) -> list[Mapping[str, str]]:
    """Return the environment of each replica, with GPUs of its own.

    One replica, or a machine without GPUs, is left as it is.

    Raises:
        GpuError: there are not enough.
    """
    if replicas == 1 or not ids:
        return [{} for _ in range(replicas)]
    each = _gpus_of_one(flags)
    if replicas * each > len(ids):
        raise GpuError(replicas * each, len(ids))
    return [{VISIBLE: ",".join(ids[each * n : each * (n + 1)])} for n in range(replicas)]


def _gpus_of_one(flags: Sequence[str]) -> int:
    sizes = [1, 1, 1]
    words = iter(flags)
    for word in words:
        name, equals, value = word.partition("=")
        if name in _PARALLEL:
            text = value if equals else next(words, "")
            if text.isdecimal():
                sizes[_PARALLEL[name]] = int(text)
    return sizes[0] * sizes[1] * sizes[2]
