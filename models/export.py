"""A Llama of ours as a Hugging Face folder that `transformers` and `jspec.models.load` open."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from jspec._validate.errors import InputError
from jspec._validate.whole_files import write_whole
from jspec.models import columns, eight_bits, stacking
from jspec.models.huggingface import llama
from jspec.models.llama import Llama, LlamaConfig
from jspec.models.rope import RopeFactors, RopeScaling
from jspec.types import PyTree

_OTHERS = (
    *("qk_norm_joint", "pre_norm", "post_norm", "norm_offset", "activation", "embed_scale"),
    *("attention_scale", "attention_cap", "logit_cap", "layers", "output_gate", "latent", "sinks"),
    *("residual_scale", "logit_scale"),
)
"""Settings that other families have and LlamaForCausalLM lacks."""


def save_hf(
    model: Llama,
    params: PyTree,
    folder: str | Path,
    tokenizer: Any = None,
    end: int | None = None,
    dtype: DTypeLike = jnp.bfloat16,
) -> None:
    """Writes config, generation_config, weights and, if given, the tokenizer."""
    if eight_bits.low_precision(model.param_dtype):
        raise InputError(
            f"the model's weights are {eight_bits.dtype_name(model.param_dtype)}, which "
            "LlamaForCausalLM has not; save it with jspec.models.save, or load it in 16 bits"
        )
    folder = Path(folder)
    settings = config(model.config, end, jnp.dtype(dtype).name)
    folder.mkdir(parents=True, exist_ok=True)
    plain = columns.relaid(params, model.fused, model.tp_size, 1)
    tensors, params = {}, stacking.unstack_layers(plain)
    for weight in llama.weights(model.config):
        leaf = params["params"]
        for key in weight.path:
            leaf = leaf[key]
        tensors.update(weight.split(np.asarray(jnp.asarray(leaf, dtype))))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write(folder / "config.json", settings)
    if end is not None:
        write(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end})
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
        special = tokenizer.id_to_token(end) if end is not None else None
        words = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special,
            "eos_token": special,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.config.context,
        }
        write(folder / "tokenizer_config.json", {k: v for k, v in words.items() if v is not None})


def config(shape: LlamaConfig, end: int | None, dtype: str) -> dict[str, Any]:
    """Returns config.json of LlamaForCausalLM."""
    if shape.qk_norm or shape.qkv_bias != shape.output_bias:
        raise InputError(
            f"LlamaForCausalLM has no qk_norm={shape.qk_norm} with qkv_bias={shape.qkv_bias} and "
            f"output_bias={shape.output_bias}; use qk_norm=False and equal biases"
        )
    scaling = shape.rope_scaling
    if isinstance(scaling, RopeFactors):
        raise InputError(
            "config.json has no field for rope_scaling=RopeFactors(..); save the model with "
            "jspec.models.save, or export one that was loaded from a Hugging Face folder"
        )
    if not isinstance(scaling, RopeScaling | None):
        raise InputError(
            f"rope_scaling={scaling} is not written; save the model with jspec.models.save"
        )
    for field in fields(LlamaConfig):
        if field.name in _OTHERS and (value := getattr(shape, field.name)) != field.default:
            raise InputError(
                f"LlamaForCausalLM has no {field.name}={value}; save the model with "
                "jspec.models.save"
            )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None
        if scaling is None
        else {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        },
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.qkv_bias,
        "mlp_bias": shape.mlp_bias,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
    }


def write(path: Path, values: dict[str, Any]) -> None:
    write_whole(path, json.dumps(values, indent=2) + "\n")
