"""Activation functions by their Hugging Face names, and gated units."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "swish": jax.nn.silu,
        "gelu": partial(jax.nn.gelu, approximate=False),
        "gelu_new": partial(jax.nn.gelu, approximate=True),
        "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    }
)


@dataclass(frozen=True)
class ClampedGate:
    """gpt-oss's gates: min(g, l) sigmoid(a min(g, l)) (clip(u, -l, l) + 1) of gate g and lane u.

    Example:
        >>> import jax.numpy as jnp
        >>> made = ClampedGate(alpha=1.0, limit=2.0)(jnp.array([0.0, 1.0, 9.0, 9.0]))
        >>> [f"{number:.2f}" for number in made]
        ['0.00', '5.28']
    """

    alpha: float
    limit: float
    """The largest gate, and the largest lane of either sign."""

    def __call__(self, both: Float[Array, "... 2*I"]) -> Float[Array, "... I"]:
        """Returns the products of gates and lanes, which alternate."""
        gate = jnp.minimum(both[..., ::2], self.limit)
        up = jnp.clip(both[..., 1::2], -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(gate * self.alpha)


def apply_gate(
    activation: Callable[[Array], Array], both: Float[Array, "... 2*I"]
) -> Float[Array, "... I"]:
    """Returns lanes by their gates, which come before them."""
    gate, up = jnp.split(both, 2, axis=-1)
    return activation(gate) * up
