"""Best-first growth: the tree takes the shape that its nodes' values give it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from jspec.base import NO_PARENT, PyTree, Sampling, Tree
from jspec.drafters.growth.scorer import Draft, Scorer, inherited
from jspec.errors import InputError
from jspec.verify.proposals import Candidates, ChildSampler


class NodeValues(NamedTuple):
    """What M nodes' children are worth.

    Nothing counts for more than the slots above it on its path, or those of its earlier siblings.
    """

    slots: Float[Array, "B M K"]
    """Of drawing each child. It may depend on the children drawn before, but not on the child
    itself, unless the scheme is coupled."""
    below: Float[Array, "B M K"]
    """Of giving that child children."""
    notes: tuple[Float[Array, "B M K"], ...] = ()
    """What the method wants to know of each child when it learns."""


ValueFn = Callable[[Candidates, Float[Array, "B M"]], NodeValues]
"""From the drawn tokens and the nodes' own worth, the children's."""


class Offers(NamedTuple):
    """The children of all scored nodes; those of the node at place i + 1 are in row i."""

    tokens: Int[Array, "B Q K"]
    notes: tuple[Float[Array, "B Q K"], ...]


class _Pool(NamedTuple):
    """All that could be in the tree: C candidates, parents first, siblings in drawing order."""

    tokens: Int[Array, "B C"]
    parents: Int[Array, "B C"]
    slots: Float[Array, "B C"]
    """The worth of having each; the root's is infinite, and 0 or less is not there."""
    places: Int[Array, "B C"]
    """Where the draft model put those that it scored."""
    notes: tuple[Float[Array, "B C"], ...]


@struct.dataclass
class _Frontier:
    """The W candidates of a level that are scored next."""

    ids: Int[Array, "B W"]
    tokens: Int[Array, "B W"]
    values: Float[Array, "B W"]
    lineage: PyTree


def check(nodes: int, depth: int, beam: int, gain: float, vocabulary: int) -> None:
    """Raises InputError unless `grow` can make such trees."""
    if depth < 1:
        raise InputError(f"max_depth is {depth}; draft at least 1 level")
    if not 1 <= beam <= vocabulary:
        raise InputError(
            f"the beam is {beam} wide; score 1 .. {vocabulary} nodes a level, the vocabulary"
        )
    if not 0 <= gain < 1:
        raise InputError(f"min_gain is {gain}; choose 0 <= min_gain < 1")
    most = beam + (depth - 1) * beam * beam
    if not 1 <= nodes <= most:
        raise InputError(
            f"the budget is {nodes} nodes; a beam of {beam} over {depth} levels offers 1 .. {most}"
        )


