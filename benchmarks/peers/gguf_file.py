"""A Llama of ours as a GGUF file, without words: token ids go in and come out.

Weights in blocks are written as they are, all others in float32.
"""

from pathlib import Path
from typing import Any

import gguf  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp
import numpy as np

from jspec._validate.errors import InputError
from jspec.models import blocks, eight_bits
from jspec.models.huggingface import llama
from jspec.models.llama import Llama, LlamaConfig
from jspec.models.rope import frequencies
from jspec.models.stacking import unstack_layers
from jspec.types import PyTree


def write(model: Any, params: PyTree, path: Path) -> None:
    """Writes weights and shape in GGUF.

    Args:
        model: a Llama, Mistral, Qwen2 or Qwen3.
        params: its weights.
        path: of the file.

    Raises:
        InputError: if it is not such a model.
    """
    if not isinstance(model, Llama):
        raise InputError(
            f"the GGUF file of a {type(model).__name__} is not implemented; leave llama.cpp out"
        )
    if blocks.FORMATS.get(eight_bits.dtype_name(model.param_dtype)) in blocks.FROM_FILES:
        raise InputError("a model in K-quants comes from a GGUF file; give llama.cpp that one")
    config = model.config
    if config.layers or config.post_norm or not config.pre_norm:
        raise InputError(
            "the GGUF file of a model with windows, experts or norms behind its layers is not "
            "implemented; leave llama.cpp out"
        )
    kind = architecture(config)
    names = gguf.get_tensor_name_map(kind, config.num_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _shape(writer, config)
    own = unstack_layers(params)["params"]
    for weight in llama.weights(config):
        stored = eight_bits.in_blocks(weight.path, weight.shape, model.param_dtype)
        raw = gguf.GGMLQuantizationType[stored.upper()] if stored else None
        for name, tensor in weight.split(_array(own, weight.path)):
            if kind == gguf.MODEL_ARCH.LLAMA:
                tensor = _interleaved(name, tensor, config)
            place = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert place is not None, f"{architecture.__name__} gives one that has {name}"
            writer.add_tensor(place, np.ascontiguousarray(tensor), raw_dtype=raw)
    if config.rope_scaling is not None:
        plain = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        slowed = frequencies(config.rope, config.head_dim, config.context)
        writer.add_tensor("rope_freqs.weight", (plain / slowed).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _array(leaf: PyTree, path: tuple[str, ...]) -> np.ndarray:
    """Returns the bytes of weights in blocks; others in float32, times their factors if any."""
    *above, name = path
    for key in above:
        leaf = leaf[key]
    if leaf[name].dtype == jnp.uint8:
        return np.asarray(leaf[name])
    wide = np.asarray(leaf[name], np.float32)
    factors = leaf.get(f"{name}{eight_bits.SUFFIX}")
    return wide if factors is None else wide * np.asarray(factors)[..., None]


def architecture(config: LlamaConfig) -> gguf.MODEL_ARCH:
    """Returns the architecture of llama.cpp that has these norms and biases."""
    if config.qk_norm:
        return gguf.MODEL_ARCH.QWEN3
    if config.qkv_bias and not config.output_bias:
        return gguf.MODEL_ARCH.QWEN2
    return gguf.MODEL_ARCH.LLAMA


def _shape(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")


def _interleaved(name: str, tensor: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """Returns queries, keys in llama.cpp's order: lane i pairs with its neighbour, not i + D/2."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    split = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return split.swapaxes(1, 2).reshape(tensor.shape)
