"""GPT-NeoX and Pythia: layer norms, partly rotated heads, attention and MLP side by side."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import Held, KVCache, TreeKV, kept, until
from jspec.models import attention, eight_bits
from jspec.models.activations import ACTIVATIONS
from jspec.models.blocks import look_up
from jspec.models.linear import Linear, as_laid_out, unembed
from jspec.models.norms import LayerNorm
from jspec.models.rope import Rope, rotate, turns
from jspec.models.scanning import LayeredDecoder
from jspec.types import Output


@dataclass(frozen=True)
class GPTNeoXConfig:
    """Shape of a model; the names of the sizes are those of the field."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    context: int
    rope: Rope
    activation: str = "gelu"
    norm_eps: float = 1e-5
    parallel: bool = True
    """True where attention and MLP read the same states; else the MLP reads what attention made."""
    attention_bias: bool = True
    tied: bool = False

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads: as many as query heads."""
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class NeoXBlock(nn.Module):
    config: GPTNeoXConfig
    dtype: Any
    param_dtype: Any
    attention_impl: attention.Implementation = attention.XLA
    kv_dtype: Any = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N E"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        past: attention.Past,
    ) -> tuple[Float[Array, "B N E"], Held, Held]:
        """Returns the block's output, and the keys and values of its tokens."""
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        width, heads, dim = config.hidden_size, config.num_heads, config.head_dim
        read = LayerNorm(config.norm_eps, True, *dtypes, name="attention_norm")(x)
        fused = as_laid_out(Linear(3 * width, config.attention_bias, *dtypes, name="qkv")(read))
        # A head's three are adjacent.
        q, k, v = jnp.split(fused.reshape(*x.shape[:2], heads, 3 * dim), 3, axis=-1)
        turn = turns(config.rope, dim, config.context, positions)
        q, k = rotate(q, turn), rotate(k, turn)
        k, v = (kept(part.swapaxes(1, 2), self.kv_dtype) for part in (k, v))
        k, v = past.put(k, v)
        mixed = attention.attend(q, k, v, mask, past, impl=self.attention_impl)
        mixed = Linear(width, config.attention_bias, *dtypes, name="output")(mixed)
        seen = x if config.parallel else x + mixed
        read = LayerNorm(config.norm_eps, True, *dtypes, name="mlp_norm")(seen)
        wide = Linear(config.intermediate_size, True, *dtypes, name="up")(read)
        fed = Linear(width, True, *dtypes, name="down")(ACTIVATIONS[config.activation](wide))
        return x + mixed + fed, k, v


class GPTNeoX(LayeredDecoder):
    """A decoder of the GPT-NeoX family as a `jspec.protocols.CausalLM`.

    Args:
        config: its shape.
        dtype: dtype of activations and memory. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: int8 or float8_e4m3fn, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        scan_layers: True to scan layers that are alike; see `jspec.models.scanning`.
    """

    until = staticmethod(until)

    config: GPTNeoXConfig

    @property
    def features(self) -> int:
        """F, width of `Output.hidden`."""
        return self.config.hidden_size

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        tables = (config.vocab_size, config.hidden_size), self.param_dtype, self.dtype
        embed = eight_bits.table(self, "embed", *tables)
        x = look_up(embed, tokens).astype(self.dtype)
        block = NeoXBlock(config, *dtypes, self.attention_impl, self.kv_dtype, parent=None)
        blocks = [block] * config.num_layers
        ran = self.through_layers(blocks, x, (positions, mask), memory, nodes)
        x = LayerNorm(config.norm_eps, True, *dtypes, name="norm")(ran.x)
        head = embed if config.tied else eight_bits.table(self, "head", *tables)
        return Output(logits=unembed(x, head), hidden=x, tentative=ran.tentative)
