"""The decoder before Llama, GPT-2 and OPT: learned positions, layer norms, a two-matrix MLP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import Held, KVCache, TreeKV, kept, until
from jspec.models import attention, eight_bits
from jspec.models.activations import ACTIVATIONS
from jspec.models.blocks import look_up
from jspec.models.columns import FusedProjection
from jspec.models.linear import Linear, as_laid_out, unembed
from jspec.models.norms import LayerNorm
from jspec.models.scanning import LayeredDecoder
from jspec.types import Output


@dataclass(frozen=True)
class LearnedPositionConfig:
    """Shape of a model; the names of the sizes are those of the field. The defaults are GPT-2's."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    context: int
    embed_size: int
    """Width of embeddings and head; where it is not `hidden_size`, two projections join them."""
    activation: str = "gelu_new"
    norm_eps: float = 1e-5
    norm_first: bool = True
    """True where norms precede attention and MLP; else they follow each residual sum."""
    norm_affine: bool = True
    final_norm: bool = True
    bias: bool = True
    position_offset: int = 0
    """Rows of the position table before position 0: 2 in OPT, a relic of its padding."""
    tied: bool = True

    @property
    def num_kv_heads(self) -> int:
        """Number of key-value heads, equal to the query heads: no keys are shared."""
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def qkv(config: LearnedPositionConfig) -> FusedProjection:
    """Returns queries, keys and values."""
    return FusedProjection((config.num_heads,) * 3, config.head_dim)


class Block(nn.Module):
    config: LearnedPositionConfig
    dtype: Any
    param_dtype: Any
    attention_impl: attention.Implementation = attention.XLA
    tp_size: int = 1
    kv_dtype: Any = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N E"],
        mask: Bool[Array, "B N M+N"],
        past: attention.Past,
    ) -> tuple[Float[Array, "B N E"], Held, Held]:
        """Returns the block's output, and the keys and values of its tokens."""
        config = self.config
        attention_norm = _norm(self, "attention_norm")
        mlp_norm = _norm(self, "mlp_norm")

        def mix(y: Array) -> tuple[Array, Held, Held]:
            # q, k and v are one product: fewer, larger weights.
            fused = as_laid_out(_dense(self, 3 * config.hidden_size, "qkv")(y))
            q, k, v = qkv(config).apart(fused, self.tp_size)
            shape = (*y.shape[:2], config.num_heads, config.head_dim)
            k, v = (kept(x.reshape(shape).swapaxes(1, 2), self.kv_dtype) for x in (k, v))
            k, v = past.put(k, v)
            mixed = attention.attend(q.reshape(shape), k, v, mask, past, impl=self.attention_impl)
            return _dense(self, config.hidden_size, "output")(mixed), k, v

        def feed(y: Array) -> Array:
            wide = ACTIVATIONS[config.activation](_dense(self, config.intermediate_size, "up")(y))
            return _dense(self, config.hidden_size, "down")(wide)

        if config.norm_first:
            mixed, k, v = mix(attention_norm(x))
            middle = x + mixed
            return middle + feed(mlp_norm(middle)), k, v
        mixed, k, v = mix(x)
        middle = attention_norm(x + mixed)
        return mlp_norm(middle + feed(middle)), k, v


class LearnedPositionDecoder(LayeredDecoder):
    """A decoder of the GPT-2 and OPT families as a `jspec.protocols.CausalLM`.

    Args:
        config: its shape.
        dtype: dtype of activations and memory. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: int8 or float8_e4m3fn, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        tp_size: devices that columns are laid out for; see `jspec.models.columns`.
        scan_layers: True to scan layers that are alike; see `jspec.models.scanning`.
    """

    until = staticmethod(until)

    config: LearnedPositionConfig

    @property
    def features(self) -> int:
        """F, width of `Output.hidden`."""
        return self.config.embed_size

    @property
    def fused(self) -> Mapping[str, FusedProjection]:
        return {"qkv": qkv(self.config)}

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        config = self.config
        projected = config.embed_size != config.hidden_size
        dtypes = self.dtype, self.param_dtype
        tables = (config.vocab_size, config.embed_size), self.param_dtype, self.dtype
        embed = eight_bits.table(self, "embed", *tables)
        places = self.param(
            "positions",
            nn.initializers.normal(0.02),
            (config.context + config.position_offset, config.hidden_size),
            eight_bits.high_precision(self.param_dtype, self.dtype),
        )
        x = look_up(embed, tokens).astype(self.dtype)
        if projected:
            x = _dense(self, config.hidden_size, "project_in", bias=False)(x)
        x = x + places[positions + config.position_offset].astype(self.dtype)
        ways = self.attention_impl, self.tp_size, self.kv_dtype
        block = Block(config, *dtypes, *ways, parent=None)
        blocks = [block] * config.num_layers
        ran = self.through_layers(blocks, x, (mask,), memory, nodes)
        x = ran.x
        if config.final_norm:
            x = _norm(self, "norm")(x)
        if projected:
            x = _dense(self, config.embed_size, "project_out", bias=False)(x)
        head = embed if config.tied else eight_bits.table(self, "head", *tables)
        return Output(logits=unembed(x, head), hidden=x, tentative=ran.tentative)


def _norm(module: Block | LearnedPositionDecoder, name: str) -> LayerNorm:
    config = module.config
    return LayerNorm(
        config.norm_eps, config.norm_affine, module.dtype, module.param_dtype, name=name
    )


def _dense(
    module: Block | LearnedPositionDecoder, features: int, name: str, bias: bool | None = None
) -> Linear:
    return Linear(
        features,
        module.config.bias if bias is None else bias,
        module.dtype,
        module.param_dtype,
        name=name,
    )
