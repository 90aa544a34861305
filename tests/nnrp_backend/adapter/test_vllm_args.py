from pathlib import Path

import pytest

from nnrp_backend.adapter.engine import EngineConfigError
from nnrp_backend.adapter.vllm_args import (
    KV_CACHE_GIB,
    base_environment,
    check_flags,
    cpu_environment,
    flag_names,
    serve_arguments,
)

HUB = "Qwen/Qwen3-0.6B"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = tmp_path / "my-model"
    path.mkdir()
    return str(path)


# How vLLM's parser reads flags (vllm/utils/argparse_utils.py, FlexibleArgumentParser).
@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--dtype", "float32"], {"--dtype"}),
        (["--dtype=float32"], {"--dtype"}),
        (["--max_model_len", "10"], {"--max-model-len"}),
        (["--no-enforce-eager"], {"--enforce-eager"}),
        (["--no_enforce_eager"], {"--enforce-eager"}),
        (["--compilation-config.mode", "3"], {"--compilation-config"}),
        (["--compilation_config.mode=3"], {"--compilation-config"}),
        (["-O3"], {"-O"}),
        (["-O", "3"], {"-O"}),
        (["-tp", "2"], {"-tp"}),
        (["-tp=2"], {"-tp"}),
        (["--seed", "-1"], {"--seed"}),
        (["--nnodes", "2"], {"--nnodes"}),
        (["--chat-template", "a -tp b"], {"--chat-template"}),
        ([], set()),
    ],
)
def test_flags_are_read_as_vllm_reads_them(flags: list[str], names: set[str]) -> None:
    assert flag_names(flags) == names


class TestArgumentsOnAGpu:
    def test_nothing_is_added_to_a_hub_model_and_its_flags(self) -> None:
        flags = ["--tensor-parallel-size", "4", "--gpu-memory-utilization=0.9", "-O3"]
        assert serve_arguments(HUB, flags, on_cpu=False) == ["--model", HUB, *flags]

    def test_a_folder_is_served_under_its_own_name_not_its_path(self, folder: str) -> None:
        arguments = serve_arguments(folder, [], on_cpu=False)
        assert arguments == ["--model", folder, "--served-model-name", "my-model"]

    def test_a_folder_given_as_a_relative_path_has_a_name_too(
        self, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder)
        arguments = serve_arguments(".", [], on_cpu=False)
        assert arguments == ["--model", ".", "--served-model-name", "my-model"]

    @pytest.mark.parametrize("flag", ["--served-model-name", "--served_model_name"])
    def test_the_name_that_the_user_gives_stays(self, folder: str, flag: str) -> None:
        arguments = serve_arguments(folder, [flag, "a", "b"], on_cpu=False)
        assert arguments == ["--model", folder, flag, "a", "b"]


class TestArgumentsOnACpu:
    def test_a_cpu_gets_eager_mode_and_one_process_less(self) -> None:
        assert serve_arguments(HUB, [], on_cpu=True) == [
            "--model", HUB, "--enforce-eager", "--distributed-executor-backend", "uni",
        ]  # fmt: skip

    def test_defaults_stand_before_the_flags_which_therefore_win(self) -> None:
        arguments = serve_arguments(HUB, ["--seed", "1"], on_cpu=True)
        assert arguments[-2:] == ["--seed", "1"]

    @pytest.mark.parametrize(
        "flags", [["--no-enforce-eager"], ["-O3"], ["-cc.mode=3"], ["--compilation-config", "{}"]]
    )
    def test_a_user_who_wants_compilation_gets_it(self, flags: list[str]) -> None:
        assert "--enforce-eager" not in serve_arguments(HUB, flags, on_cpu=True)

    @pytest.mark.parametrize(
        "flags",
        [["-tp", "2"], ["--pipeline-parallel-size=2"], ["--distributed-executor-backend", "mp"]],
    )
    def test_a_user_who_chooses_an_executor_gets_it(self, flags: list[str]) -> None:
        assert "uni" not in serve_arguments(HUB, flags, on_cpu=True)

    def test_a_config_file_may_choose_both(self) -> None:
        assert serve_arguments(HUB, ["--config", "c.yaml"], on_cpu=True) == [
            "--model", HUB, "--config", "c.yaml",
        ]  # fmt: skip


