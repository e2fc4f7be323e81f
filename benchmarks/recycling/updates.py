"""Other updates of Token Recycling's matrix (Luo et al. 2024): Fig. 3 (c), and the title.

Several nodes of a round may hold the same token, and each has candidates for its line of the
matrix. jspec keeps the last node's. The authors' own code lets parallel writes of CUDA settle it,
cell by cell ("Cur"), and the paper compares the first node's too.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

import jspec
from jspec.arrays.top_k import top_k
from jspec.drafters.retrieval.adjacency_matrix import write_lines
from jspec.drafters.retrieval.token_recycling import MatrixState
from jspec.drafters.wrapper import DrafterWrapper
from jspec.protocols import Drafter
from jspec.types import Feedback, PyTree


@dataclass(frozen=True)
class FirstWins(jspec.TokenRecycling):
    """The first of equal tokens writes its line."""

    def recycle(
        self,
        state: MatrixState,
        before: Int[Array, "B N"] | None,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> MatrixState:
        del before
        _, best = top_k(logits, self.k)
        lines = write_lines(state.lines, tokens[:, ::-1], live[:, ::-1], best[:, ::-1])
        return replace(state, lines=lines)


@dataclass(frozen=True)
class CellsMerge(jspec.TokenRecycling):
    """Any of equal tokens writes a cell of the line: another order of nodes for each rank.

    It stands in for writes in parallel, whose order nothing fixes; its time says nothing of theirs.
    """

    def recycle(
        self,
        state: MatrixState,
        before: Int[Array, "B N"] | None,
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> MatrixState:
        del before
        _, best = top_k(logits, self.k)
        random, lines = np.random.default_rng(0), state.lines
        for rank in range(self.k):
            order = random.permutation(tokens.shape[1])
            cells = write_lines(
                lines[..., rank : rank + 1],
                tokens[:, order],
                live[:, order],
                best[:, order, rank : rank + 1],
            )
            lines = lines.at[..., rank : rank + 1].set(cells)
        return replace(state, lines=lines)


@dataclass(frozen=True)
class AcceptedAlone(DrafterWrapper):
    """The outputs of rejected nodes, the trash of the paper's title, teach nothing."""

    drafter: Drafter

    def update(self, params: PyTree, state: PyTree, aux: PyTree, feedback: Feedback) -> PyTree:
        scored = feedback.scored
        path, tree = scored.verdict.path, scored.tree
        path = jnp.where(jnp.arange(path.shape[1]) < feedback.counts[:, None], path, -1)
        on_path = (path[:, :, None] == jnp.arange(tree.valid.shape[1])).any(1)
        left = replace(scored, tree=replace(tree, valid=tree.valid & on_path))
        return self.drafter.update(params, state, aux, replace(feedback, merged=left))
