"""Trees whose shape is known before anything is drawn: a template, filled level by level."""

import itertools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec.base import Sampling, Tree
from jspec.drafters.growth.scorer import Draft, LevelOutput, Scorer, stacked
from jspec.errors import InputError
from jspec.tree import Template
from jspec.verify.proposals import Candidates, ChildSampler

_MOST = 4096
"""Nodes of a branching tree; far more than any device verifies for nothing."""


def check_template(template: Template, vocabulary: int) -> None:
    """Raises InputError unless `fill` can fill it."""
    if not isinstance(template, Template):
        raise InputError(f"the draft's tree is {template!r:.80}; pass a jspec.Template")
    if not template.paths:
        raise InputError("the draft's tree has no node below the root; draft at least 1 token")
    if template.max_rank >= vocabulary:
        raise InputError(
            f"the draft's tree gives a node {template.max_rank + 1} children and the vocabulary "
            f"has {vocabulary} tokens; draft fewer"
        )


def scored(template: Template) -> int:
    """Places that `fill` scores below the root."""
    return (template.depth - 1) * _width(template)


def check_branching(factors: Sequence[int]) -> None:
    """Raises InputError unless these are children per level, in a tuple: a drafter is hashed."""
    if (
        not isinstance(factors, tuple)
        or not factors
        or not all(isinstance(factor, int) and factor >= 1 for factor in factors)
    ):
        raise InputError(
            f"branching is {factors!r}; give each level at least 1 child a node, in a tuple such "
            "as (3, 2, 1)"
        )
    nodes = sum(itertools.accumulate(factors, operator.mul))
    if nodes > _MOST:
        raise InputError(
            f"branching is {factors!r:.80}, which makes {nodes} nodes; draft at most {_MOST}"
        )


def fill(
    template: Template, scorer: Scorer, draw: ChildSampler, sampling: Sampling | None
) -> Draft:
    """Draws a template's tokens, level by level: the child of rank r is its parent's r-th draw.

    The draft scores the nodes that have children: the root alone, then M a level. Levels with fewer
    repeat one, so that all levels are one compiled program.
    """
    parents, ranks, frame = template.parents, template.ranks, scorer.frame
    depth, inner, width = template.depth, _inner(template), _width(template)
    column = np.zeros(template.num_nodes, np.int32)  # of a node with children, in its level
    for nodes in inner:
        column[nodes] = np.arange(len(nodes))
    # The scored nodes of each level, and a last one that nothing is scored of.
    padded = [np.pad(nodes, (0, width - len(nodes)), mode="edge") for nodes in inner]
    padded = np.array([*padded, np.zeros(width)], np.int32)

    def chosen(
        level: LevelOutput, drawn: Candidates, found: Bool[Array, "B M K"], nodes: Int[Array, " C"]
    ):
        """What the C nodes below start from: tokens, whether they are there, and their lineage."""
        above, rank = jnp.asarray(column[parents])[nodes], jnp.asarray(ranks)[nodes]
        lineage = jax.tree.map(lambda array: array[:, above], level.lineage)
        return drawn.tokens[:, above, rank], found[:, above, rank], lineage

    level = scorer.root()
    children = int(ranks[template.levels[0]].max()) + 1
    first = draw(level.logits, sampling, frame, 0, children)
    present = first.scores > -jnp.inf
    start = (*chosen(level, first, present, jnp.asarray(padded[0])), level.nodes)
    lower = ranks[parents > 0]
    children = int(lower.max()) + 1 if lower.size else 1

    def deeper(carry, nodes):
        tokens, there, lineage, held = carry
        depth, after = nodes
        level = scorer.below(depth, 2 + (depth - 1) * width, tokens, lineage, held)
        drawn = draw(level.logits, sampling, frame, depth, children)
        found = there[..., None] & (drawn.scores > -jnp.inf)
        carry = (*chosen(level, drawn, found, after), level.nodes)
        return carry, (drawn.tokens, found, drawn.q)

    (*_, held), (tokens, found, distributions) = jax.lax.scan(
        deeper, start, (jnp.arange(1, depth), jnp.asarray(padded[1:]))
    )

    # Each node, from the draws of the level above it.
    levels = [first.tokens[:, 0, ranks[template.levels[0]]]]
    valid = [present[:, 0, ranks[template.levels[0]]]]
    for above, below in enumerate(template.levels[1:]):
        at = column[parents[below]], ranks[below]
        levels.append(tokens[above][:, *at])
        valid.append(found[above][:, *at])
    root = frame.root[:, None]
    tokens = jnp.concatenate([root, *levels], axis=1)
    valid = jnp.concatenate([jnp.ones_like(root, bool), *valid], axis=1)

    row = np.zeros(template.num_nodes, np.int32)  # of a node with children, among all distributions
    for depth_, nodes in enumerate(inner):
        row[nodes] = 1 + depth_ * width + column[nodes]
    rows: Int[Array, "B N"] = jnp.broadcast_to(jnp.asarray(row), tokens.shape)
    q = jax.tree.map(stacked, first.q, distributions)
    tree = Tree(
        tokens=jnp.where(valid, tokens, 0),
        parents=jnp.broadcast_to(jnp.asarray(parents), tokens.shape),
        valid=valid,
        q=q,
        q_row=None if q is None else rows,
        depth=depth,
        width=template.width,
    )
    return Draft(tree=tree, places=rows + 1, nodes=held)


def _inner(template: Template) -> list[np.ndarray]:
    """The nodes with children, of each level below the root but the last."""
    return [np.intersect1d(level, template.parents) for level in template.levels[:-1]]


def _width(template: Template) -> int:
    """M, most nodes of a level below the root that have children."""
    return max(map(len, _inner(template)), default=1)
