"""The decoder of most families since Llama: rotary positions, RMS norms and gated MLPs.

What the families differ in is data: Llama 1 to 3, Mistral, Qwen2 and 3, Gemma 2 to 4, Phi-3,
OLMo 2, SmolLM3, Mixtral, Qwen3-MoE, GLM-4-MoE, gpt-oss, and DeepSeek-V2 and 3, whose attention is
in `jspec.models.latent`, are each a `LlamaConfig`. So are Qwen3-Next, Qwen3.5 and Granite 4, whose
layers are recurrent in part: their decoder is `jspec.models.hybrid`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec.memory import TreeKV, kept, until
from jspec.models import attention, eight_bits, latent
from jspec.models.activations import ACTIVATIONS
from jspec.models.blocks import look_up
from jspec.models.columns import FusedProjection
from jspec.models.experts import Experts, RoutedExperts
from jspec.models.latent import LatentAttention
from jspec.models.linear import Linear, as_laid_out, unembed
from jspec.models.norms import RMSNorm
from jspec.models.online_softmax import cap
from jspec.models.recurrence import Mixer
from jspec.models.rope import Rope, Scaling, rotate, turns
from jspec.models.scanning import LayeredDecoder
from jspec.types import Output, PyTree


@dataclass(frozen=True)
class Layer:
    """Settings that may differ from layer to layer.

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
    """The mixer in place of attention, such as `jspec.models.DeltaNet`; None: attention."""
    num_kv_heads: int | None = None
    """None: the config's, as of the next two."""
    head_dim: int | None = None
    intermediate_size: int | None = None
    """Of the MLP."""
    keys_of: int | None = None
    """The layer before whose keys and values are read; None: it has its own."""
    value_is_key: bool = False
    """True where a value is its key before norm and turn, as in Gemma 4's larger models."""


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
    """Maximum number of positions, `max_position_embeddings` of Hugging Face."""
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
    value_norm: bool = False
    """True where each head's values have a norm without a scale, as in Gemma 4."""
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
    layer_factor: bool = False
    """True where a layer's states are multiplied with a number of its own, as in Gemma 4."""
    per_layer_size: int | None = None
    """P, lanes per layer and token alongside the states (per-layer embeddings, Gemma 3n, 4)."""
    residual_scale: float = 1.0
    """Factor of what attention and MLP add, as in Granite."""
    logit_scale: float = 1.0
    """Factor of the logits."""
    latent: LatentAttention | None = None
    """Sizes of multi-head latent attention, which keeps one head; None: each head has its keys."""
    layers: tuple[Layer, ...] = ()
    """Settings per layer; empty: all see all, with `rope_theta` and `rope_scaling`."""

    @property
    def rope(self) -> Rope:
        """Rotary positions of the layers that `layers` says nothing of."""
        return Rope(self.rope_theta, self.rope_scaling)


def heads_of(config: LlamaConfig, layer: Layer) -> tuple[int, int]:
    """Returns key-value heads of a layer, and their lanes."""
    return layer.num_kv_heads or config.num_kv_heads, layer.head_dim or config.head_dim


