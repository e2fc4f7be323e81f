"""Lyanna (Chen et al. 2026): hidden states first, tokens afterwards, and every draft counts."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.base import Feedback, Nodes, PyTree, Round, Tree
from jspec.drafters import best_first
from jspec.drafters.pairs import PairDrafter, PairState, check_sharpness
from jspec.drafters.resampling import FUSED, Resampling
from jspec.drafters.token_info import ChainScorer, token_info_tree


@dataclass(frozen=True)
class Lyanna(PairDrafter):
    """Drafts a chain of hidden states that does not depend on tokens, and a token-info tree of it.

    N states, one after another, without a token but the root (section 4.1); all their scores in one
    product with the target's head (4.2); the tree by the token info of each node (5.2). What
    verification leaves of the chain makes a second tree (5.3), united with the next fresh one
    (6.2).

    Args:
        head: see `jspec.models.lyanna.LyannaHead`.
        nodes: the budget B of the fresh tree, without the root. The paper verifies 12 tokens.
        max_depth: N, levels.
        branch: k, children of a node, and nodes of a level that get some.
        sharpness: see `jspec.drafters.pairs.share`; 1 is published.
        resampling: how the chain is used again: `Fused()`, the slower `Separate()`, or `Never()`.

    Raises:
        ValueError: if an argument is out of range.
    """

    nodes: int = 11
    max_depth: int = 3
    branch: int = 4
    resampling: Resampling = FUSED
    sharpness: float = 1.0

    def __post_init__(self):
        if not isinstance(self.resampling, Resampling):
            raise ValueError(
                f"resampling is {self.resampling!r:.80}; pass Fused(), Separate() or Never() of "
                "jspec.drafters.resampling"
            )
        check_sharpness(self.sharpness)
        best_first.check(self.nodes, self.max_depth, self.branch, 0.0, self.head.vocab_size)

    @property
    def depth(self) -> int:
        return self.max_depth

    def remember(self, batch: int) -> PyTree:
        return self.resampling.remember(batch, self.max_depth, self.head.vocab_size)

    def learn(self, memory: PyTree, feedback: Feedback) -> PyTree:
        return self.resampling.learn(memory, feedback)

    def propose(self, params: PyTree, state: PairState, round: Round) -> tuple[Tree, PyTree]:
        def grown(
            logits: Float[Array, "B N V"], first: Int[Array, " B"], depth: int, nodes: int
        ) -> Tree:
            scorer = ChainScorer(self.head, params, logits, first, round)
            most = self.branch + (depth - 1) * self.branch**2
            return token_info_tree(scorer, depth, self.branch, min(nodes, most), self.sharpness)

        def fresh(more: int) -> tuple[Tree, Float[Array, "B N V"]]:
            states = self.chain(params, state, round)
            logits = self.head.apply(params, states, method="logits")
            first = jnp.zeros_like(round.root)
            return grown(logits, first, self.max_depth, self.nodes + more), logits

        return self.resampling.trees(state.memory, fresh, grown, round.done)

    def chain(self, params: PyTree, state: PairState, round: Round) -> Float[Array, "B N E"]:
        """h_1 .. h_N; the first was predicted when the head read the last true pair."""
        states, nodes = [state.hidden], None
        for step in range(self.max_depth - 1):
            output = self.head.apply(
                params,
                states[-1][:, None],
                None,
                (round.positions + step)[:, None],
                jnp.ones((len(round.root), 1, step + 1), bool),
                state.cache,
                nodes,
            )
            assert output.hidden is not None, "a head predicts states"
            states.append(output.hidden[:, 0])
            new = Nodes(output.keys, output.values)
            nodes = new if nodes is None else nodes.beside(new)
        return jnp.stack(states, axis=1)
