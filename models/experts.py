"""Routed experts (Shazeer et al. 2017): a router chooses a few MLPs per token.

Shapes are static and no token is dropped: every token gets all experts that it was routed to,
however many tokens chose the same one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla import native
from jspec.arrays.top_k import largest
from jspec.models import eight_bits
from jspec.models.activations import ClampedGate, apply_gate
from jspec.models.linear import Held, Linear, multiply, natively_multiplied


@dataclass(frozen=True)
class ExpertGroups:
    """Groups of experts: a token's experts are those of its best groups (DeepSeek-V2 and V3).

    DeepSeek-V2, arXiv 2405.04434, section 2.2.2; DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
    """

    num_groups: int
    """Groups of equally many experts, one behind the other."""
    num_chosen_groups: int
    """Groups that a token's experts may be of."""
    num_ranking: int = 1
    """The best experts of a group whose scores, summed, rank it."""


@dataclass(frozen=True)
class Experts:
    """The experts of a layer.

    Raises:
        InputError: if a token goes through more of them than there are, or than its groups have.
    """

    num_experts: int
    num_chosen: int
    """Experts that a token goes through, by largest probability."""
    intermediate_size: int
    """I, of one expert."""
    normalised: bool = True
    """True where the probabilities of a token's experts are scaled to sum to 1."""
    shared_size: int | None = None
    """I of an expert that all tokens go through alongside these; None: there is none."""
    shared_gate: bool = False
    """True where that expert has a gate of its own, a sigmoid."""
    sigmoid: bool = False
    """True where an expert's score is a sigmoid, as in DeepSeek-V3; False: a softmax over all."""
    correction: bool = False
    """True where a bias for each expert is added to the scores that are compared, and not to
    those that its output is multiplied with (Wang et al. 2024, arXiv 2408.15664)."""
    groups: ExpertGroups | None = None
    """None: all experts are compared."""
    scale: float = 1.0
    """Factor of what the routed experts add."""
    bias: bool = False
    """True where the router and the experts' products have biases."""
    clamp: ClampedGate | None = None
    """Replaces the gates' activation, in gpt-oss; None: nothing does."""
    float32_router: bool = False
    """True where the router's product is float32, whatever the dtype of activations."""
    beside: bool = False
    """True: in parallel with the MLP; router, experts and both have their own norms (Gemma 4)."""
    each_scaled: bool = False
    """True where what each expert adds has a factor of its own."""

    def __post_init__(self):
        check_integer("num_chosen", self.num_chosen, 1, self.num_experts, "the experts of a layer")
        if self.groups is None:
            return
        count, top_groups = self.groups.num_groups, self.groups.num_chosen_groups
        if self.num_experts % count:
            raise InputError(
                f"num_groups is {count}, which does not divide the {self.num_experts} experts of a "
                "layer; pass a divisor"
            )
        size = self.num_experts // count
        check_integer("num_chosen_groups", top_groups, 1, count, "the groups of a layer")
        check_integer("num_ranking", self.groups.num_ranking, 1, size, "the experts of a group")
        check_integer(
            "num_chosen", self.num_chosen, 1, top_groups * size, "the experts of the groups"
        )


Biases = tuple[Float[Array, "X J"], Float[Array, "X E"]] | None
"""Of the two products of all experts of a layer."""


class RoutedExperts(nn.Module):
    """An MLP of experts."""

    experts: Experts
    activation: Callable[[Array], Array]
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N E"], router_input: Float[Array, "B N E"] | None = None
    ) -> Float[Array, "B N E"]:
        """Returns what the experts add."""
        experts, width = self.experts, x.shape[-1]
        high = eight_bits.high_precision(self.param_dtype, self.dtype)
        exact = jnp.promote_types(self.dtype, jnp.float32) if experts.float32_router else self.dtype
        scores = Linear(experts.num_experts, experts.bias, exact, high, name="router")(
            x if router_input is None else router_input
        )
        correction = None
        if experts.correction:
            # Always float32: in 16 bits it would be too coarse to order the scores.
            correction = self.param(
                "correction", nn.initializers.zeros, (experts.num_experts,), jnp.float32
            )
        shares, indices = route(experts, scores.astype(jnp.float32), correction)
        inner, count = experts.intermediate_size, experts.num_experts
        if experts.each_scaled:
            factors = self.param("factors", nn.initializers.ones, (count,), high)
            shares = shares * factors.astype(jnp.float32)[indices]
        dtypes = self.param_dtype, self.dtype
        gate_up, layer = eight_bits.parameter(self, "gate_up", (count, 2 * inner, width), *dtypes)
        down, _ = eight_bits.parameter(self, "down", (count, width, inner), *dtypes)
        assert not isinstance(gate_up, tuple), "experts are in one format"
        assert not isinstance(down, tuple), "experts are in one format"
        biases = None
        if experts.bias:
            biases = self.bias("gate_up_bias", 2 * inner), self.bias("down_bias", width)
        feed = partial(apply_gate, self.activation) if experts.clamp is None else experts.clamp
        rows, routes = x.reshape(-1, width), indices.reshape(-1, experts.num_chosen)
        # A kernel's bits do not depend on how many rows an expert has.
        rounds = eight_bits.rounds_states(self.param_dtype)
        if routes.size <= count and not rounds and not natively_multiplied(rows, gate_up):
            fed = each(rows, routes, gate_up, down, feed, biases)
        else:
            if layer is not None:
                gate_up, down = jax.tree.map(
                    lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (gate_up, down)
                )
            first = 0 if layer is None else layer * count
            places = first + jnp.arange(count, dtype=jnp.int32)
            fed = run_by_expert(rows, routes, gate_up, down, feed, places, biases)
        mixed = (fed.astype(jnp.float32) * shares.reshape(*routes.shape, 1)).sum(1)
        return mixed.astype(self.dtype).reshape(x.shape)

    def bias(self, name: str, size: int) -> Float[Array, "X S"]:
        """Returns the matrix sizes of a product of all experts."""
        high = eight_bits.high_precision(self.param_dtype, self.dtype)
        shape = self.experts.num_experts, size
        return self.param(name, nn.initializers.zeros, shape, high).astype(self.dtype)


