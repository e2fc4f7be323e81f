"""The Llama family: Llama 1/2/3, Mistral, Qwen2 (biases) and Qwen3 (query and key norm)."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache, Output, TreeKV
from jspec.errors import InputError
from jspec.models import attention
from jspec.models.decoder import Decoder
from jspec.models.linear import Linear, unembed


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretch of the low rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class RopeFactors:
    """A divisor for each rotary frequency, as GGUF files hold them."""

    factors: tuple[float, ...]
    """D/2 numbers."""


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a model of the Llama family; the names of the sizes are those of the field.

    Example:
        >>> config = LlamaConfig(
        ...     vocab_size=100, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        ...     num_kv_heads=2, head_dim=4, context=64,
        ... )
        >>> config.tied
        False
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    """Most positions, `max_position_embeddings` of Hugging Face."""
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | RopeFactors | None = None
    tied: bool = False
    """True where the head is the embedding."""
    qkv_bias: bool = False
    """True where queries, keys and values have biases, as in Qwen2."""
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """True where each head's queries and keys have a norm, as in Qwen3."""


def frequencies(config: LlamaConfig) -> Float[np.ndarray, " D/2"]:
    """Rotary angle per position for each pair of lanes."""
    # On the host in float64: an error in the frequency grows with the position, and XLA's float32
    # power is off by several units in the last place.
    base = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return base.astype(np.float32)
    if isinstance(scaling, RopeFactors):
        return (base / np.array(scaling.factors)).astype(np.float32)
    # Llama 3.1: waves longer than the original context are slowed by `factor`, short ones are
    # kept, and those between are interpolated.
    waves = 2 * np.pi / base
    ramp = (scaling.original_context / waves - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    keep = np.clip(ramp, 0.0, 1.0)
    return ((1 - keep) * base / scaling.factor + keep * base).astype(np.float32)


def rotate(
    x: Float[Array, "B N H D"], turn: tuple[Float[Array, "B N 1 D/2"], Float[Array, "B N 1 D/2"]]
) -> Float[Array, "B N H D"]:
    """Rotary embedding in float32; lane i pairs with lane i + D/2 (the Hugging Face layout).

    Args:
        x: queries or keys.
        turn: cosine and sine of each position's angles.
    """
    cos, sin = turn
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


def turns(
    config: LlamaConfig, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N 1 D/2"], Float[Array, "B N 1 D/2"]]:
    """Cosine and sine of each position's rotary angles."""
    angles = positions[..., None, None].astype(jnp.float32) * frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


class RMSNorm(nn.Module):
    eps: float
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        wide = x.astype(jnp.float32)
        unit = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + self.eps)
        return (unit * scale.astype(jnp.float32)).astype(self.dtype)


class Block(nn.Module):
    config: LlamaConfig
    dtype: Any
    param_dtype: Any
    input_norm: bool = True
    """False in draft heads, where what the block reads has been through a norm."""

    def dense(self, features: int, name: str, bias: bool) -> Linear:
        return Linear(features, bias, self.dtype, self.param_dtype, name=name)

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.config.norm_eps, self.dtype, self.param_dtype, name=name)

    @nn.compact
    def __call__(self, x, turn, mask, past, read=None):
        """`read` [B, N, R] is what q, k and v are made of, if it is not x behind its norm."""
        config = self.config
        batch, new, _ = x.shape
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        if read is None:
            read = self.norm("attention_norm")(x) if self.input_norm else x
        # q, k and v are one product, gate and up another: fewer, larger weights.
        fused = self.dense((heads + 2 * kv_heads) * dim, "qkv", config.qkv_bias)(read)
        q, k, v = jnp.split(
            fused.reshape(batch, new, heads + 2 * kv_heads, dim), [heads, heads + kv_heads], axis=2
        )
        if config.qk_norm:
            q, k = self.norm("q_norm")(q), self.norm("k_norm")(k)
        q, k = rotate(q, turn), rotate(k, turn)
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        mixed = attention.attend(q, k, v, mask, past)
        x = x + self.dense(config.hidden_size, "output", config.output_bias)(mixed)
        gate, up = jnp.split(
            self.dense(2 * config.intermediate_size, "gate_up", config.mlp_bias)(
                self.norm("mlp_norm")(x)
            ),
            2,
            axis=-1,
        )
        down = self.dense(config.hidden_size, "down", config.mlp_bias)
        return x + down(nn.silu(gate) * up), k, v


class Llama(Decoder):
    """A decoder of the Llama family as a `jspec.protocols.CausalLM`.

    Args:
        config: its shape.
        dtype: dtype of activations and cache. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        taps: layers whose inputs, side by side, are handed out as `Output.hidden` in place of what
            the head reads; some draft heads are trained on them (EAGLE-3).

    Raises:
        InputError: if there is no such layer to tap.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> config = LlamaConfig(
        ...     vocab_size=100, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        ...     num_kv_heads=2, head_dim=4, context=64,
        ... )
        >>> model = Llama(config)
        >>> tokens, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
        >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens, mask)
        >>> params["params"]["embed"].shape
        (100, 16)
    """

    config: LlamaConfig
    taps: tuple[int, ...] = ()

    def __post_init__(self):
        if wrong := [tap for tap in self.taps if not 0 <= tap < self.config.num_layers]:
            raise InputError(
                f"taps has layer {wrong[0]} and the model has layers 0 .. "
                f"{self.config.num_layers - 1}; tap those"
            )
        super().__post_init__()

    @property
    def features(self) -> int:
        """F, width of `Output.hidden`."""
        return self.hidden_size * (len(self.taps) or 1)

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        cache: Cache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        config = self.config
        embed = self.param(
            "embed",
            nn.initializers.normal(0.02),
            (config.vocab_size, config.hidden_size),
            self.param_dtype,
        )
        x = embed[tokens].astype(self.dtype)
        turn = turns(config, positions)
        keys, values, entering = [], [], []
        for layer in range(config.num_layers):
            entering.append(x)
            past = attention.past(cache, nodes, layer)
            x, k, v = Block(config, self.dtype, self.param_dtype, name=f"layers_{layer}")(
                x, turn, mask, past
            )
            keys.append(k)
            values.append(v)
        x = RMSNorm(config.norm_eps, self.dtype, self.param_dtype, name="norm")(x)
        if config.tied:
            head = embed
        else:
            head = self.param(
                "head",
                nn.initializers.normal(0.02),
                (config.vocab_size, config.hidden_size),
                self.param_dtype,
            )
        logits = unembed(x, head)
        if self.taps:
            x = jnp.concatenate([entering[tap] for tap in self.taps], axis=-1)
        return Output(logits=logits, hidden=x, keys=tuple(keys), values=tuple(values))
