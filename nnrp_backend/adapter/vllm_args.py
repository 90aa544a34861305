"""From `--model M -- FLAGS` to the arguments and the environment that vLLM starts with.

Pure: flags and an environment in, arguments and the variables to add out. Every flag of
`vllm serve` is passed through. What we add stands before the user's flags, whose value therefore
wins, and a variable that is already set is never touched.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nnrp_backend.adapter.engine import EngineConfigError
from nnrp_backend.adapter.vllm_process import PLUGIN

KV_CACHE_GIB: Final = "2"
"""Key-value cache on a CPU. vLLM's own default is most of the machine's memory, which suits a
machine that does nothing else; 2 GiB hold 65,000 tokens of a model like Llama 3.2 1B.
`VLLM_CPU_KVCACHE_SPACE` or a flag changes it."""

_REFUSED: Final[dict[str, str]] = {
    "--model": "name the model with --model before the `--`",
    "--headless": "a worker is never headless; it is the engine's front end",
    "--grpc": "a worker speaks NNRP; run vLLM's own server for gRPC",
    "--grpc-port": "a worker speaks NNRP; run vLLM's own server for gRPC",
    "--api-server-count": "a worker is one front end; start several workers instead",
    "-asc": "a worker is one front end; start several workers instead",
    "--data-parallel-multi-port-external-lb": "start several workers instead",
    "-dpm": "start several workers instead",
}
_WITHOUT_EFFECT: Final = re.compile(
    r"--(host|port|uds|api-key|root-path|middleware|allow-credentials|allowed-\w+|ssl-[\w-]+"
    r"|enable-ssl-refresh|uvicorn-log-level|disable-uvicorn-access-log|h11-[\w-]+"
    r"|disable-access-log-for-endpoints|enable-request-id-headers|sse-keep-alive-interval"
    r"|disable-fastapi-docs|enable-offline-docs)$"
)
_NAMES_SOMETHING_ELSE: Final = frozenset(
    {"--tokenizer", "--hf-config-path", "--lora-modules", "--speculative-config", "-sc", "--config"}
)
"""Flags that can name something on a hub although the model is a local folder."""
_CHOOSES_EXECUTOR: Final = frozenset(
    {
        "--distributed-executor-backend", "--config",
        "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
        "--data-parallel-size", "-dp", "--nnodes", "-n",
    }
)  # fmt: skip
_CHOOSES_COMPILATION: Final = frozenset(
    {"--enforce-eager", "--compilation-config", "--optimization-level", "-O", "-cc", "--config"}
)
_CHOOSES_CACHE_SIZE: Final = frozenset(
    {"--kv-cache-memory-bytes", "--gpu-memory-utilization", "--config"}
)


def flag_names(flags: Sequence[str]) -> frozenset[str]:
    """Return the flags that are given, in the spelling of vLLM's documentation.

    As vLLM reads them: `_` means `-`, `--no-x` sets `--x`, `--x.y 1` sets a field of `--x`, and
    `-O3` is `-O 3`.
    """
    names = set()
    for flag in flags:
        if flag.startswith("--"):
            name = re.split(r"[=.]", flag, maxsplit=1)[0].replace("_", "-")
            names.add("--" + name.removeprefix("--").removeprefix("no-"))
        elif flag.startswith("-O"):
            names.add("-O")
        elif re.match(r"-[a-z]", flag):
            names.add(re.split(r"[=.]", flag, maxsplit=1)[0])
    return frozenset(names)


def check_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags that have no effect here, because they belong to vLLM's HTTP server.

    Raises:
        EngineConfigError: a flag that contradicts being a worker.
    """
    names = flag_names(flags)
    for name, reason in _REFUSED.items():
        if name in names:
            raise EngineConfigError("vllm", f"{name}: {reason}")
    return sorted(name for name in names if _WITHOUT_EFFECT.match(name))


def serve_arguments(model: str, flags: Sequence[str], *, on_cpu: bool) -> list[str]:
    """Return the arguments for vLLM's own `vllm serve` parser.

    A model in a local folder is served under the folder's name: its path is nothing that clients
    should see or have to write.
    """
    given = flag_names(flags)
    arguments = ["--model", model]
    if Path(model).is_dir() and "--served-model-name" not in given:
        arguments += ["--served-model-name", Path(model).resolve().name]
    if on_cpu and not given & _CHOOSES_COMPILATION:
        arguments += ["--enforce-eager"]
    if on_cpu and not given & _CHOOSES_EXECUTOR:
        arguments += ["--distributed-executor-backend", "uni"]
    return [*arguments, *flags]


def base_environment(
    model: str, flags: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to set before vLLM is imported, whatever it will run on."""
    defaults = {
        # A worker's stdout is not for logs.
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        # As `vllm serve` does: forking a process with threads and a running loop is unsafe.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if Path(model).is_dir() and not flag_names(flags) & _NAMES_SOMETHING_ELSE:
        defaults |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    added = _missing(defaults, environ)
    plugins = environ.get("VLLM_PLUGINS")
    if plugins is not None and PLUGIN not in plugins.split(","):
        # A list of plugins excludes all others, and this one ends orphaned engines.
        added["VLLM_PLUGINS"] = f"{plugins},{PLUGIN}"
    return added


def cpu_environment(flags: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set on a CPU, before the engine is built."""
    given = flag_names(flags)
    defaults = {}
    if not given & _CHOOSES_CACHE_SIZE:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = KV_CACHE_GIB
    if not given & _CHOOSES_COMPILATION:
        # Without it the first request for logprobs compiles C++ for 20 s while all others wait.
        defaults["TORCHDYNAMO_DISABLE"] = "1"
    if not given & _CHOOSES_EXECUTOR:
        # vLLM replaces the `uni` executor on a CPU, which saves a process and the half of the
        # start, unless this says 0. AsyncLLM has its engine in a process of its own all the same.
        defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return _missing(defaults, environ)


def _missing(defaults: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in defaults.items() if name not in environ}