def grow(
    scorer: Scorer,
    draw: ChildSampler,
    sampling: Sampling | None,
    value_fn: ValueFn,
    *,
    nodes: int,
    depth: int,
    width: int,
    threshold: float,
    gain: float,
) -> tuple[Draft, Offers]:
    """The tree of the `nodes` worthiest slots above `threshold`.

    One by one, from a heap, each node would cost a forward of the draft model. But a level's
    candidates compete only with what stands above them or beside them, and worth falls along every
    path: expanding the W worthiest of a level, for all levels, and taking the N best slots of all
    gives the same tree, as long as W nodes and W children hold what the heap would have taken.
    Levels end when nothing below could enter the tree any more.

    Args:
        scorer: the draft model, with places for the frontiers of all levels.
        draw: how children are drawn.
        sampling: the draft's own.
        appraise: what they are worth.
        nodes: drafted nodes, without the root.
        depth: most levels.
        width: W, nodes scored per level and children drawn per node.
        threshold: slots that are worth no more are not drawn.
        gain: least share of the expected tokens that a further level must be able to add.
    """
    frame = scorer.frame
    batch, children = len(frame.root), width
    size = 1 + children + (depth - 1) * width * children  # of the pool, the root included

    def put(array: Array, new: Array, at: Int[Array, ""] | int) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(array, new.astype(array.dtype), at, axis=1)

    def spread(pool: _Pool, lineage, drawn: Candidates, ids, values, at) -> tuple[_Pool, _Frontier]:
        """The children of M nodes put into the pool, and the best of them as the next frontier."""
        slots, below, notes = value_fn(drawn, values)
        # NaN is not there: sorting puts it above all numbers, the root's among them.
        there = (drawn.scores > -jnp.inf) & (values > 0)[..., None] & (slots >= 0) & (below >= 0)
        slots = jnp.where(there, slots, 0.0)
        slots = jax.lax.cummin(jnp.minimum(slots, values[..., None]), axis=2)
        below = jnp.where(there, jnp.minimum(below, slots), 0.0)

        def flat(array):
            return array.reshape(batch, -1)

        best, place = jax.lax.top_k(flat(below), width)

        def pick(array):
            return jnp.take_along_axis(flat(array), place, axis=1)

        pool = pool._replace(
            tokens=put(pool.tokens, flat(drawn.tokens), at),
            parents=put(pool.parents, jnp.repeat(ids, children, axis=1), at),
            slots=put(pool.slots, flat(slots), at),
            notes=tuple(
                put(held, flat(new), at) for held, new in zip(pool.notes, notes, strict=True)
            ),
        )
        frontier = _Frontier(
            ids=at + place,
            tokens=pick(drawn.tokens),
            values=best,
            lineage=inherited(lineage, place // children),
        )
        return pool, frontier

    level = scorer.root()
    drawn = draw(level.logits, sampling, frame, 0, children)
    one = jnp.ones((batch, 1), jnp.float32)
    notes = jax.eval_shape(value_fn, drawn, one).notes
    empty = jnp.zeros((batch, size), jnp.int32)
    pool, frontier = spread(
        _Pool(
            tokens=empty.at[:, 0].set(frame.root),
            parents=empty.at[:, 0].set(NO_PARENT),
            slots=jnp.zeros((batch, size), jnp.float32).at[:, 0].set(jnp.inf),
            places=empty.at[:, 0].set(1),
            notes=tuple(jnp.zeros((batch, size), note.dtype) for note in notes),
        ),
        level.lineage,
        drawn,
        jnp.zeros((batch, 1), jnp.int32),
        one,
        1,
    )
    distributions = None
    if drawn.q is not None:
        distributions = jnp.zeros(
            (batch, 1 + (depth - 1) * width, drawn.q.shape[-1]), drawn.q.dtype
        )
        distributions = put(distributions, drawn.q, 0)

    def going(carry):
        depth_, pool, frontier, *_ = carry
        best, _ = jax.lax.top_k(pool.slots, nodes + 1)
        hopeful = frontier.values.max(-1) > jnp.maximum(best[:, -1], threshold)
        # Below the frontier no more tokens can be accepted than the frontier is worth.
        hopeful &= frontier.values.sum(-1) > gain * (1 + best[:, 1:].sum(-1))
        return (depth_ < depth) & (hopeful & ~frame.done).any()

    def deeper(carry):
        depth_, pool, frontier, held, distributions = carry
        first = (depth_ - 1) * width
        level = scorer.below(depth_, 2 + first, frontier.tokens, frontier.lineage, held)
        drawn = draw(level.logits, sampling, frame, depth_, children)
        distributions = jax.tree.map(
            lambda held, new: put(held, new, 1 + first), distributions, drawn.q
        )
        place = jnp.broadcast_to(2 + first + jnp.arange(width, dtype=jnp.int32), (batch, width))
        places = jax.vmap(lambda row, ids, place: row.at[ids].set(place))
        pool = pool._replace(places=places(pool.places, frontier.ids, place))
        at = 1 + children + first * children
        pool, frontier = spread(pool, level.lineage, drawn, frontier.ids, frontier.values, at)
        return depth_ + 1, pool, frontier, level.nodes, distributions

    carry = (jnp.int32(1), pool, frontier, level.nodes, distributions)
    if depth > 1:  # else there is no place to trace a level for
        carry = jax.lax.while_loop(going, deeper, carry)
    _, pool, _, held, distributions = carry

    def rows(array):
        return array[:, 1:].reshape(batch, -1, children)

    draft = _take(pool, held, distributions, nodes, depth, width, threshold)
    return draft, Offers(tokens=rows(pool.tokens), notes=tuple(map(rows, pool.notes)))


def _take(
    pool: _Pool,
    held: PyTree,
    distributions: Float[Array, "B Q V"] | None,
    nodes: int,
    depth: int,
    width: int,
    threshold: float,
) -> Draft:
    """The best slots as a tree, in the pool's order, which is breadth first."""
    best, ids = jax.lax.top_k(pool.slots, nodes + 1)
    # Slots that are not worth having go to the end, behind all that are.
    ids = jnp.sort(jnp.where(best > threshold, ids, pool.slots.shape[1]), axis=1)
    valid = ids < pool.slots.shape[1]

    def pick(array):
        return jnp.take_along_axis(array, ids, axis=1, mode="clip")

    # The place of each candidate among those taken: a parent is always taken before its child.
    taken = jax.vmap(lambda row, ids: row.at[ids].set(True, mode="drop"))
    taken = taken(jnp.zeros(pool.slots.shape, bool), ids)
    number = jnp.cumsum(taken, axis=1, dtype=jnp.int32) - 1
    above = pick(pool.parents)
    parents = jnp.take_along_axis(number, jnp.maximum(above, 0), axis=1)
    parents = jnp.where(valid, parents, 0).at[:, 0].set(NO_PARENT)
    places = jnp.where(valid, pick(pool.places), 0)
    tree = Tree(
        tokens=jnp.where(valid, pick(pool.tokens), 0),
        parents=parents,
        valid=valid,
        q=distributions,
        q_row=None if distributions is None else jnp.maximum(places - 1, 0),
        depth=min(depth, nodes),
        width=min(width, nodes),
        value=jnp.where(valid, jnp.minimum(pick(pool.slots), 1.0), 0.0),
    )
    return Draft(tree=tree, places=places, nodes=held)
