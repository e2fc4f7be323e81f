"""Routed experts (Shazeer et al. 2017): each token goes through the few MLPs that a router chooses.

Shapes are static and no token is dropped: every token gets all experts that it was routed to,
however many tokens chose the same one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec._validate.arguments import check_integer
from jspec._xla import native
from jspec._xla.top_k import largest
from jspec.models import eight_bits
from jspec.models.linear import Held, Linear, multiply, natively_multiplied


@dataclass(frozen=True)
class Experts:
    """The experts of a layer.

    Raises:
        InputError: if a token goes through more of them than there are.
    """

    num_experts: int
    num_chosen: int
    """Experts that a token goes through, those of largest probability."""
    intermediate_size: int
    """I, of one expert."""
    normalised: bool = True
    """True where the probabilities of a token's experts are scaled to sum to 1."""
    shared_size: int | None = None
    """I of an expert that all tokens go through beside these; None: there is none."""
    shared_gate: bool = False
    """True where that expert has a gate of its own, a sigmoid."""

    def __post_init__(self):
        check_integer("num_chosen", self.num_chosen, 1, self.num_experts, "the experts of a layer")


class RoutedExperts(nn.Module):
    """An MLP of experts.

    Args:
        experts: their number and size.
        activation: of the gates.
        dtype: of activations. The router's probabilities are float32.
        param_dtype: dtype that weights are created in.
    """

    experts: Experts
    activation: Callable[[Array], Array]
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
        experts, width = self.experts, x.shape[-1]
        high = eight_bits.high_precision(self.param_dtype, self.dtype)
        scores = Linear(experts.num_experts, False, self.dtype, high, name="router")(x)
        scores = scores.astype(jnp.float32)
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        shares = weights / native.row_sums(weights)
        shares, chosen = largest(shares, experts.num_chosen)
        if experts.normalised:
            shares = shares / native.row_sums(shares)
        inner, count = experts.intermediate_size, experts.num_experts
        dtypes = self.param_dtype, self.dtype
        gate_up, layer = eight_bits.parameter(self, "gate_up", (count, 2 * inner, width), *dtypes)
        down, _ = eight_bits.parameter(self, "down", (count, width, inner), *dtypes)
        rows, routes = x.reshape(-1, width), chosen.reshape(-1, experts.num_chosen)
        # A kernel's bits do not depend on how many rows an expert has.
        rounds = isinstance(gate_up, eight_bits.LowPrecision) and gate_up.rounds_states
        if routes.size <= count and not rounds and not natively_multiplied(rows, gate_up):
            fed = each(rows, routes, gate_up, down, self.activation)
        else:
            if layer is not None:
                gate_up, down = jax.tree.map(
                    lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (gate_up, down)
                )
            first = 0 if layer is None else layer * count
            places = first + jnp.arange(count, dtype=jnp.int32)
            fed = sorted_by_expert(rows, routes, gate_up, down, self.activation, places)
        mixed = (fed.astype(jnp.float32) * shares.reshape(*routes.shape, 1)).sum(1)
        return mixed.astype(self.dtype).reshape(x.shape)


def each(
    x: Float[Array, "R E"],
    routes: Int[Array, "R K"],
    gate_up: Held,
    down: Held,
    activation: Callable[[Array], Array],
) -> Float[Array, "R K E"]:
    """Every route by itself, with its expert's weights gathered: for fewer routes than experts.

    Args:
        x: states.
        routes: the experts of each.
        gate_up, down: weights of all X experts, [X, J, E] and [X, E, I]; J is 2 I.
        activation: of the gates.

    Returns:
        What each expert makes of each state.
    """

    def product(equation: str, x: Float[Array, "..."], weights: Held) -> Float[Array, "R K _"]:
        if not isinstance(weights, eight_bits.LowPrecision):
            return jnp.einsum(equation, x, weights[routes])
        # Factors come behind, as in every other product: weights have one value for all widths.
        found = jnp.einsum(equation, x, weights.weights[routes].astype(x.dtype))
        return found * weights.factors[routes].astype(x.dtype)

    gate, up = jnp.split(product("re,rkie->rki", x, gate_up), 2, axis=-1)
    return product("rki,rkei->rke", activation(gate) * up, down)


def sorted_by_expert(
    x: Float[Array, "R E"],
    routes: Int[Array, "R K"],
    gate_up: Held,
    down: Held,
    activation: Callable[[Array], Array],
    places: Int[Array, " X"],
) -> Float[Array, "R K E"]:
    """The same with the routes sorted by expert and cut into blocks of one expert each.

    A block is a product with one expert's weights, so that these are read about once and no
    [routes, E, I] array is made. The last block of an expert is filled up with zeros.

    Args:
        x, routes, activation: as in `each`.
        gate_up, down: weights of the experts of one layer or of several.
        places: where each expert of this layer stands among them.
    """
    experts, (num_routes, chosen) = len(places), (routes.size, routes.shape[1])
    block = max(num_routes // experts, 1)
    num_blocks = num_routes // block + experts  # the last of an expert may be nearly empty
    flat = routes.reshape(-1)
    order = jnp.argsort(flat)
    counts = jnp.bincount(flat, length=experts)
    blocks = -(-counts // block)
    before, blocks_before = jnp.cumsum(counts) - counts, jnp.cumsum(blocks) - blocks
    own = flat[order]
    slots = blocks_before[own] * block + jnp.arange(num_routes) - before[own]
    filled = jnp.zeros((num_blocks * block, x.shape[1]), x.dtype).at[slots].set(x[order // chosen])
    ends = jnp.cumsum(blocks)
    which = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")

    def feed(given: tuple[Array, Array]) -> Array:
        rows, expert = given

        def used() -> Array:
            gate, up = jnp.split(multiply(rows, gate_up, places[expert]), 2, axis=-1)
            return multiply(activation(gate) * up, down, places[expert])

        return jax.lax.cond(expert < experts, used, lambda: jnp.zeros_like(rows))

    fed = jax.lax.map(feed, (filled.reshape(num_blocks, block, -1), which))
    places = jnp.zeros(num_routes, jnp.int32).at[order].set(slots.astype(jnp.int32))
    return fed.reshape(num_blocks * block, -1)[places].reshape(*routes.shape, -1)
