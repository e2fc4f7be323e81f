"""Trees whose shape is known before anything is drawn: a template, filled level by level.

W: nodes that are scored in every level below the root. L: those levels.
"""

import itertools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.drafters.growth.scorer import Draft, LevelOutput, Scorer, concat_levels
from jspec.tree import Template
from jspec.types import Sampling, Tree
from jspec.verify.proposals import ChildDraws, ChildSampler

_MOST_NODES = 4096
"""The most nodes of a branching tree: far more than any device verifies in one token's time."""


def check_template(template: Any, vocab_size: int) -> None:
    """Raises InputError unless `fill` can fill it."""
    if not isinstance(template, Template):
        raise InputError(f"the draft's tree is {template!r:.80}; pass a jspec.Template")
    if not template.paths:
        raise InputError("the draft's tree has no node below the root; draft at least 1 token")
    if template.max_rank >= vocab_size:
        raise InputError(
            f"the draft's tree gives a node {template.max_rank + 1} children and the vocabulary "
            f"has {vocab_size} tokens; draft fewer"
        )


def check_branching(factors: Any) -> None:
    """Raises InputError unless these are children per level, in a tuple: a drafter is hashed."""
    if (
        not isinstance(factors, tuple)
        or not factors
        or not all(type(factor) is int and factor >= 1 for factor in factors)
    ):
        raise InputError(
            f"branching is {factors!r:.80}; give each level at least 1 child a node, in a tuple of "
            "integers such as (3, 2, 1)"
        )
    nodes = sum(itertools.accumulate(factors, operator.mul))
    if nodes > _MOST_NODES:
        raise InputError(
            f"branching is {factors!r:.80}, which makes {nodes} nodes; draft at most {_MOST_NODES}"
        )


def num_scored(template: Template) -> int:
    """Returns the number of nodes below the root that `fill` scores, level padding included."""
    return (template.depth - 1) * _width(template)


def fill(
    template: Template, scorer: Scorer, draw: ChildSampler, sampling: Sampling | None
) -> Draft:
    """Draws a template's tokens level by level; the child of rank r is its parent's r-th draw."""
    frame, layout = scorer.frame, _layout(template)
    first_children, later_children = _num_children(template)

    def hand_on(level: LevelOutput, drawn: ChildDraws, valid: Bool[Array, "B W K"], nodes):
        """Returns the input for scoring `nodes`, children of this level."""
        above, rank = layout.column_of_parent[nodes], jnp.asarray(template.ranks)[nodes]
        inherited = jax.tree.map(lambda array: array[:, above], level.inherited)
        return drawn.tokens[:, above, rank], valid[:, above, rank], inherited, level.kv

    root_level = scorer.root()
    first = draw(root_level.logits, sampling, frame, 0, first_children)
    first_valid = first.scores > -jnp.inf

    def score_level(carry, level):
        tokens, parent_valid, inherited, kv = carry
        depth, nodes_below = level
        kv_index = 2 + (depth - 1) * layout.width
        scored = scorer.below(depth, kv_index, tokens, inherited, kv)
        drawn = draw(scored.logits, sampling, frame, depth, later_children)
        valid = parent_valid[..., None] & (drawn.scores > -jnp.inf)
        return hand_on(scored, drawn, valid, nodes_below), (drawn.tokens, valid, drawn.q)

    (*_, kv), (tokens, valid, q) = jax.lax.scan(
        score_level,
        vary(hand_on(root_level, first, first_valid, layout.scored[0]), frame),
        (jnp.arange(1, template.depth), layout.scored[1:]),
    )
    nodes_tokens = _by_node(template, layout, frame.root[:, None], first.tokens, tokens)
    root_valid = jnp.ones_like(frame.root[:, None], bool)
    nodes_valid = _by_node(template, layout, root_valid, first_valid, valid)
    q_row = jnp.broadcast_to(layout.q_row, nodes_tokens.shape)
    distributions = jax.tree.map(concat_levels, first.q, q)
    tree = Tree(
        tokens=jnp.where(nodes_valid, nodes_tokens, 0),
        parents=jnp.broadcast_to(jnp.asarray(template.parents), nodes_tokens.shape),
        valid=nodes_valid,
        q=distributions,
        q_row=None if distributions is None else q_row,
        depth=template.depth,
        width=template.width,
    )
    return Draft(tree=tree, kv_index=q_row + 1, kv=kv)


class _Layout(NamedTuple):
    """The places of a template's scored nodes while it is filled."""

    width: int
    """The number W of scored nodes in every level below the root."""
    column: Int[np.ndarray, " N"]
    """The place of each node with children in its level; 0 for the others."""
    column_of_parent: Int[Array, " N"]
    q_row: Int[Array, " N"]
    """The place of each node with children among the scored, the root first; 0 for the others."""
    scored: Int[Array, "L W"]
    """The nodes to score in each level below the root, and a last level that is never scored."""


def _layout(template: Template) -> _Layout:
    inner, width = _inner(template), _width(template)
    column = np.zeros(template.num_nodes, np.int32)
    q_row = np.zeros(template.num_nodes, np.int32)
    for level, nodes in enumerate(inner):
        column[nodes] = np.arange(len(nodes))
        q_row[nodes] = 1 + level * width + column[nodes]
    scored = [np.pad(nodes, (0, width - len(nodes)), mode="edge") for nodes in inner]
    return _Layout(
        width=width,
        column=column,
        column_of_parent=jnp.asarray(column[template.parents]),
        q_row=jnp.asarray(q_row),
        scored=jnp.asarray(np.array([*scored, np.zeros(width)], np.int32)),
    )


def _num_children(template: Template) -> tuple[int, int]:
    """Returns the number of draws at the root, and at each scored node below it."""
    ranks, lower = template.ranks, template.ranks[template.parents > 0]
    return int(ranks[template.levels[0]].max()) + 1, int(lower.max(initial=0)) + 1


def _by_node(template: Template, layout: _Layout, root: Array, first: Array, below: Array) -> Array:
    """Returns [B, N]: the root's entry, and each node's from the level above."""
    levels = [root, first[:, 0, template.ranks[template.levels[0]]]]
    for level, nodes in enumerate(template.levels[1:]):
        index = layout.column[template.parents[nodes]], template.ranks[nodes]
        levels.append(below[level][:, *index])
    return jnp.concatenate(levels, axis=1)


def _inner(template: Template) -> list[Int[np.ndarray, " _"]]:
    """Returns the nodes with children in each level below the root; the last level has none."""
    return [np.intersect1d(level, template.parents) for level in template.levels[:-1]]


def _width(template: Template) -> int:
    """Returns the largest number W of nodes with children in a level below the root."""
    return max(map(len, _inner(template)), default=1)
