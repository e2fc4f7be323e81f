"""Trees that grow where a token is worth most, from one forward of the draft model per level."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec import schemes
from jspec import tree as trees
from jspec.base import NO_PARENT, Feedback, PyTree, Sampling, Tree
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.scoring import Draft, Scorer, inherited
from jspec.draws import Draw, Drawn


class Worth(NamedTuple):
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


Appraisal = Callable[[Drawn, Float[Array, "B M"]], Worth]
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


class Growth(NamedTuple):
    """Memory between draft and update: the method's own, and all that was drawn."""

    memory: PyTree
    offers: Offers
    places: Int[Array, "B N"]

    def visited(self, feedback: Feedback) -> tuple[Offers, Bool[Array, "B P"]]:
        """The offers at each node of the walked path, and whether the node was scored here.

        In a tree that was united with another drafter's, nodes have other numbers: none counts.
        """
        places = jnp.take_along_axis(self.places, feedback.verdict.path, axis=1)
        row = jnp.maximum(places - 1, 0)[..., None]

        def at(array):
            return jnp.take_along_axis(array, row, axis=1)

        offers = jax.tree.map(at, self.offers)
        return offers, (places > 0) & (not feedback.tree.joint)


@dataclass(frozen=True)
class BestFirst(DraftModel):
    """A draft model whose tree takes the shape that a method's `worth` gives it.

    Args:
        nodes: the budget, without the root.
        max_depth: most levels.
        beam: nodes scored per level and children drawn per node. The tree is the one-by-one
            heap's unless that wants more of either.
        min_gain: a level that can add no more than this share of the tokens that are expected is
            not grown; 0 grows all that the heap would. It saves forwards of the draft model, and
            only the coupled scheme is lossless with it.
        order: of the nodes, such as `jspec.tree.depth_first`; None is breadth first, as they grow.

    Raises:
        ValueError: if an argument is out of range.
    """

    nodes: int = 16
    max_depth: int = 8
    beam: int = 8
    min_gain: float = 0.0
    order: Callable[[Tree], Int[Array, "B N"]] | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check(self.nodes, self.max_depth, self.beam, self.min_gain, self.model.vocab_size)
        if self.min_gain > 0 and self.scheme != schemes.COUPLED:
            # The last drawn tokens decide whether a level is grown, and that decides whether their
            # own slots are among the best.
            raise ValueError(
                f"min_gain is {self.min_gain} and the scheme is not the coupled one, whose rule "
                "alone allows it; choose min_gain=0"
            )
        if self.scheme == schemes.K_SEQ:
            raise ValueError(
                "K-SEQ accepts by how many children there are, and here that depends on their "
                "tokens; take jspec.schemes.MULTI_ROUND, or draft with SpecTr or SpecInfer"
            )

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def scored(self) -> int:
        return (self.max_depth - 1) * self.beam

    @property
    def least(self) -> float:
        """Slots that are worth no more are not drawn."""
        return 0.0

    @abstractmethod
    def appraisal(self, memory: PyTree) -> Appraisal:
        """How children are valued, by what was learnt."""

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, Growth]:
        draft, offers = grow(
            scorer,
            self.scheme.draw,
            self.sampling,
            self.appraisal(memory),
            nodes=self.nodes,
            depth=self.max_depth,
            width=self.beam,
            threshold=self.least,
            gain=self.min_gain,
        )
        if self.order is not None:
            order = self.order(draft.tree)
            draft = draft._replace(
                tree=trees.reordered(draft.tree, order),
                places=jnp.take_along_axis(draft.places, order, axis=1),
            )
        return draft, Growth(memory, offers, draft.places)

    def learn(self, memory: Growth, feedback: Feedback) -> PyTree:
        del feedback
        return memory.memory


