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
from jspec.types import Feedback, PyTree


@dataclass(frozen=True)
class FirstWins(jspec.TokenRecycling):
    """The first of equal tokens writes its line."""

    def recycle(
        self,
        state: Int[Array, "R V k"],
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> Int[Array, "R V k"]:
        _, best = top_k(logits, self.k)
        return write_lines(state, tokens[:, ::-1], live[:, ::-1], best[:, ::-1])


@dataclass(frozen=True)
class CellsMerge(jspec.TokenRecycling):
    """Any of equal tokens writes a cell of the line: another order of nodes for each rank.

    It stands in for writes in parallel, whose order nothing fixes; its time says nothing of theirs.
    """

    def recycle(
        self,
        state: Int[Array, "R V k"],
        tokens: Int[Array, "B N"],
        logits: Float[Array, "B N V"],
        live: Bool[Array, "B N"],
    ) -> Int[Array, "R V k"]:
        _, best = top_k(logits, self.k)
        random = np.random.default_rng(0)
        for rank in range(self.k):
            order = random.permutation(tokens.shape[1])
            cells = write_lines(
                state[..., rank : rank + 1],
                tokens[:, order],
                live[:, order],
                best[:, order, rank : rank + 1],
            )
            state = state.at[..., rank : rank + 1].set(cells)
        return state


@dataclass(frozen=True)
class AcceptedAlone(jspec.TokenRecycling):
    """The outputs of rejected nodes, the trash of the paper's title, are not kept."""

    def update(
        self, params: PyTree, state: Int[Array, "R V k"], aux: None, feedback: Feedback
    ) -> Int[Array, "R V k"]:
        scored = feedback.scored
        path, tree = scored.verdict.path, scored.tree
        kept = jnp.where(jnp.arange(path.shape[1]) < feedback.counts[:, None], path, -1)
        on_path = (kept[:, :, None] == jnp.arange(tree.valid.shape[1])).any(1)
        left = replace(scored, tree=replace(tree, valid=tree.valid & on_path))
        return super().update(params, state, aux, replace(feedback, merged=left))