def qkv(config: LlamaConfig, layer: Layer) -> FusedProjection:
    """Returns queries, and the keys and values that the layer makes; a gate follows its query."""
    queries = config.num_heads * (1 + config.output_gate)
    heads, dim = heads_of(config, layer)
    num_kv = 0 if layer.keys_of is not None else 1 if layer.value_is_key else 2
    return FusedProjection((queries, *[heads] * num_kv), dim)


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
        mask: Bool[Array, "B N M+N"],
        past: Any,
        per_layer: Float[Array, "B N P"] | None = None,
        read: Float[Array, "B N R"] | None = None,
    ) -> tuple[Any, ...]:
        """Returns the block's output, and its keys and values, or a mixer's updates."""
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
        x = x + _scale(mixed, config.residual_scale)
        fed = self.feed(self.norm("mlp_norm")(x) if config.pre_norm else x, x, layer)
        fed = self.norm("mlp_post_norm")(fed) if config.post_norm else fed
        x = x + _scale(fed, config.residual_scale)
        if per_layer is not None:
            gate = self.dense(per_layer.shape[-1], "per_layer_gate", False)(x)
            wide = self.dense(config.hidden_size, "per_layer_up", False)
            gated = wide(ACTIVATIONS[config.activation](gate) * per_layer)
            x = x + self.norm("per_layer_post_norm")(gated)
        if config.layer_factor:
            high = eight_bits.high_precision(self.param_dtype, self.dtype)
            x = x * self.param("layer_factor", nn.initializers.ones, (1,), high).astype(self.dtype)
        return x, *added

    def attend(
        self,
        read: Float[Array, "B N R"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        past: attention.Past,
        layer: Layer,
    ) -> tuple[Any, ...]:
        """Returns attention's output, and keys and values if the layer has its own."""
        config = self.config
        if config.latent is not None:
            assert layer.rope is not None, "refused when the decoder is made"
            return latent.attend(self, read, positions, mask, past, layer.rope, layer.window)
        q, kv, gate = self.heads(read, layer)
        if layer.rope is not None:
            turn = turns(layer.rope, q.shape[-1], config.context, positions)
            q, *kv[:1] = (rotate(x, turn, layer.rope.interleaved) for x in (q, *kv[:1]))
        kv = [kept(part.swapaxes(1, 2), self.kv_dtype) for part in kv]
        kv = past.put(*kv) if kv else ()
        keys = kv or past.own
        assert keys is not None, "another layer has made them, see `keys_of`"
        k, v = keys
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
        return self.dense(config.hidden_size, "output", config.output_bias)(mixed), *kv

    def heads(
        self, read: Float[Array, "B N R"], layer: Layer
    ) -> tuple[Array, list[Array], Array | None]:
        """Returns queries, keys, values and gates from one larger product."""
        config = self.config
        batch, new, _ = read.shape
        fused = qkv(config, layer)
        dim = fused.size
        both = as_laid_out(self.dense(sum(fused.counts) * dim, "qkv", config.qkv_bias)(read))
        q, *kv = fused.apart(both.reshape(batch, new, -1, dim), self.tp_size, axis=2)
        gate = None
        if config.output_gate:
            q, gate = jnp.split(q.reshape(batch, new, config.num_heads, 2 * dim), 2, axis=-1)
        if kv and layer.value_is_key:
            kv *= 2
        if config.qk_norm:
            joint = (batch, new, -1)
            q, *kv[:1] = (
                self.norm(name)(y.reshape(joint) if config.qk_norm_joint else y).reshape(y.shape)
                for name, y in zip(("q_norm", "k_norm"), (q, *kv[:1]), strict=False)
            )
        if config.value_norm:
            dtypes = self.dtype, self.param_dtype
            kv[1:] = [RMSNorm(config.norm_eps, *dtypes, scaled=False)(v) for v in kv[1:]]
        return q, kv, gate

    def feed(
        self, read: Float[Array, "B N E"], x: Float[Array, "B N E"], layer: Layer
    ) -> Float[Array, "B N E"]:
        """Returns what MLP and experts make of the states x, and of these behind their norm."""
        config, experts = self.config, layer.experts
        activation, dtypes = ACTIVATIONS[config.activation], (self.dtype, self.param_dtype)
        size = layer.intermediate_size or config.intermediate_size
        if experts is None:
            return self.mlp(read, size)
        routed = RoutedExperts(experts, activation, *dtypes, name="experts")
        if experts.beside:
            router_input = self.norm("router_norm")(x) * config.hidden_size**-0.5
            added = self.norm("experts_post_norm")(
                routed(self.norm("experts_norm")(x), router_input)
            )
            return self.norm("mlp_own_norm")(self.mlp(read, size)) + added
        added = routed(read)
        if experts.shared_size is None:
            return added
        shared = self.mlp(read, experts.shared_size, "shared_")
        if experts.shared_gate:
            shared = nn.sigmoid(self.dense(1, "shared_gate", False)(read)) * shared
        return added + shared

    def mlp(self, read: Float[Array, "B N E"], size: int, prefix: str = "") -> Array:
        """Returns a gated MLP with a joint gate-up product."""
        config, activation = self.config, ACTIVATIONS[self.config.activation]
        both = self.dense(2 * size, f"{prefix}gate_up", config.mlp_bias)(read)
        gate, up = gate_up(size).apart(both, self.tp_size)
        down = self.dense(config.hidden_size, f"{prefix}down", config.mlp_bias)
        return down(activation(gate) * up)


def kept_sizes(config: LlamaConfig, layer: Layer) -> tuple[int, int, int]:
    """Returns heads of a layer in the memory, lanes of their keys, and of their values."""
    heads, dim = heads_of(config, layer)
    if config.latent is None:
        return heads, dim, dim
    return heads, config.latent.rotary_dim, config.latent.rank


def _scale(x: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
    return x if factor == 1 else x * factor


class RotaryDecoder(LayeredDecoder):
    """Base of `Llama` and `jspec.models.Hybrid`: all but their memory."""

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
        _check_sources(config)
        super().__post_init__()

    @property
    def features(self) -> int:
        """F, width of `Output.hidden`."""
        return self.hidden_size * (len(self.taps) or 1)

    def kept_sizes(self, layer: int) -> tuple[int, int, int]:
        return kept_sizes(self.config, self.kinds[layer])

    def keys_of(self, layer: int) -> int | None:
        return self.kinds[layer].keys_of

    @property
    def fused(self) -> Mapping[str, FusedProjection]:
        config = self.config
        fused = {"qkv": qkv(config, Layer(None)), "gate_up": gate_up(config.intermediate_size)}
        for number, layer in enumerate(self.kinds):
            if layer.experts and layer.experts.shared_size:
                fused["shared_gate_up"] = gate_up(layer.experts.shared_size)
            size = layer.intermediate_size or config.intermediate_size
            of_layer = {"qkv": qkv(config, layer), "gate_up": gate_up(size)}
            fused |= {
                f"layers_{number}/{name}": products
                for name, products in of_layer.items()
                if products != fused[name]
            }
        return fused

    @property
    def kinds(self) -> tuple[Layer, ...]:
        """The settings of each layer."""
        return self.config.layers or (Layer(self.config.rope),) * self.num_layers

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: PyTree = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        config = self.config
        tables = (config.vocab_size, config.hidden_size), self.param_dtype, self.dtype
        embed = eight_bits.table(self, "embed", *tables)
        x = look_up(embed, tokens).astype(self.dtype) * config.embed_scale
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
        per_layer = None if config.per_layer_size is None else self.per_layer(x, tokens)
        ran = self.through_layers(blocks, x, (positions, mask), memory, nodes, self.taps, per_layer)
        norm = RMSNorm(
            config.norm_eps, self.dtype, self.param_dtype, config.norm_offset, name="norm"
        )
        x = norm(ran.x)
        head = embed if config.tied else eight_bits.table(self, "head", *tables)
        logits = cap(_scale(unembed(x, head), config.logit_scale), config.logit_cap)
        if self.taps:
            x = jnp.concatenate(ran.tapped, axis=-1)
        return Output(logits=logits, hidden=x, tentative=ran.tentative)

    def per_layer(
        self, x: Float[Array, "B N E"], tokens: Int[Array, "B N"]
    ) -> Float[Array, "L B N P"]:
        """Returns each layer's embedding of the tokens, from its table and from x."""
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        size, count = config.per_layer_size, config.num_layers
        assert size is not None, "asked for where there is some"
        high = eight_bits.high_precision(self.param_dtype, self.dtype)
        shape = config.vocab_size, count * size
        table = self.param("per_layer_embed", nn.initializers.normal(0.02), shape, high)
        from_table = look_up(table, tokens).astype(self.dtype) * size**0.5
        from_x = Linear(count * size, False, *dtypes, name="per_layer_projection")(x)
        from_x = (from_x * config.hidden_size**-0.5).reshape(*tokens.shape, count, size)
        from_x = RMSNorm(config.norm_eps, *dtypes, config.norm_offset, name="per_layer_norm")(
            from_x
        )
        return jnp.moveaxis((from_x + from_table.reshape(from_x.shape)) * 2**-0.5, 2, 0)


def _check_sources(config: LlamaConfig) -> None:
    """Refuses layers that read keys and values which are not there."""
    owners = [number for number, layer in enumerate(config.layers) if layer.keys_of is None]
    for number, layer in enumerate(config.layers):
        if (source := layer.keys_of) is None:
            continue
        if source not in owners or owners[-1] > number or config.layers[source].mixer is not None:
            raise InputError(
                f"layer {number} reads the keys of layer {source}; let it read an attention "
                "layer before it that has its own"
            )
        sizes = [heads_of(config, config.layers[place]) for place in (number, source)]
        if sizes[0] != sizes[1]:
            raise InputError(
                f"layer {number} has {sizes[0][0]} key-value heads of {sizes[0][1]} lanes and "
                f"reads layer {source}'s, {sizes[1][0]} of {sizes[1][1]}; make them equal"
            )


class Llama(RotaryDecoder):
    """A decoder of the families since Llama as a `jspec.protocols.CausalLM`.

    Args:
        config: its shape.
        dtype: dtype of activations and memory. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
        kv_dtype: int8 or float8_e4m3fn, see `jspec.memory.Rounded`; None: `dtype`.
        attention_impl: how attention is computed; see `jspec.models.block_attention`.
        tp_size: devices that columns are laid out for; see `jspec.models.columns`.
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

    until = staticmethod(until)
