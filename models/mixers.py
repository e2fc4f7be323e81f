"""Recurrent layers: gated delta nets (Qwen3-Next, Qwen3.5) and Mamba-2 (Granite 4)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jspec._validate.errors import InputError
from jspec._xla import native
from jspec.models import eight_bits, recurrence
from jspec.models.activations import ACTIVATIONS
from jspec.models.attention import Past
from jspec.models.linear import Linear
from jspec.models.norms import RMSNorm
from jspec.models.recurrence import RecurrentState, Updates

_EPS = 1e-6
"""Added to the squared length of queries and keys."""


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of a gated delta net (Yang et al. 2024, arXiv 2412.06464).

    Raises:
        InputError: if the key heads do not divide the value heads.
    """

    num_key_heads: int
    num_heads: int
    """Of values."""
    key_dim: int
    value_dim: int
    kernel_size: int = 4
    """Tokens that the convolution sees."""
    grouped: bool = True
    """True if a key head's projections are adjacent (Qwen3-Next); else stored part by part."""

    def __post_init__(self):
        _check_divides("num_key_heads", self.num_key_heads, self.num_heads)

    def network(self, config: Any, dtype: Any, param_dtype: Any) -> "GatedDeltaNet":
        return GatedDeltaNet(self, config, dtype, param_dtype, name="mixer")


