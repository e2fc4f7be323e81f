"""The decoder of most families since Llama: rotary positions, RMS norms and gated MLPs.

What the families differ in is data: Llama 1 to 3, Mistral, Qwen2 and 3, Gemma 2 and 3, Phi-3,
OLMo 2, SmolLM3, Mixtral, Qwen3-MoE, GLM-4-MoE, gpt-oss, and DeepSeek-V2 and 3, whose attention is
in `jspec.models.latent`, are each a `LlamaConfig`. So are Qwen3-Next and Granite 4, whose layers
are recurrent in part: their decoder is `jspec.models.hybrid`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import memory as caches
from jspec._validate.errors import InputError
from jspec.memory import Held, TreeKV, kept
from jspec.models import attention, eight_bits, latent
from jspec.models.activations import ACTIVATIONS
from jspec.models.blocks import looked_up
from jspec.models.columns import FusedProjection
from jspec.models.experts import Experts, RoutedExperts
from jspec.models.latent import LatentAttention
from jspec.models.linear import Linear, as_laid_out, unembed
from jspec.models.norms import RMSNorm
from jspec.models.online_softmax import capped
from jspec.models.recurrence import Mixer
from jspec.models.rope import Rope, Scaling, rotate, turns
from jspec.models.scanning import LayeredDecoder
from jspec.round.packed import Mask
from jspec.types import Output, PyTree


@dataclass(frozen=True)
class Layer:
    """What may differ from layer to layer.

    Example:
        >>> alternating = (Layer(Rope(), window=512), Layer(Rope())) * 2
    """

    rope: Rope | None
    """Rotary positions; None: the layer knows no positions."""
    window: int | None = None
    """A token sees so many, itself among them; None: all before it."""
    experts: Experts | None = None
    """Routed experts in place of the MLP; None: the MLP."""
    mixer: Mixer | None = None
    """What is in place of attention, such as `jspec.models.DeltaNet`; None: attention."""


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
    rope_scaling: Scaling | None = None
    tied: bool = False
    """True where the head is the embedding."""
    qkv_bias: bool = False
    """True where queries, keys and values have biases, as in Qwen2."""
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """True where each head's queries and keys have a norm, as in Qwen3."""
    qk_norm_joint: bool = False
    """True where that norm spans all heads at once, as in OLMo 2."""
    pre_norm: bool = True
    """True where attention and MLP read the states behind a norm."""
    post_norm: bool = False
    """True where what attention and MLP add goes through a norm, as in OLMo 2 and Gemma."""
    norm_offset: float = 0.0
    """Added to the scales of the norms: 1 in Gemma."""
    activation: str = "silu"
    """Of the gate, by its name in `jspec.models.activations.ACTIVATIONS`."""
    embed_scale: float = 1.0
    """Factor of the embeddings: the root of the hidden size in Gemma."""
    output_gate: bool = False
    """True where what attention gives has a sigmoid gate, which is made with the queries."""
    attention_scale: float | None = None
    """Factor of the scores; None: head_dim ** -0.5."""
    sinks: bool = False
    """True where each head's softmax has one more score without a value, as in gpt-oss."""
    attention_cap: float | None = None
    """Soft cap of the scores; None: none. See `jspec.models.attention.attend`."""
    logit_cap: float | None = None
    """Soft cap of the logits; None: none."""
    residual_scale: float = 1.0
    """Factor of what attention and MLP add, as in Granite."""
    logit_scale: float = 1.0
    """Factor of the logits."""
    latent: LatentAttention | None = None
    """Sizes of multi-head latent attention, which keeps one head; None: each head has its keys."""
    layers: tuple[Layer, ...] = ()
    """What differs between layers; empty: all see all, with `rope_theta` and `rope_scaling`."""

    @property
    def rope(self) -> Rope:
        """Rotary positions of the layers that `layers` says nothing of."""
        return Rope(self.rope_theta, self.rope_scaling)


def qkv(config: LlamaConfig) -> FusedProjection:
    """Queries, keys and values; where there is a gate, each query and its gate."""
    queries = config.num_heads * (1 + config.output_gate)
    return FusedProjection((queries, config.num_kv_heads, config.num_kv_heads), config.head_dim)


def gate_up(size: int) -> FusedProjection:
    return FusedProjection((size,) * 2)


