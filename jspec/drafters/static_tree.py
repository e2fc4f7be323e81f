"""Trees whose shape is known before anything is drawn."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jspec.base import PyTree, Sampling, Tree
from jspec.drafters.draft_model import Draft, DraftModel, Scorer
from jspec.draws import Draw
from jspec.tree import Template


@dataclass(frozen=True)
class StaticTree(DraftModel):
    """A draft model whose tokens fill a template."""

    def __post_init__(self):
        template = self.template
        if not template.paths:
            raise ValueError("the draft's tree has no node below the root; draft at least 1 token")
        if template.max_rank >= self.model.vocab_size:
            raise ValueError(
                f"the draft's tree gives a node {template.max_rank + 1} children and the vocabulary "
                f"has {self.model.vocab_size} tokens; draft fewer"
            )

    @property
    @abstractmethod
    def template(self) -> Template:
        """The shape of every tree."""

    @property
    def depth(self) -> int:
        return self.template.depth

    @property
    def scored(self) -> int:
        return len(_inner(self.template)) - 1

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        return fill(self.template, scorer, self.scheme.draw, self.sampling), memory


def check_branching(factors: Sequence[int]) -> None:
    """Raises ValueError unless these are children per level."""
    if not factors or min(factors) < 1:
        raise ValueError(
            f"branching is {tuple(factors)}; give each level at least 1 child a node, such as "
            "(3, 2, 1)"
        )


def _inner(template: Template) -> np.ndarray:
    """Nodes that have children: the draft model scores no leaf."""
    return np.unique(template.parents[1:])


def fill(template: Template, scorer: Scorer, draw: Draw, sampling: Sampling | None) -> Draft:
    """Draws a template's tokens, level by level: the child of rank r is its parent's r-th draw."""
    inner = _inner(template)
    row = np.zeros(template.num_nodes, np.int32)  # of an inner node among the inner nodes
    row[inner] = np.arange(len(inner))

    round = scorer.round
    tokens, valid = round.root[:, None], jnp.ones((len(round.root), 1), bool)
    level, at, laws = scorer.root(), inner[:1], []
    for depth, below in enumerate(template.levels):
        ranks = template.ranks[below]
        drawn = draw(level.logits, sampling, round, depth, int(ranks.max()) + 1)
        laws.append(drawn.q)
        # Which of the nodes just scored each child hangs from.
        column = row[template.parents[below]] - row[at[0]]
        tokens = jnp.concatenate([tokens, drawn.tokens[:, column, ranks]], axis=1)
        there = drawn.scores[:, column, ranks] > -jnp.inf
        above = valid[:, template.parents[below]]
        valid = jnp.concatenate([valid, there & above], axis=1)
        last, at = at, np.intersect1d(below, inner)
        if at.size:
            parents = row[template.parents[at]] - row[last[0]]
            level = scorer.below(
                depth + 1, int(row[at[0]]) + 1, tokens[:, at], level.seen[:, parents], level.nodes
            )
    shape = tokens.shape
    rows: Int[Array, "B N"] = jnp.broadcast_to(jnp.asarray(row), shape)
    honest = laws[0] is not None
    tree = Tree(
        tokens=jnp.where(valid, tokens, 0),
        parents=jnp.broadcast_to(jnp.asarray(template.parents), shape),
        valid=valid,
        q=jnp.concatenate(laws, axis=1) if honest else None,
        q_row=rows if honest else None,
        depth=template.depth,
        width=template.width,
    )
    return Draft(tree=tree, places=rows + 1, nodes=level.nodes)