def route(
    experts: Experts, scores: Float[Array, "B N X"], correction: Float[Array, " X"] | None = None
) -> tuple[Float[Array, "B N K"], Int[Array, "B N K"]]:
    """Returns the experts of each token, and what their outputs are multiplied with."""
    if experts.sigmoid:
        shares = nn.sigmoid(scores)
    else:
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        shares = weights / native.row_sums(weights)
    ranked = shares if correction is None else shares + correction
    if experts.groups is not None:
        ranked = in_best_groups(ranked, experts.groups)
    values, indices = largest(ranked, experts.num_chosen)
    shares = values if ranked is shares else jnp.take_along_axis(shares, indices, axis=-1)
    if experts.normalised:
        shares = shares / native.row_sums(shares)
    return shares if experts.scale == 1 else shares * experts.scale, indices


def in_best_groups(ranked: Float[Array, "B N X"], groups: ExpertGroups) -> Float[Array, "B N X"]:
    """Returns the scores of the experts of each token's best groups; all others are -inf."""
    grouped = ranked.reshape(*ranked.shape[:-1], groups.num_groups, -1)
    strength = largest(grouped, groups.num_ranking)[0].sum(-1)
    _, best = largest(strength, groups.num_chosen_groups)
    mask = (best[..., None] == jnp.arange(groups.num_groups)).any(-2)
    return jnp.where(mask[..., None], grouped, -jnp.inf).reshape(ranked.shape)


def each(
    x: Float[Array, "R E"],
    routes: Int[Array, "R K"],
    gate_up: Held,
    down: Held,
    feed: Callable[[Array], Array],
    biases: Biases = None,
) -> Float[Array, "R K E"]:
    """Returns every route by itself, for fewer routes than experts."""

    def product(equation: str, x: Float[Array, "..."], weights: Held) -> Float[Array, "R K _"]:
        if not isinstance(weights, eight_bits.LowPrecision):
            return jnp.einsum(equation, x, weights[routes].astype(x.dtype))
        # Factors come behind, as in every other product: weights have one value for all widths.
        outputs = jnp.einsum(equation, x, weights.weights[routes].astype(x.dtype))
        return outputs * weights.factors[routes].astype(x.dtype)

    both = product("re,rkie->rki", x, gate_up)
    both = both if biases is None else both + biases[0][routes]
    fed = product("rki,rkei->rke", feed(both), down)
    return fed if biases is None else fed + biases[1][routes]


def run_by_expert(
    x: Float[Array, "R E"],
    routes: Int[Array, "R K"],
    gate_up: Held,
    down: Held,
    feed: Callable[[Array], Array],
    places: Int[Array, " X"],
    biases: Biases = None,
) -> Float[Array, "R K E"]:
    """Returns the same with the routes sorted by expert and cut into blocks of one expert each."""
    experts, (num_routes, top_k) = len(places), (routes.size, routes.shape[1])
    block = max(num_routes // experts, 1)
    num_blocks = num_routes // block + experts  # the last of an expert may be nearly empty
    flat = routes.reshape(-1)
    order = jnp.argsort(flat)
    counts = jnp.bincount(flat, length=experts)
    blocks = -(-counts // block)
    before, blocks_before = jnp.cumsum(counts) - counts, jnp.cumsum(blocks) - blocks
    expert_ids = flat[order]
    slots = blocks_before[expert_ids] * block + jnp.arange(num_routes) - before[expert_ids]
    filled = jnp.zeros((num_blocks * block, x.shape[1]), x.dtype).at[slots].set(x[order // top_k])
    ends = jnp.cumsum(blocks)
    which = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")

    def through(pair: tuple[Array, Array]) -> Array:
        rows, expert = pair

        def feed_rows() -> Array:
            both = multiply(rows, gate_up, places[expert])
            both = both if biases is None else both + biases[0][expert]
            fed = multiply(feed(both), down, places[expert])
            return fed if biases is None else fed + biases[1][expert]

        return jax.lax.cond(expert < experts, feed_rows, lambda: jnp.zeros_like(rows))

    fed = jax.lax.map(through, (filled.reshape(num_blocks, block, -1), which))
    places = jnp.zeros(num_routes, jnp.int32).at[order].set(slots.astype(jnp.int32))
    return fed.reshape(num_blocks * block, -1)[places].reshape(*routes.shape, -1)