class Block(nn.Module):
    """Attention and an MLP, each added to the states."""

    config: LlamaConfig
    dtype: Any
    param_dtype: Any
    input_norm: bool = True
    """False in draft heads, where what the block reads has been through a norm."""
    layer: Layer | None = None
    """None: one that sees all, with the config's `rope`."""
    attention_impl: attention.Implementation = attention.XLA
    tp_size: int = 1
    kv_dtype: Any = None

    def dense(self, features: int, name: str, bias: bool) -> Linear:
        return Linear(features, bias, self.dtype, self.param_dtype, name=name)

    def norm(self, name: str) -> RMSNorm:
        config = self.config
        return RMSNorm(config.norm_eps, self.dtype, self.param_dtype, config.norm_offset, name=name)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N E"],
        positions: Int[Array, "B N"],
        mask: Mask,
        past: Any,
        read: Float[Array, "B N R"] | None = None,
    ) -> tuple[Any, ...]:
        """The block's output, and the keys and values of its tokens; or a mixer's updates.

        Args:
            x: the states.
            positions: the tokens' positions.
            mask: who sees whom, as in `attention.attend`.
            past: what the layer holds of tokens and nodes before.
            read: what q, k and v are made of, if it is not x behind its norm.
        """
        config, layer = self.config, self.layer or Layer(self.config.rope)
        if read is None:
            first = self.input_norm and config.pre_norm
            read = self.norm("attention_norm")(x) if first else x
        if layer.mixer is None:
            mixed, *added = self.attend(read, positions, mask, past, layer)
        else:
            network = layer.mixer.network(config, self.dtype, self.param_dtype)
            mixed, *added = network(read, mask, past)
        mixed = self.norm("attention_post_norm")(mixed) if config.post_norm else mixed
        x = x + _scaled(mixed, config.residual_scale)
        fed = self.feed(self.norm("mlp_norm")(x) if config.pre_norm else x, layer.experts)
        fed = self.norm("mlp_post_norm")(fed) if config.post_norm else fed
        return x + _scaled(fed, config.residual_scale), *added

    def attend(
        self,
        read: Float[Array, "B N R"],
        positions: Int[Array, "B N"],
        mask: Mask,
        past: attention.Past,
        layer: Layer,
    ) -> tuple[Float[Array, "B N E"], Held, Held]:
        """What attention adds, and the keys and values of the tokens."""
        config = self.config
        if config.latent is not None:
            assert layer.rope is not None, "refused when the decoder is made"
            return latent.attend(self, read, positions, mask, past, layer.rope, layer.window)
        q, k, v, gate = self.heads(read)
        if layer.rope is not None:
            turn = turns(layer.rope, config.head_dim, config.context, positions)
            q, k = (rotate(x, turn, layer.rope.interleaved) for x in (q, k))
        k, v = (kept(part.swapaxes(1, 2), self.kv_dtype) for part in (k, v))
        sinks = None
        if config.sinks:
            high = eight_bits.high_precision(self.param_dtype, self.dtype)
            sinks = self.param("sinks", nn.initializers.zeros, (config.num_heads,), high)
        mixed = attention.attend(
            *(q, k, v, mask, past, positions),
            scale=config.attention_scale,
            soft_cap=config.attention_cap,
            window=layer.window,
            sinks=sinks,
            impl=self.attention_impl,
        )
        if gate is not None:
            mixed = mixed * nn.sigmoid(gate.reshape(mixed.shape))
        return self.dense(config.hidden_size, "output", config.output_bias)(mixed), k, v

    def heads(self, read: Float[Array, "B N R"]) -> tuple[Array, Array, Array, Array | None]:
        """Queries, keys, values and gates, which are one product: fewer, larger weights."""
        config = self.config
        batch, new, _ = read.shape
        fused, dim = qkv(config), config.head_dim
        both = as_laid_out(self.dense(sum(fused.counts) * dim, "qkv", config.qkv_bias)(read))
        q, k, v = fused.apart(both.reshape(batch, new, -1, dim), self.tp_size, axis=2)
        gate = None
        if config.output_gate:
            q, gate = jnp.split(q.reshape(batch, new, config.num_heads, 2 * dim), 2, axis=-1)
        if config.qk_norm:
            joint = (batch, new, -1)
            q, k = (
                self.norm(name)(y.reshape(joint) if config.qk_norm_joint else y).reshape(y.shape)
                for name, y in (("q_norm", q), ("k_norm", k))
            )
        return q, k, v, gate

    def feed(self, read: Float[Array, "B N E"], experts: Experts | None) -> Float[Array, "B N E"]:
        """The MLP, whose gate and up are one product."""
        config, activation = self.config, ACTIVATIONS[self.config.activation]
        if experts is not None:
            dtypes = self.dtype, self.param_dtype
            routed = RoutedExperts(experts, activation, *dtypes, name="experts")(read)
            if experts.shared_size is None:
                return routed
            shared = self.mlp(read, experts.shared_size, "shared_")
            if experts.shared_gate:
                shared = nn.sigmoid(self.dense(1, "shared_gate", False)(read)) * shared
            return routed + shared
        return self.mlp(read, config.intermediate_size)

    def mlp(self, read: Float[Array, "B N E"], size: int, prefix: str = "") -> Array:
        """A gated MLP, by the prefix of its products' names."""
        config, activation = self.config, ACTIVATIONS[self.config.activation]
        both = self.dense(2 * size, f"{prefix}gate_up", config.mlp_bias)(read)
        gate, up = gate_up(size).apart(both, self.tp_size)
        down = self.dense(config.hidden_size, f"{prefix}down", config.mlp_bias)
        return down(activation(gate) * up)