def check(nodes: int, depth: int, beam: int, gain: float, vocabulary: int) -> None:
    """Raises ValueError unless `grow` can make such trees."""
    if depth < 1:
        raise ValueError(f"max_depth is {depth}; draft at least 1 level")
    if not 1 <= beam <= vocabulary:
        raise ValueError(
            f"the beam is {beam} wide; score 1 .. {vocabulary} nodes a level, the vocabulary"
        )
    if not 0 <= gain < 1:
        raise ValueError(f"min_gain is {gain}; choose 0 <= min_gain < 1")
    most = beam + (depth - 1) * beam * beam
    if not 1 <= nodes <= most:
        raise ValueError(
            f"the budget is {nodes} nodes; a beam of {beam} over {depth} levels offers 1 .. {most}"
        )


def grow(
    scorer: Scorer,
    draw: Draw,
    sampling: Sampling | None,
    appraise: Appraisal,
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
    round = scorer.round
    batch, children = len(round.root), width
    size = 1 + children + (depth - 1) * width * children  # of the pool, the root included

    def put(array: Array, new: Array, at: Int[Array, ""] | int) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(array, new.astype(array.dtype), at, axis=1)

    def spread(pool: _Pool, lineage, drawn: Drawn, ids, values, at) -> tuple[_Pool, _Frontier]:
        """The children of M nodes put into the pool, and the best of them as the next frontier."""
        slots, below, notes = appraise(drawn, values)
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
    drawn = draw(level.logits, sampling, round, 0, children)
    one = jnp.ones((batch, 1), jnp.float32)
    notes = jax.eval_shape(appraise, drawn, one).notes
    empty = jnp.zeros((batch, size), jnp.int32)
    pool, frontier = spread(
        _Pool(
            tokens=empty.at[:, 0].set(round.root),
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
    laws = None
    if drawn.q is not None:
        laws = jnp.zeros((batch, 1 + (depth - 1) * width, drawn.q.shape[-1]), drawn.q.dtype)
        laws = put(laws, drawn.q, 0)

    def going(carry):
        depth_, pool, frontier, *_ = carry
        best, _ = jax.lax.top_k(pool.slots, nodes + 1)
        hopeful = frontier.values.max(-1) > jnp.maximum(best[:, -1], threshold)
        # Below the frontier no more tokens can be accepted than the frontier is worth.
        hopeful &= frontier.values.sum(-1) > gain * (1 + best[:, 1:].sum(-1))
        return (depth_ < depth) & (hopeful & ~round.done).any()

    def deeper(carry):
        depth_, pool, frontier, held, laws = carry
        first = (depth_ - 1) * width
        level = scorer.below(depth_, 2 + first, frontier.tokens, frontier.lineage, held)
        drawn = draw(level.logits, sampling, round, depth_, children)
        laws = jax.tree.map(lambda held, new: put(held, new, 1 + first), laws, drawn.q)
        place = jnp.broadcast_to(2 + first + jnp.arange(width, dtype=jnp.int32), (batch, width))
        places = jax.vmap(lambda row, ids, place: row.at[ids].set(place))
        pool = pool._replace(places=places(pool.places, frontier.ids, place))
        at = 1 + children + first * children
        pool, frontier = spread(pool, level.lineage, drawn, frontier.ids, frontier.values, at)
        return depth_ + 1, pool, frontier, level.nodes, laws

    carry = (jnp.int32(1), pool, frontier, level.nodes, laws)
    if depth > 1:  # else there is no place to trace a level for
        carry = jax.lax.while_loop(going, deeper, carry)
    _, pool, _, held, laws = carry

    def rows(array):
        return array[:, 1:].reshape(batch, -1, children)

    draft = _take(pool, held, laws, nodes, depth, width, threshold)
    return draft, Offers(tokens=rows(pool.tokens), notes=tuple(map(rows, pool.notes)))


def _take(
    pool: _Pool,
    held: PyTree,
    laws: Float[Array, "B Q V"] | None,
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
        q=laws,
        q_row=None if laws is None else jnp.maximum(places - 1, 0),
        depth=min(depth, nodes),
        width=min(width, nodes),
        worth=jnp.where(valid, jnp.minimum(pick(pool.slots), 1.0), 0.0),
    )
    return Draft(tree=tree, places=places, nodes=held)
