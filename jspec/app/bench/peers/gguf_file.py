"""A Llama of ours as a float32 GGUF file, without words: token ids go in and come out."""

from pathlib import Path
from typing import Any

import gguf  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp
import numpy as np

from jspec.base import PyTree
from jspec.errors import InputError
from jspec.models.huggingface import llama
from jspec.models.llama import Llama, LlamaConfig
from jspec.models.rope import frequencies


def write(model: Any, params: PyTree, path: Path) -> None:
    """Writes weights and shape in GGUF.

    Args:
        model: a Llama, Mistral, Qwen2 or Qwen3.
        params: its weights.
        path: of the file.

    Raises:
        InputError: if it is no such model.
    """
    if not isinstance(model, Llama):
        raise InputError(
            f"the GGUF file of a {type(model).__name__} is not implemented; leave llama.cpp out"
        )
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
    for weight in llama.weights(config):
        leaf = params["params"]
        for key in weight.path:
            leaf = leaf[key]
        for name, tensor in weight.split(np.asarray(jnp.asarray(leaf, jnp.float32))):
            if kind == gguf.MODEL_ARCH.LLAMA:
                tensor = _interleaved(name, tensor, config)
            place = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert place is not None, f"{architecture.__name__} gives one that has {name}"
            writer.add_tensor(place, np.ascontiguousarray(tensor, np.float32))
    if config.rope_scaling is not None:
        plain = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        slowed = frequencies(config.rope, config.head_dim, config.context)
        writer.add_tensor("rope_freqs.weight", (plain / slowed).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def architecture(config: LlamaConfig) -> gguf.MODEL_ARCH:
    """The architecture of llama.cpp that has these norms and biases."""
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
    """Queries and keys in llama.cpp's order: lane i pairs with its neighbour, not with i + D/2."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    split = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return split.swapaxes(1, 2).reshape(tensor.shape)
