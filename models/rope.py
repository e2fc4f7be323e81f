"""Rotary positions (Su et al. 2021): frequencies, stretching, and rotation."""

from dataclasses import dataclass
from math import ceil, floor, log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Base = Float[np.ndarray, " R/2"]
"""A number for each rotary frequency."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretch of the low rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    attention_factor = 1.0

    def divisors(self, base: Base, theta: float, context: int) -> Base:
        """Returns what each frequency is divided by."""
        # Waves longer than the original context are slowed, short ones kept, others interpolated.
        waves = 2 * np.pi / base
        ramp = (self.original_context / waves - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        keep = np.clip(ramp, 0.0, 1.0)
        return 1 / ((1 - keep) / self.factor + keep)


@dataclass(frozen=True)
class RopeFactors:
    """A divisor for each rotary frequency, as GGUF files hold them."""

    factors: tuple[float, ...]
    """R/2 numbers."""

    attention_factor = 1.0

    def divisors(self, base: Base, theta: float, context: int) -> Base:
        """Returns what each frequency is divided by."""
        return np.array(self.factors)


@dataclass(frozen=True)
class LinearScaling:
    """All frequencies slowed alike (Chen et al. 2023, arXiv:2306.15595)."""

    factor: float

    attention_factor = 1.0

    def divisors(self, base: Base, theta: float, context: int) -> Base:
        """Returns what each frequency is divided by."""
        return np.full_like(base, self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): by how often a frequency turns in the context."""

    factor: float
    original_context: int
    attention_factor: float
    """Factor on both queries and keys; the paper's sqrt(1/t), equation 22."""
    beta_fast: float = 32.0
    """Frequencies of at least so many turns in the original context are kept."""
    beta_slow: float = 1.0
    """Frequencies of at most so many turns are divided by `factor`."""
    truncate: bool = True
    """True where the ramp begins and ends at a whole frequency."""

    def divisors(self, base: Base, theta: float, context: int) -> Base:
        """Returns what each frequency is divided by."""
        size = 2 * len(base)

        def place(turns: float) -> float:
            """Returns the index of the frequency of so many turns."""
            return size * log(self.original_context / (turns * 2 * pi)) / (2 * log(theta))

        low, high = place(self.beta_fast), place(self.beta_slow)
        if self.truncate:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        slowed = np.clip((np.arange(len(base)) - low) / max(high - low, 0.001), 0.0, 1.0)
        return 1 / (slowed / self.factor + 1 - slowed)


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): one set of divisors for long contexts.

    Which set holds is a matter of the whole model: keys that are cached cannot be turned again when
    a text grows beyond the original context. So the model's context decides.
    """

    short: tuple[float, ...]
    """R/2 divisors, where the context is the original one or shorter."""
    long: tuple[float, ...]
    """R/2 divisors, where it is longer."""
    original_context: int
    attention_factor: float
    """Factor on both queries and keys."""

    def divisors(self, base: Base, theta: float, context: int) -> Base:
        """Returns what each frequency is divided by."""
        return np.array(self.long if context > self.original_context else self.short)


@dataclass(frozen=True)
class ProportionalScaling:
    """Gemma 4's: the high frequencies of all lanes, and no turn of the lanes behind them."""

    part: float
    """Of the frequencies that are kept."""
    factor: float = 1.0
    """Divisor of these frequencies."""

    attention_factor = 1.0

    def divisors(self, base: Base, theta: float, context: int) -> Base:
        """Returns what each frequency is divided by."""
        turned = int(self.part * 2 * len(base) // 2)
        return np.where(np.arange(len(base)) < turned, self.factor, np.inf)


Scaling = (
    RopeScaling | RopeFactors | LinearScaling | YarnScaling | LongScaling | ProportionalScaling
)


@dataclass(frozen=True)
class Rope:
    """The rotary positions of a layer.

    Example:
        >>> frequencies(Rope(theta=100.0), head_dim=4, context=64).tolist()
        [1.0, 0.10000000149011612]
    """

    theta: float = 10000.0
    """Base of the frequencies."""
    scaling: Scaling | None = None
    lanes: int | None = None
    """R, the first lanes of a head, which are turned; None: all."""
    interleaved: bool = False
    """True where a lane makes a pair with the next one; False: with the one R/2 behind it."""


def frequencies(rope: Rope, head_dim: int, context: int) -> Float[np.ndarray, " R/2"]:
    """Returns rotary angle per position for each pair of lanes."""
    # On the host in float64: an error in the frequency grows with the position, and XLA's float32
    # power is off by several units in the last place.
    dim = rope.lanes or head_dim
    base = rope.theta ** -(np.arange(0, dim, 2) / dim)
    if rope.scaling is not None:
        base = base / rope.scaling.divisors(base, rope.theta, context)
    return base.astype(np.float32)


def turns(
    rope: Rope, head_dim: int, context: int, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N 1 R/2"], Float[Array, "B N 1 R/2"]]:
    """Returns cosine and sine of each position's angles, times the scaling's attention factor."""
    angles = positions[..., None, None].astype(jnp.float32) * jnp.expand_dims(
        frequencies(rope, head_dim, context), tuple(range(positions.ndim + 1))
    )
    length = 1.0 if rope.scaling is None else rope.scaling.attention_factor
    turned = jnp.concatenate([jnp.cos(angles) * length, jnp.sin(angles) * length], axis=-1)
    cos, sin = jnp.split(jax.lax.platform_dependent(turned, cpu=_once, default=_as_it_is), 2, -1)
    return cos, sin


def _once(x: Float[Array, "*axes R"]) -> Float[Array, "*axes R"]:
    """Returns the same numbers, held in memory.

    XLA for CPUs computes again what is elementwise in each of its readers: a cosine and a sine for
    every lane of every head in every layer, 3% of the forward pass of a small model. What comes of
    a matrix product is computed once, for all layers.
    """
    # A constant and no computation: one that XLA moves out of a loop is there once for each layer.
    return jnp.matmul(x, np.eye(x.shape[-1], dtype=x.dtype), precision="highest")


def _as_it_is(x: Float[Array, "*axes R"]) -> Float[Array, "*axes R"]:
    return x


def rotate(
    x: Float[Array, "B N H D"],
    turn: tuple[Float[Array, "B N 1 R/2"], Float[Array, "B N 1 R/2"]],
    interleaved: bool = False,
) -> Float[Array, "B N H D"]:
    """Applies rotary embedding in float32; lane i pairs with lane i + R/2."""
    cos, sin = turn
    half = cos.shape[-1]
    left, right, rest = jnp.split(x.astype(jnp.float32), [half, 2 * half], axis=-1)
    if interleaved:
        pairs = jnp.concatenate([left, right], axis=-1)
        left, right = pairs[..., ::2], pairs[..., 1::2]
    turned = [left * cos - right * sin, right * cos + left * sin, rest]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
