"""Fig. 3 (c) of Token Recycling (Luo et al. 2024): which of equal tokens' candidates is
kept.

Several nodes of a round may hold the same token, and each has candidates for its line of the
matrix. jspec keeps the last node's. The authors' own code lets parallel writes of CUDA settle it,
cell by cell ("Cur"), and the paper compares the first node's too.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Bool, Float, Int

import jspec
from jspec.arrays.top_k import top_k
from jspec.drafters.retrieval.adjacency_matrix import write_lines


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