@dataclass(frozen=True)
class Mamba2:
    """Sizes of a state space model (Dao and Gu 2024, arXiv 2405.21060).

    Raises:
        InputError: if the groups do not divide the heads.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    """Heads of a group share what reads and writes their states, B and C of the paper."""
    state_size: int
    kernel_size: int = 4
    """Tokens that the convolution sees."""
    convolution_bias: bool = True
    projection_bias: bool = False

    def __post_init__(self):
        _check_divides("num_groups", self.num_groups, self.num_heads)

    @property
    def num_key_heads(self) -> int:
        return self.num_groups

    @property
    def key_dim(self) -> int:
        return self.state_size

    @property
    def value_dim(self) -> int:
        return self.head_dim

    def network(self, config: Any, dtype: Any, param_dtype: Any) -> "StateSpace":
        return StateSpace(self, config, dtype, param_dtype, name="mixer")


class _Network(nn.Module):
    """Base of both mixers: a short convolution, a recurrence, and a gate."""

    sizes: Any
    config: Any
    dtype: Any
    param_dtype: Any

    order: ClassVar[tuple[str, ...]]
    """Inputs of the convolution, in the order of the file's lanes."""

    @nn.compact
    def __call__(
        self, read: Float[Array, "B N E"], mask: Bool[Array, "B N M+N"], past: RecurrentState | Past
    ) -> tuple[Float[Array, "B N E"], Updates]:
        """Returns the layer's output, and the updates of its tokens."""
        sizes = self.sizes
        inputs, gate, rates = self.project(read)
        batch, count = inputs.shape[:2]
        if isinstance(past, Past):
            past = recurrence.init(batch, sizes, 1, self.dtype)
        inputs = inputs.swapaxes(1, 2)
        joint = recurrence.convolve(inputs, self.kernel(), past.window, mask)
        if self.has_bias:
            joint = joint + self.by_group(self.number("convolution_bias", self.lanes))[:, None]
        joint = ACTIVATIONS[self.config.activation](joint).astype(jnp.float32)
        parts = jnp.split(joint, self.ends(), axis=-1)
        qkv = dict(zip(self.order, parts, strict=True))
        group = sizes.num_heads // sizes.num_key_heads
        v = qkv["v"].reshape(batch, -1, count, group, sizes.value_dim).swapaxes(2, 3)
        qkv["v"] = v.reshape(batch, sizes.num_heads, count, -1)
        q, k, v, decays, beta = self.steps(qkv, rates.astype(jnp.float32))
        mixed, updates = recurrence.recur(q, k, v, decays, beta, past.states, mask, inputs)
        mixed = self.added(mixed, qkv).swapaxes(1, 2)
        mixed = self.gated(mixed, gate)
        mixed = mixed.astype(self.dtype).reshape(*read.shape[:2], -1)
        return self.dense(self.config.hidden_size, "output")(mixed), updates

    def project(self, read: Float[Array, "B N E"]) -> tuple[Array, Array, Array]:
        """Returns the convolution's inputs [B, N, J, C], the gate, and the rates' inputs."""
        raise NotImplementedError

    def steps(self, qkv: dict[str, Array], rates: Float[Array, "B N R"]) -> tuple[Any, ...]:
        """Returns q and k of the key heads, v, decays and beta."""
        raise NotImplementedError

    def added(self, mixed: Float[Array, "B H N D"], qkv: dict[str, Array]) -> Array:
        """Returns what the heads read, and what goes past the states."""
        del qkv
        return mixed

    def gated(self, mixed: Float[Array, "B N H D"], gate: Float[Array, "B N _"]) -> Array:
        """Applies the gate and the norm."""
        raise NotImplementedError

    @property
    def has_bias(self) -> bool:
        """True if the convolution has a bias."""
        return False

    @property
    def lanes(self) -> int:
        """Of the convolution."""
        return recurrence.lanes(self.sizes) * self.sizes.num_key_heads

    @property
    def widths(self) -> list[int]:
        """Lanes of a key head, in the order of the file."""
        sizes = self.sizes
        values = sizes.num_heads // sizes.num_key_heads * sizes.value_dim
        return [values if part == "v" else sizes.key_dim for part in self.order]

    def ends(self) -> list[int]:
        first, second, _ = self.widths
        return [first, first + second]

    def by_group(self, x: Float[Array, "L *S"]) -> Float[Array, "J C *S"]:
        """Returns lanes as each key head has them; in files all heads are stored part by part."""
        heads = self.sizes.num_key_heads
        parts = jnp.split(x, [heads * end for end in self.ends()])
        return jnp.concatenate([part.reshape(heads, -1, *x.shape[1:]) for part in parts], axis=1)

    def grouped(self, inputs: Float[Array, "B N L"]) -> Float[Array, "B N J C"]:
        """Returns what the convolution reads, as each key head has it."""
        return self.by_group(jnp.moveaxis(inputs, -1, 0)).transpose(2, 3, 0, 1)

    def kernel(self) -> Float[Array, "J C W"]:
        """Returns weights of the convolution."""
        kind = eight_bits.high_precision(self.param_dtype, self.dtype)
        shape = self.lanes, 1, self.sizes.kernel_size
        kernel = self.param("convolution", nn.initializers.normal(0.5), shape, kind)
        return self.by_group(kernel[:, 0].astype(self.dtype))

    def dense(self, features: int, name: str, bias: bool = False) -> Linear:
        return Linear(features, bias, self.dtype, self.param_dtype, name=name)

    def number(self, name: str, size: int) -> Float[Array, " S"]:
        """Returns numbers of a layer, such as one for each head."""
        kind = eight_bits.high_precision(self.param_dtype, self.dtype)
        return self.param(name, nn.initializers.zeros, (size,), kind).astype(jnp.float32)

    def rates(self, step: Float[Array, "B H N"]) -> tuple[Array, Array]:
        """Returns the length of the steps, and the logarithm of what they leave of a state."""
        heads = self.sizes.num_heads
        step = jax.nn.softplus(step + self.number("bias", heads)[:, None])
        return step, -jnp.exp(self.number("log_rate", heads))[:, None] * step


