"""Maps GGUF metadata to config.json's fields, and weights to Hugging Face's layout."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from jspec._validate.errors import InputError
from jspec.models.gguf.header import Header
from jspec.models.huggingface import rope_fields

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3.1's divisors of the rotary frequencies, which GGUF writes as a tensor."""

LONG_FACTORS = {
    "long_factor": "rope_factors_long.weight",
    "short_factor": "rope_factors_short.weight",
}
"""LongRoPE's, by their names in config.json."""

_EMBED, _HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class GGUFLayout:
    """Differences of one llama.cpp architecture from Hugging Face's."""

    fields: Callable[[Header, str], dict[str, Any]]
    restore: Callable[[str, np.ndarray, dict[str, Any]], np.ndarray] = lambda _, array, __: array
    unit: Callable[[str, int, dict[str, Any]], int] = lambda _, __, ___: 1


def find(header: Header) -> tuple[str, GGUFLayout]:
    """Returns the architecture that a file names, and its layout."""
    name = header.metadata.text("general.architecture")
    if name is None or name not in LAYOUTS:
        raise InputError(
            f"{header.file} is of the architecture {name!r}; supported: {', '.join(LAYOUTS)}"
        )
    return name, LAYOUTS[name]


def _llama(header: Header, name: str, turned: int | None = None) -> dict[str, Any]:
    """Returns the fields that most share; `turned` lanes of a head are rotated, None: all."""
    data = header.metadata
    heads, width = data.size(f"{name}.attention.head_count"), data.size(f"{name}.embedding_length")
    dim = data.size(f"{name}.attention.key_length", max(width // heads, 1))
    data.choice(f"{name}.attention.value_length", [dim], dim)
    data.choice(f"{name}.rope.dimension_count", [turned or dim], turned or dim)
    return {
        "model_type": name,
        "vocab_size": _vocabulary(header),
        "hidden_size": width,
        "intermediate_size": data.size(f"{name}.feed_forward_length"),
        "num_hidden_layers": data.count(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": data.size(f"{name}.attention.head_count_kv", heads),
        "head_dim": dim,
        "max_position_embeddings": data.size(f"{name}.context_length"),
        "rms_norm_eps": data.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": data.number(f"{name}.rope.freq_base", 10000.0),
        "rope_scaling": _stretch(header, f"{name}.rope."),
        "tie_word_embeddings": _HEAD not in header.tensors,
        # Qwen2 always has biases and its config.json never says so.
        "attention_bias": name != "qwen2" and "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def _stretch(header: Header, rope: str) -> dict[str, Any] | None:
    """Returns the stretch of the rotary frequencies, as config.json has it; None: none."""
    data = header.metadata
    tensors = all(name in header.tensors for name in LONG_FACTORS.values())
    # Without a type a factor stretches all the same.
    usual = "longrope" if tensors else "linear"
    kind = data.choice(f"{rope}scaling.type", ["none", "linear", "yarn", "longrope"], usual)
    names = [f"{rope}scaling.factor", f"{rope}scale_linear"]
    factor = next((data.number(name) for name in names if data.get(name)), 1.0)  # 0: none
    if kind == "longrope" and not tensors:
        missing = " and ".join(LONG_FACTORS.values())
        raise InputError(
            f"{header.file} has {rope}scaling.type = 'longrope' and no {missing}; convert it again"
        )
    if kind == "none" or (kind == "linear" and factor == 1):
        data.choice(f"{rope}scaling.attn_factor", [0, 1], 1)
        return None
    if ROPE_FACTORS in header.tensors:
        raise InputError(
            f"{header.file} has {ROPE_FACTORS} and {rope}scaling.type = {kind!r}, which jspec does "
            "not implement together; take a file with one of them"
        )
    scaling: dict[str, Any] = {"rope_type": kind}
    if kind != "longrope":
        scaling["factor"] = factor
    keys = {
        "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    scaling |= {key: data.get(f"{rope}scaling.{field}") for key, field in keys.items()}
    both = (f"{rope}scaling.{name}" for name in ("attn_factor", "yarn_attn_factor"))
    length = prod(data.number(name, 1.0) for name in both)
    if kind == "yarn":
        data.choice(f"{rope}scaling.yarn_ext_factor", [1, -1], 1)  # -1 is the type's own, 1
    if kind == "yarn" and length != 1:
        scaling["attention_factor"] = length * rope_fields.length(factor)
    elif kind == "longrope":
        scaling["attention_factor"] = data.get(f"{rope}scaling.attn_factor")
    else:
        data.choice(f"{rope}scaling.attn_factor", [0, 1], 1)
    return scaling


def _mixtral(header: Header, name: str) -> dict[str, Any]:
    """Maps Llama, and Mixtral as a Llama with experts."""
    data, fields = header.metadata, _llama(header, name)
    if not data.get(f"{name}.expert_count"):
        return fields
    return fields | {
        "model_type": "mixtral",
        "num_local_experts": data.count(f"{name}.expert_count"),
        "num_experts_per_tok": data.size(f"{name}.expert_used_count"),
    }


def _qwen3moe(header: Header, name: str) -> dict[str, Any]:
    data = header.metadata
    return _llama(header, name) | {
        "model_type": "qwen3_moe",
        "num_experts": data.count(f"{name}.expert_count"),
        "num_experts_per_tok": data.size(f"{name}.expert_used_count"),
        "moe_intermediate_size": data.size(f"{name}.expert_feed_forward_length"),
        # llama.cpp has no field for it, and always does.
        "norm_topk_prob": True,
    }


def _gemma2(header: Header, name: str) -> dict[str, Any]:
    data = header.metadata
    fields = _llama(header, name)
    # llama.cpp computes the scale: from the width of all heads in the largest model alone.
    largest = fields["num_hidden_layers"] == {"gemma2": 46, "gemma3": 62}[name]
    scalar = fields["hidden_size"] // fields["num_attention_heads"]
    return fields | {
        "sliding_window": data.get(f"{name}.attention.sliding_window", 4096),
        "query_pre_attn_scalar": scalar if largest else fields["head_dim"],
        "attn_logit_softcapping": data.number(f"{name}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": data.number(f"{name}.final_logit_softcapping", 30.0),
    }


def _gemma3(header: Header, name: str) -> dict[str, Any]:
    data = header.metadata
    fields = _gemma2(header, name)
    data.choice(f"{name}.attention.sliding_window_pattern", [6], 6)
    return fields | {
        "model_type": "gemma3_text",
        "rope_theta": data.number(f"{name}.rope.freq_base", 1e6),
        "rope_local_base_freq": data.number(f"{name}.rope.freq_base_swa", 10000.0),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }


def _phi3(header: Header, name: str) -> dict[str, Any]:
    data = header.metadata
    turned = data.size(f"{name}.rope.dimension_count")
    fields = _llama(header, name, turned)
    return fields | {
        "partial_rotary_factor": turned / fields["head_dim"],
        "sliding_window": data.get(f"{name}.attention.sliding_window"),
    }


def _gpt2(header: Header, name: str) -> dict[str, Any]:
    data = header.metadata
    return {
        "model_type": name,
        "vocab_size": _vocabulary(header),
        "n_embd": data.size(f"{name}.embedding_length"),
        "n_inner": data.size(f"{name}.feed_forward_length"),
        "n_layer": data.count(f"{name}.block_count"),
        "n_head": data.size(f"{name}.attention.head_count"),
        "n_positions": data.size(f"{name}.context_length"),
        "layer_norm_epsilon": data.number(f"{name}.attention.layer_norm_epsilon"),
        "tie_word_embeddings": _HEAD not in header.tensors,
    }


def _vocabulary(header: Header) -> int:
    """Returns rows of the embeddings, which may be more than the tokens that the file lists."""
    if _EMBED not in header.tensors:
        raise InputError(f"{header.file} has no {_EMBED}; name the file of a language model")
    shape = header.tensors[_EMBED].shape
    if len(shape) != 2:
        raise InputError(f"{header.file} has {_EMBED} of sizes {shape}, not two; download it again")
    return shape[0]


_TURNED = ("q_proj", "k_proj")
"""Layers whose results are turned by their positions."""


def _side_by_side(name: str, array: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    """Returns queries and keys with rotary pairs D/2 lanes apart, unlike llama.cpp."""
    if name.split(".")[-2] not in _TURNED:
        return array
    apart = array.reshape(-1, fields["head_dim"] // 2, 2, *array.shape[1:])
    return apart.swapaxes(1, 2).reshape(array.shape)


def _head(name: str, rows: int, fields: dict[str, Any]) -> int:
    """Returns the rows within which pairs are laid out: a head's."""
    return fields["head_dim"] if name.split(".")[-2] in _TURNED else 1


def _around_zero(name: str, array: np.ndarray, _: dict[str, Any]) -> np.ndarray:
    """Gemma's norms multiply with 1 + w, and a GGUF holds 1 + w."""
    return array - 1 if name.endswith("norm.weight") else array


def _all(name: str, rows: int, _: dict[str, Any]) -> int:
    return rows


def _inputs_first(name: str, array: np.ndarray, _: dict[str, Any]) -> np.ndarray:
    """Transposes layers: GPT-2's are [in, out] in its checkpoints, and [out, in] in a GGUF."""
    layer = name.split(".")[-2]
    return array.T if array.ndim == 2 and layer in ("c_attn", "c_proj", "c_fc") else array


LAYOUTS = {
    "llama": GGUFLayout(_mixtral, _side_by_side, _head),
    "qwen2": GGUFLayout(_llama),
    "qwen3": GGUFLayout(_llama),
    "qwen3moe": GGUFLayout(_qwen3moe),
    "gemma2": GGUFLayout(_gemma2, _around_zero),
    "gemma3": GGUFLayout(_gemma3, _around_zero),
    "phi3": GGUFLayout(_phi3),
    "olmo2": GGUFLayout(_llama),
    "smollm3": GGUFLayout(_llama, _side_by_side, _head),
    "gpt2": GGUFLayout(_gpt2, _inputs_first, _all),
}
"""By `general.architecture`. Mistral, Mixtral and SmolLM2 are written as llama."""
