"""Best-first growth: the tree takes the shape that its nodes' values give it.

W: the beam, nodes scored per level, with as many children each. Q: scored nodes, with root.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._xla.manual_axes import vary
from jspec.arrays.top_k import largest
from jspec.drafters.growth.pool import DrawnChildren, Pool, TreeLimits, empty_pool, flat, put
from jspec.drafters.growth.scorer import Draft, LevelOutput, Scorer, inherit
from jspec.types import Frame, PyTree, Sampling
from jspec.verify.proposals import ChildDraws, ChildSampler


class NodeValues(NamedTuple):
    """The values of the children drawn at the W nodes of a level."""

    slot: Float[Array, "B W K"]
    """The value of drawing the k-th child, by which it enters the tree.

    It may depend on the children drawn before, but not on the k-th child itself: a token that
    decides whether it is drafted would bias the rejection. The coupled scheme alone has no such
    bound."""
    child: Float[Array, "B W K"]
    """The value of the drawn child, by which it gets children of its own."""
    notes: tuple[Float[Array, "B W K"], ...] = ()
    """Further numbers of each child that the method needs when it learns."""


ValueFn = Callable[[ChildDraws, Float[Array, "B W"]], NodeValues]
"""Values the drawn children, given the values of the nodes that they hang from."""


@struct.dataclass
class _Frontier:
    """The W nodes of the pool that are scored next."""

    ids: Int[Array, "B W"]
    """The places of the nodes in the pool."""
    tokens: Int[Array, "B W"]
    values: Float[Array, "B W"]
    """The value of each node, its `NodeValues.child`."""
    inherited: PyTree


@struct.dataclass
class _Growth:
    """The state of a growth, carried from level to level."""

    level: Int[Array, ""]
    """The depth of the frontier."""
    pool: Pool
    frontier: _Frontier
    kv: PyTree
    q: Float[Array, "B Q V"] | None
    """The draft's distributions at the scored nodes; None for deterministic proposals."""


def check(num_speculative_tokens: int, max_depth: int, beam: int, vocab_size: int) -> None:
    """Raises InputError unless `grow` can make such trees."""
    check_integer("beam", beam, 1, vocab_size, "the vocabulary")
    max_nodes = TreeLimits(0, max_depth, beam, 0.0, 0.0).most_nodes
    offered = f"what a beam of {beam} over {max_depth} levels offers"
    check_integer("num_speculative_tokens", num_speculative_tokens, 1, max_nodes, offered)


def grow(
    scorer: Scorer,
    draw: ChildSampler,
    sampling: Sampling | None,
    value_fn: ValueFn,
    *,
    num_speculative_tokens: int,
    max_depth: int,
    beam: int,
    threshold: float = 0.0,
    min_gain: float = 0.0,
) -> tuple[Draft, DrawnChildren]:
    """Grows the tree of the slots of largest value (DySpec, Xiong et al. 2024, Algorithm 1).

    The paper's Algorithm 1 takes one slot after another from a heap, which costs a forward pass of
    the draft model per node. Here every level costs one forward pass, and the tree is the same:
    values fall along every path, so the nodes that the heap takes from a level are the best of that
    level. The W children of largest value are scored in each level, and the best slots of all
    levels are taken at the end. The trees differ only if the heap would score more than W nodes of
    one level, or draw more than W children of one node. (The paper asks for such an algorithm in
    its appendix B.1: its own trees of 768 nodes are grown level by level with a fixed threshold.)
    """
    limits = TreeLimits(num_speculative_tokens, max_depth, beam, threshold, min_gain)
    frame = scorer.frame

    def goes_on(growth: _Growth) -> Bool[Array, ""]:
        running = _can_gain(growth, limits) & ~frame.done
        return (growth.level < max_depth) & running.any()

    def add_level(growth: _Growth) -> _Growth:
        level, frontier = growth.level, growth.frontier
        kv_index = limits.first_kv_index(level)
        scored = scorer.below(level, kv_index, frontier.tokens, frontier.inherited, growth.kv)
        drawn = draw(scored.logits, sampling, frame, level, beam)
        return _next_level(growth, scored, drawn, value_fn, limits)

    scored = scorer.root()
    drawn = draw(scored.logits, sampling, frame, 0, beam)
    growth = _first_level(frame, scored, drawn, value_fn, limits)
    if max_depth > 1:  # else the scorer has no room for the level that the loop would trace
        growth = jax.lax.while_loop(goes_on, add_level, vary(growth, frame))
    return growth.pool.best(limits, growth.kv, growth.q), growth.pool.children(beam)


