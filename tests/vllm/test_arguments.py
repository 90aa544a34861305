"""Flags for GPUs reach vLLM's own configuration, though no GPU is needed to see it."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

# In a process of its own: importing vLLM changes a process for good.
SCRIPT = """
import json, sys
from nnrp_backend.adapter.engine import EngineConfigError
from nnrp_backend.adapter.vllm import load_vllm
from nnrp_backend.adapter.vllm_args import serve_arguments

def configured(flags):
    try:
        args = vllm.parse(serve_arguments("org/model", flags, on_cpu=False))
    except (EngineConfigError, TypeError) as refused:
        return str(refused)
    return {**vars(AsyncEngineArgs.from_cli_args(args)), **vars(args)}

vllm = load_vllm("org/model", [])
from vllm.engine.arg_utils import AsyncEngineArgs
answers = {name: configured(flags) for name, flags in json.loads(sys.argv[1]).items()}
print(json.dumps(answers, default=str))
"""

FLAGS = {
    "gpu": [
        "--tensor-parallel-size", "4",
        "-pp", "2",
        "--data_parallel_size=2",
        "--gpu-memory-utilization", "0.85",
        "--kv-cache-dtype", "fp8",
        "--quantization", "fp8",
        "--max-num-batched-tokens", "8k",
        "--compilation-config.cudagraph_mode", "FULL",
        "--speculative-config", '{"method":"ngram","num_speculative_tokens":3}',
        "--scheduling-policy", "priority",
        "--served-model-name", "qwen", "qwen-large",
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--reasoning-parser", "qwen3",
        "--no-enable-prefix-caching",
    ],
    "none": [],
    "bad value": ["--dtype", "float13"],
    "stray": ["stray"],
    "half": ["--enable-auto-tool-choice"],
}  # fmt: skip


@pytest.fixture(scope="module")
def configured() -> dict[str, Any]:
    """Return what vLLM makes of each list of flags: its settings, or why it refuses them."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(FLAGS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_flags_of_a_gpu_deployment(configured: dict[str, Any]) -> None:
    settings = configured["gpu"]
    assert settings["model"] == "org/model"
    assert settings["served_model_name"] == ["qwen", "qwen-large"]
    assert settings["tensor_parallel_size"] == 4
    assert settings["pipeline_parallel_size"] == 2
    assert settings["data_parallel_size"] == 2
    assert settings["gpu_memory_utilization"] == 0.85
    assert settings["kv_cache_dtype"] == "fp8"
    assert settings["quantization"] == "fp8"
    assert settings["max_num_batched_tokens"] == 8000
    assert "FULL" in settings["compilation_config"]
    assert settings["speculative_config"]["num_speculative_tokens"] == 3
    assert settings["scheduling_policy"] == "priority"
    assert settings["enable_auto_tool_choice"] is True
    assert settings["tool_call_parser"] == "hermes"
    assert settings["reasoning_parser"] == "qwen3"
    assert settings["enable_prefix_caching"] is False


def test_nothing_of_a_cpu_is_imposed_on_a_gpu(configured: dict[str, Any]) -> None:
    settings = configured["none"]
    assert settings["enforce_eager"] is False
    assert settings["distributed_executor_backend"] is None
    assert settings["served_model_name"] is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bad value", "vllm engine: argument --dtype: invalid choice: 'float13'"),
        ("stray", "vllm engine: unexpected argument 'stray'"),
        ("half", "Error: --enable-auto-tool-choice requires --tool-call-parser"),
    ],
)
def test_flags_that_vllm_refuses(configured: dict[str, Any], name: str, reason: str) -> None:
    assert configured[name].startswith(reason)
