"""Small GGUF files as llama.cpp's converter writes them, from Hugging Face folders."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

TEXTS = [
    "Once upon a time there was a naïve 猫 named Žofie, 1234 years old.",
    "It's we'LL; x**2\n\n",
]
CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# Names of config.json's fields in GGUF, without the architecture's prefix.
FIELDS = {
    "hidden_size": "embedding_length", "n_embd": "embedding_length",
    "intermediate_size": "feed_forward_length", "n_inner": "feed_forward_length",
    "num_hidden_layers": "block_count", "n_layer": "block_count",
    "num_attention_heads": "attention.head_count", "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length", "n_positions": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "num_local_experts": "expert_count", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "mixtral": "llama"}
ARCHITECTURES |= {"qwen3_moe": "qwen3moe"}
# Where the random bytes of a block hold float16, which have to be small and finite.
SCALES = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2)}
SCALES |= {Kind.Q6_K: (208,)}
PLAIN = (Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)
"""The file that gguf itself writes."""


def words(texts=TEXTS, special=SPECIAL, split=None) -> Tokenizer:
    """A byte-level BPE tokenizer with some merges."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = split or pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=special)
    )
    return made


def vocabulary(made: Tokenizer, pre: str | None, **changes: Any) -> dict[str, Any]:
    """The fields of a byte-level tokenizer, without the `tokenizer.ggml.` before them."""
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    fields = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "bos_token_id": 1, "eos_token_id": 2,
        "token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in model["merges"]],
    } | changes  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def write(
    file: Path, fields: Mapping[str, Any], tensors: Mapping[str, np.ndarray],
    kind: Kind = Kind.F32, others: Mapping[str, Kind] | None = None,
) -> Path:  # fmt: skip
    """Writes a file; matrices are stored as `kind`, if their rows fill its blocks. `others` has
    kinds of matrices by parts of their names.
    """
    writer = gguf.GGUFWriter(file, fields.get("general.architecture", "none"))
    for name, value in fields.items():
        if name != "general.architecture":
            add(writer, name, value)
    for name, array in tensors.items():
        own = next((one for part, one in (others or {}).items() if part in name), kind)
        block, _ = gguf.GGML_QUANT_SIZES[own]
        stored = own if array.ndim == 2 and array.shape[1] % block == 0 else Kind.F32
        writer.add_tensor(name, quantise(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


def quantise(array: np.ndarray, kind: Kind) -> np.ndarray:
    """The bytes of an array. K-quants, which gguf reads and does not write, get random ones."""
    if kind not in SCALES:
        return gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(array.size)
    blocks = rng.integers(0, 256, (array.size // block, size), np.uint8)
    for start in SCALES[kind]:
        scale = rng.uniform(1e-5, 4e-5, len(blocks)).astype(np.float16)
        blocks[:, start : start + 2] = scale[:, None].view(np.uint8)
    return blocks.reshape(array.shape[0], -1)


def convert(
    folder: Path, file: Path, kind: Kind = Kind.F32, factors: np.ndarray | None = None,
    changes: Mapping[str, Any] | None = None, long: Mapping[str, Any] | None = None,
    others: Mapping[str, Kind] | None = None,
) -> Path:  # fmt: skip
    """A checkpoint in Hugging Face layout as GGUF; `changes` are fields, None takes one away,
    `long` are LongRoPE's divisors by config.json's names, and `others` as in `write`.
    """
    config = json.loads((folder / "config.json").read_text())
    name = ARCHITECTURES.get(config["model_type"], config["model_type"])
    fields = {"general.architecture": name} | {
        f"{name}.{here}": config[there] for there, here in FIELDS.items() if config.get(there)
    }
    tokens = vocabulary(words(), "gpt-2")
    missing = range(len(tokens["tokens"]), config["vocab_size"])
    tokens["tokens"] += [f"<unused{number}>" for number in missing]
    tokens["token_type"] += [5 for _ in missing]
    fields |= {f"tokenizer.ggml.{k}": v for k, v in tokens.items()}
    fields["tokenizer.chat_template"] = CHAT
    if "rope_theta" in (rope := config.get("rope_parameters", {})):
        fields[f"{name}.rope.freq_base"] = float(rope["rope_theta"])
    fields |= changes or {}
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], layers)
    tensors = {}
    for there, array in load_file(folder / "model.safetensors").items():
        if expert := re.search(r"\.experts\.(\d+)\.", there):
            # All experts of a layer are one tensor.
            there = there[: expert.start(1)] + there[expert.end() :]
            here = names.get_name(there, try_suffixes=(".weight",))
            stack = tensors.setdefault(here, {})
            stack[int(expert[1])] = array
            continue
        here = names.get_name(there, try_suffixes=(".weight", ".bias"))
        part = there.split(".")[-2]
        if name in ("llama", "smollm3") and part in ("q_proj", "k_proj"):
            heads = config["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
            halves = array.reshape(heads, 2, -1, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        if name.startswith("gemma") and there.endswith("norm.weight"):
            array = array + 1
        if name == "gpt2" and array.ndim == 2 and part.startswith("c_"):
            array = array.T
        tensors[here] = array
    for here, stack in tensors.items():
        if isinstance(stack, dict):
            tensors[here] = np.stack([stack[expert] for expert in sorted(stack)])
    if factors is not None:
        tensors["rope_freqs.weight"] = factors
    for there, divisors in (long or {}).items():
        size = there.removesuffix("_factor")
        tensors[f"rope_factors_{size}.weight"] = np.array(divisors, np.float32)
    return write(file, {k: v for k, v in fields.items() if v is not None}, tensors, kind, others)
