"""The base of transformer networks: sizes, memory and blocks."""

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jspec import memory
from jspec.memory import KVCache
from jspec.models import precision
from jspec.models.attention import XLA, Implementation
from jspec.models.columns import FusedProjection
from jspec.types import PyTree


class Decoder(nn.Module):
    """A stack of transformer blocks whose config names its sizes as the field does.

    Args:
        config: its shape, a frozen dataclass.
        dtype: dtype of activations and cache. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: int8 or float8_e4m3fn, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        tp_size: devices that the columns of products are laid out for which are one; see
            `jspec.models.columns`. Loading onto a mesh says it.
    """

    config: Any
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    attention_impl: Implementation = field(default=XLA, kw_only=True)
    tp_size: int = field(default=1, kw_only=True)
    kv_dtype: Any = field(default=None, kw_only=True)

    def __post_init__(self):
        precision.find_kv(self.kv_dtype)
        super().__post_init__()

    @property
    def memory_dtype(self) -> Any:
        """The dtype of keys and values in the cache."""
        return memory.slots_dtype(self.dtype if self.kv_dtype is None else self.kv_dtype)

    @property
    def fused(self) -> Mapping[str, FusedProjection]:
        """The products of a layer that are one, by its name; empty: there are none."""
        return {}

    @property
    def vocab_size(self) -> int:
        """V, number of tokens in the vocabulary."""
        return self.config.vocab_size

    @property
    def context(self) -> int:
        """Maximum number of positions that the network can place."""
        return self.config.context

    @property
    def hidden_size(self) -> int:
        """E, width of the states between the blocks."""
        return self.config.hidden_size

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    def kept_sizes(self, layer: int) -> tuple[int, int, int]:
        """Returns heads of a layer in the memory, lanes of their keys, and of their values."""
        del layer
        return self.config.num_kv_heads, self.config.head_dim, self.config.head_dim

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        """Returns empty keys and values of `capacity` tokens per row."""
        heads, dim, value_dim = self.kept_sizes(0)
        sizes = self.num_layers, heads, dim
        return memory.init(batch, capacity, *sizes, self.memory_dtype, value_dim)

    commit = staticmethod(memory.commit)

    def apply_block(self, block: nn.Module, name: str, *arguments: Any) -> Any:
        """Applies a block to its arguments; blocks that are alike are traced once."""
        if self.is_initializing():
            return block.clone(parent=self, name=name)(*arguments)
        return trace_once(block, self.variables["params"][name], *arguments)


@partial(jax.jit, static_argnums=0)
def trace_once(block: nn.Module, params: PyTree, *arguments: Any) -> Any:
    """Applies a block to its arguments; blocks that are alike are traced once."""
    # Inside a program this is a call, which XLA inlines: the program stays as it is. But tracing
    # and lowering of all the other layers are saved, and of a deep model they take as long as
    # reading a compiled program from disk.
    return block.apply({"params": params}, *arguments)
