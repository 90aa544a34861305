"""Sharing the GPUs of a machine out among replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.supervisor.gpus import GpuError, device_ids, share_out


def test_the_environment_says_which_gpus_there_are(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert device_ids({"CUDA_VISIBLE_DEVICES": "2, GPU-1a,5"}, tmp_path) == ["2", "GPU-1a", "5"]
    assert device_ids({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []


def test_without_it_the_device_files_do(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert device_ids({}, tmp_path) == ["2", "10"]
    assert device_ids({}, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ["0", "1"]),
        (["--tensor-parallel-size", "2"], ["0,1", "2,3"]),
        (["--tensor-parallel-size=2", "--max-model-len", "4"], ["0,1", "2,3"]),
        (["-tp", "2", "-pp", "2"], ["0,1,2,3", "4,5,6,7"]),
        (["-dp=2"], ["0,1", "2,3"]),
        (["-tp", "x"], ["0", "1"]),
        (["-tp"], ["0", "1"]),
    ],
)
def test_each_replica_gets_as_many_as_its_flags_need(flags: list[str], expected: list[str]) -> None:
    shares = share_out([str(id) for id in range(8)], 2, flags)
    assert [dict(share) for share in shares] == [{"CUDA_VISIBLE_DEVICES": ids} for ids in expected]


def test_one_replica_and_a_machine_without_gpus_are_left_alone() -> None:
    assert share_out(["0", "1"], 1, ["-tp", "2"]) == [{}]
    assert share_out([], 3, []) == [{}, {}, {}]


def test_too_few_gpus_are_said_at_once() -> None:
    with pytest.raises(GpuError, match="the replicas need 4 GPUs, and there are 3") as caught:
        share_out(["0", "1", "2"], 2, ["-tp", "2"])
    assert (caught.value.needed, caught.value.available) == (4, 3)