class TestFlagsThatAWorkerCannotHave:
    @pytest.mark.parametrize(
        "flags",
        [
            ["--model", "other"],
            ["--model=other"],
            ["--headless"],
            ["--grpc"],
            ["--grpc_port", "1"],
            ["--api-server-count", "2"],
            ["-asc", "2"],
            ["--data-parallel-multi-port-external-lb"],
        ],
    )
    def test_they_are_refused_by_name(self, flags: list[str]) -> None:
        name = flags[0].partition("=")[0].replace("_", "-")
        with pytest.raises(EngineConfigError, match=f"^vllm engine: {name}: "):
            check_flags(flags)

    def test_flags_of_the_http_server_are_reported(self) -> None:
        flags = ["--port", "80", "--api-key", "s", "--ssl-keyfile=k", "--allowed_origins", "[]"]
        assert check_flags(["--seed", "1", *flags]) == [
            "--allowed-origins", "--api-key", "--port", "--ssl-keyfile",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "flags",
        [
            ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"],
            ["--allowed-local-media-path", "/data"],
            ["--data-parallel-size", "2"],
            ["--chat-template", "t.jinja"],
            ["--model-impl", "transformers"],
        ],
    )
    def test_all_others_pass_in_silence(self, flags: list[str]) -> None:
        assert check_flags(flags) == []


class TestEnvironment:
    def test_vllm_logs_to_stderr_spawns_and_sends_no_statistics(self) -> None:
        assert base_environment(HUB, [], {}) == {
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }

    def test_what_the_user_set_is_left_alone(self, folder: str) -> None:
        environ = {
            "VLLM_LOGGING_STREAM": "ext://sys.stdout",
            "VLLM_NO_USAGE_STATS": "0",
            "VLLM_WORKER_MULTIPROC_METHOD": "fork",
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
        }
        assert base_environment(folder, [], environ) == {}

    def test_a_local_folder_needs_no_hub(self, folder: str) -> None:
        added = base_environment(folder, [], {})
        assert (added["HF_HUB_OFFLINE"], added["TRANSFORMERS_OFFLINE"]) == ("1", "1")

    @pytest.mark.parametrize("flag", ["--tokenizer", "--speculative_config", "--lora-modules"])
    def test_a_flag_beside_the_folder_may_need_the_hub(self, folder: str, flag: str) -> None:
        assert "HF_HUB_OFFLINE" not in base_environment(folder, [flag, "some/thing"], {})

    @pytest.mark.parametrize(
        ("given", "expected"),
        [("", ",nnrp_backend"), ("lora", "lora,nnrp_backend"), ("nnrp_backend,lora", None)],
    )
    def test_a_list_of_plugins_keeps_ours(self, given: str, expected: str | None) -> None:
        assert base_environment(HUB, [], {"VLLM_PLUGINS": given}).get("VLLM_PLUGINS") == expected

    def test_a_cpu_gets_a_bounded_cache_no_compiler_and_one_process_less(self) -> None:
        assert cpu_environment([], {}) == {
            "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }

    @pytest.mark.parametrize(
        ("flags", "absent"),
        [
            (["--kv-cache-memory-bytes", "1G"], "VLLM_CPU_KVCACHE_SPACE"),
            (["--gpu_memory_utilization=0.5"], "VLLM_CPU_KVCACHE_SPACE"),
            (["--no-enforce-eager"], "TORCHDYNAMO_DISABLE"),
            (["--distributed-executor-backend", "mp"], "VLLM_ENABLE_V1_MULTIPROCESSING"),
            (["-tp", "2"], "VLLM_ENABLE_V1_MULTIPROCESSING"),
        ],
    )
    def test_a_flag_that_decides_it_is_not_overruled(self, flags: list[str], absent: str) -> None:
        assert cpu_environment([], {}).keys() - cpu_environment(flags, {}).keys() == {absent}

    def test_variables_that_are_set_win(self) -> None:
        environ = {
            "VLLM_CPU_KVCACHE_SPACE": "40",
            "TORCHDYNAMO_DISABLE": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        }
        assert cpu_environment([], environ) == {}