def kept_lanes(config: LlamaConfig) -> tuple[int, int]:
    """Lanes of a head's keys in the memory, and of its values."""
    if config.latent is None:
        return config.head_dim, config.head_dim
    return config.latent.rotary_dim, config.latent.rank


def _scaled(x: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
    return x if factor == 1 else x * factor


class RotaryDecoder(LayeredDecoder):
    """What `Llama` and `jspec.models.Hybrid` share: all but their memory.

    Args:
        config: its shape.
        taps: layers whose inputs are handed out, see `Llama`.
    """

    config: LlamaConfig
    taps: tuple[int, ...] = ()

    def __post_init__(self):
        if wrong := [tap for tap in self.taps if not 0 <= tap < self.config.num_layers]:
            raise InputError(
                f"taps has layer {wrong[0]} and the model has layers 0 .. "
                f"{self.config.num_layers - 1}; tap those"
            )
        config = self.config
        if config.layers and len(config.layers) != config.num_layers:
            raise InputError(
                f"layers describes {len(config.layers)} of {config.num_layers} layers; give one "
                "each, or none"
            )
        if config.latent is not None:
            latent.check(config.num_kv_heads, [layer.rope for layer in self.kinds])
        super().__post_init__()

    @property
    def features(self) -> int:
        """F, width of `Output.hidden`."""
        return self.hidden_size * (len(self.taps) or 1)

    @property
    def kept_lanes(self) -> tuple[int, int]:
        return kept_lanes(self.config)

    @property
    def fused(self) -> Mapping[str, FusedProjection]:
        config = self.config
        found = {"qkv": qkv(config), "gate_up": gate_up(config.intermediate_size)}
        for layer in self.kinds:
            if layer.experts and layer.experts.shared_size:
                found["shared_gate_up"] = gate_up(layer.experts.shared_size)
        return found

    @property
    def kinds(self) -> tuple[Layer, ...]:
        """What each layer is."""
        return self.config.layers or (Layer(self.config.rope),) * self.num_layers

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Mask,
        memory: PyTree = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        config = self.config
        tables = (config.vocab_size, config.hidden_size), self.param_dtype, self.dtype
        embed = eight_bits.table(self, "embed", *tables)
        x = looked_up(embed, tokens).astype(self.dtype) * config.embed_scale
        blocks = [
            Block(
                *(config, self.dtype, self.param_dtype),
                layer=layer,
                attention_impl=self.attention_impl,
                tp_size=self.tp_size,
                kv_dtype=self.kv_dtype,
                parent=None,
            )
            for layer in self.kinds
        ]
        ran = self.through_layers(blocks, x, (positions, mask), memory, nodes, self.taps)
        norm = RMSNorm(
            config.norm_eps, self.dtype, self.param_dtype, config.norm_offset, name="norm"
        )
        x = norm(ran.x)
        head = embed if config.tied else eight_bits.table(self, "head", *tables)
        logits = capped(_scaled(unembed(x, head), config.logit_scale), config.logit_cap)
        if self.taps:
            x = jnp.concatenate(ran.tapped, axis=-1)
        return Output(logits=logits, hidden=x, tentative=ran.tentative)


class Llama(RotaryDecoder):
    """A decoder of the families since Llama as a `jspec.protocols.CausalLM`.

    Args:
        config: its shape.
        dtype: dtype of activations and memory. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: of keys and values: int8, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        tp_size: devices that the columns of queries, keys and values and those of gate and up
            are laid out for; see `jspec.models.columns`.
        scan_layers: True to scan layers that are alike; see `jspec.models.scanning`.
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

    until = staticmethod(caches.until)