def _first_level(
    frame: Frame, scored: LevelOutput, drawn: ChildDraws, value_fn: ValueFn, limits: TreeLimits
) -> _Growth:
    """Returns the growth after the root was scored and its children were drawn."""
    certain = jnp.ones((len(frame.root), 1), jnp.float32)
    values = _falling(value_fn(drawn, certain), drawn, certain)
    pool = empty_pool(frame.root, 1 + limits.most_nodes, values.notes)
    ids = jnp.zeros((len(frame.root), 1), jnp.int32)
    q = None
    if drawn.q is not None:
        batch, _, vocab = drawn.q.shape
        q = put(jnp.zeros((batch, limits.num_scored, vocab), drawn.q.dtype), drawn.q, 0)
    return _Growth(
        level=jnp.int32(1),
        pool=pool.add(1, ids, drawn.tokens, values.slot, values.notes),
        frontier=_frontier(1, scored, drawn, values, limits),
        kv=scored.kv,
        q=q,
    )


def _next_level(
    growth: _Growth, scored: LevelOutput, drawn: ChildDraws, value_fn: ValueFn, limits: TreeLimits
) -> _Growth:
    """Returns the growth after its frontier was scored and the frontier's children were drawn."""
    level, frontier, pool = growth.level, growth.frontier, growth.pool
    values = _falling(value_fn(drawn, frontier.values), drawn, frontier.values)
    first_kv, first_child = limits.first_kv_index(level), limits.first_child(level)
    kv_index = first_kv + jnp.arange(limits.beam, dtype=jnp.int32)
    write = jax.vmap(lambda row, ids: row.at[ids].set(kv_index))
    pool = replace(pool, kv_index=write(pool.kv_index, frontier.ids))
    return _Growth(
        level=level + 1,
        pool=pool.add(first_child, frontier.ids, drawn.tokens, values.slot, values.notes),
        frontier=_frontier(first_child, scored, drawn, values, limits),
        kv=scored.kv,
        q=jax.tree.map(lambda old, new: put(old, new, first_kv - 1), growth.q, drawn.q),
    )


def _falling(values: NodeValues, drawn: ChildDraws, above: Float[Array, "B W"]) -> NodeValues:
    """Returns values that fall along paths and siblings; 0 for absent children."""
    slot, child, notes = values
    # NaN counts for nothing: sorting would put it above all numbers, the root's among them.
    valid = (drawn.scores > -jnp.inf) & (above > 0)[..., None] & (slot >= 0) & (child >= 0)
    slot = jnp.where(valid, slot, 0.0)
    slot = jax.lax.cummin(jnp.minimum(slot, above[..., None]), axis=2)
    return NodeValues(slot, jnp.where(valid, jnp.minimum(child, slot), 0.0), notes)


def _frontier(
    first: Int[Array, ""] | int,
    scored: LevelOutput,
    drawn: ChildDraws,
    values: NodeValues,
    limits: TreeLimits,
) -> _Frontier:
    """Returns the children of largest value; all of them are in the pool from place `first` on."""
    best, indices = largest(flat(values.child), limits.beam)
    return _Frontier(
        ids=first + indices,
        tokens=jnp.take_along_axis(flat(drawn.tokens), indices, axis=1),
        values=best,
        inherited=inherit(scored.inherited, indices // limits.beam),
    )


def _can_gain(growth: _Growth, limits: TreeLimits) -> Bool[Array, " B"]:
    """Returns True where the frontier's children could enter the tree and add enough to it."""
    best, _ = largest(growth.pool.slots, limits.num_speculative_tokens + 1)
    frontier = growth.frontier.values
    enters = frontier.max(-1) > jnp.maximum(best[:, -1], limits.threshold)
    # Below the frontier no more tokens can be accepted than the frontier's values sum up to.
    return enters & (frontier.sum(-1) > limits.min_gain * (1 + best[:, 1:].sum(-1)))