class GatedDeltaNet(_Network):
    """A gated delta net: unit queries and keys, and a gate behind the norm of each head."""

    order = ("q", "k", "v")

    def project(self, read: Float[Array, "B N E"]) -> tuple[Array, Array, Array]:
        sizes = self.sizes
        both = sizes.num_key_heads * sizes.key_dim + sizes.num_heads * sizes.value_dim
        fused = self.dense(2 * both, "qkvz")(read)
        rates = self.dense(2 * sizes.num_heads, "ba")(read)
        if not sizes.grouped:
            inputs, gate = jnp.split(fused, [self.lanes], axis=-1)
            return self.grouped(inputs), gate, rates
        fused = fused.reshape(*read.shape[:2], sizes.num_key_heads, -1)
        inputs, gate = jnp.split(fused, [recurrence.lanes(sizes)], axis=-1)
        return inputs, gate, rates

    def steps(self, qkv: dict[str, Array], rates: Float[Array, "B N R"]) -> tuple[Any, ...]:
        sizes = self.sizes
        batch, count, _ = rates.shape
        groups = sizes.num_key_heads if sizes.grouped else 1
        rates = rates.reshape(batch, count, groups, -1).transpose(0, 2, 3, 1)
        beta, step = (x.reshape(batch, -1, count) for x in jnp.split(rates, 2, axis=2))
        _, decays = self.rates(step)
        q = _unit(qkv["q"]) * sizes.key_dim**-0.5
        return q, _unit(qkv["k"]), qkv["v"], decays, jax.nn.sigmoid(beta)

    def gated(self, mixed: Float[Array, "B N H D"], gate: Float[Array, "B N *_"]) -> Array:
        mixed = RMSNorm(self.config.norm_eps, jnp.float32, self.param_dtype, name="norm")(mixed)
        opened = ACTIVATIONS[self.config.activation](gate.astype(jnp.float32))
        return mixed * opened.reshape(mixed.shape)


class StateSpace(_Network):
    """Mamba-2: states that are read and written by groups of heads, and a norm behind the gate."""

    order = ("v", "k", "q")

    def project(self, read: Float[Array, "B N E"]) -> tuple[Array, Array, Array]:
        sizes = self.sizes
        values = sizes.num_heads * sizes.head_dim
        features = values + self.lanes + sizes.num_heads
        fused = self.dense(features, "projection", sizes.projection_bias)(read)
        gate, inputs, step = jnp.split(fused, [values, values + self.lanes], axis=-1)
        return self.grouped(inputs), gate, step

    def steps(self, qkv: dict[str, Array], rates: Float[Array, "B N R"]) -> tuple[Any, ...]:
        step, decays = self.rates(rates.swapaxes(1, 2))
        return qkv["q"], qkv["k"], qkv["v"] * step[..., None], decays, None

    def added(self, mixed: Float[Array, "B H N D"], qkv: dict[str, Array]) -> Array:
        skip = self.number("skip", self.sizes.num_heads)[:, None, None]
        return mixed + recurrence.fix_rounding(skip * qkv["v"])

    def gated(self, mixed: Float[Array, "B N H D"], gate: Float[Array, "B N _"]) -> Array:
        sizes = self.sizes
        values = sizes.num_heads * sizes.head_dim
        opened = ACTIVATIONS[self.config.activation](gate.astype(jnp.float32))
        mixed = mixed.reshape(gate.shape) * opened
        groups = mixed.reshape(*mixed.shape[:2], sizes.num_groups, -1)
        squares = native.row_sums(jnp.square(groups)) / groups.shape[-1]
        unit = (groups * jax.lax.rsqrt(squares + self.config.norm_eps)).reshape(mixed.shape)
        return unit * self.number("norm", values)

    def dense(self, features: int, name: str, bias: bool = False) -> Linear:
        return super().dense(features, name, bias or self.sizes.projection_bias)

    @property
    def has_bias(self) -> bool:
        return self.sizes.convolution_bias


def _unit(x: Float[Array, "*S K"]) -> Float[Array, "*S K"]:
    return x * jax.lax.rsqrt(native.row_sums(jnp.square(x)) + _EPS)


def _check_divides(name: str, parts: int, heads: int) -> None:
    if heads % parts:
        raise InputError(
            f"{name} is {parts}, which does not divide num_heads, {heads}; correct one of them"
        )
