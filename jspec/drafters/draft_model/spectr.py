"""SpecTr (Sun et al. 2023): several independent chains from one draft model."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.base import NO_PARENT, PyTree, Tree
from jspec.drafters.draft_model.base import DraftModel
from jspec.drafters.growth.scorer import Draft, Scorer, stacked
from jspec.errors import InputError


@dataclass(frozen=True)
class SpecTr(DraftModel):
    """Drafts K chains of L tokens; where chains agree, what follows hangs from the first of them.

    `scheme=jspec.schemes.K_SEQ` is the published method: equal tokens are kept, since the rule
    counts the chains that still agree with what was accepted.

    Args:
        num_chains: K.
        max_depth: L.

    Raises:
        InputError: if either is below 1, or there are more chains than tokens.
    """

    num_chains: int = 4
    max_depth: int = 4

    def __post_init__(self):
        if self.max_depth < 1:
            raise InputError(f"max_depth is {self.max_depth}; draft at least 1 token")
        if not 1 <= self.num_chains <= self.model.vocab_size:
            raise InputError(
                f"num_chains is {self.num_chains}; draft 1 .. {self.model.vocab_size}, the "
                "vocabulary"
            )

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def scored(self) -> int:
        return self.num_chains * (self.max_depth - 1)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        frame, chains = scorer.frame, self.num_chains
        level = scorer.root()
        drawn = self.scheme.draw(level.logits, self.sampling, frame, 0, chains)
        first = drawn.tokens[:, 0]
        found = drawn.scores[:, 0] > -jnp.inf
        alike = _alike(first, jnp.ones((len(first), chains, chains), bool))
        lineage = jnp.repeat(level.lineage, chains, axis=1)

        def deeper(carry, depth):
            tokens, found, alike, lineage, nodes = carry
            before = 1 + (depth - 1) * chains  # ids of the level above start here
            level = scorer.below(depth, 1 + before, tokens, lineage, nodes)
            drawn = self.scheme.draw(level.logits, self.sampling, frame, depth, 1)
            tokens = drawn.tokens[:, :, 0]
            found = found & (drawn.scores[:, :, 0] > -jnp.inf)
            parents = before + alike.argmax(-1).astype(jnp.int32)
            carry = tokens, found, _alike(tokens, alike), level.lineage, level.nodes
            return carry, (tokens, found, parents, drawn.q)

        start = first, found, alike, lineage, level.nodes
        (*_, nodes), (tokens, present, parents, distributions) = jax.lax.scan(
            deeper, start, jnp.arange(1, self.max_depth)
        )
        ids = jnp.arange(1 + chains * self.max_depth, dtype=jnp.int32)
        rows = jnp.broadcast_to(jnp.where(ids <= self.scored, ids, 0), (len(first), len(ids)))
        root = frame.root[:, None]
        tree = Tree(
            tokens=jnp.concatenate([root, stacked(first, tokens)], axis=1),
            parents=jnp.concatenate(
                [jnp.full_like(root, NO_PARENT), stacked(jnp.zeros_like(first), parents)], axis=1
            ),
            valid=jnp.concatenate([jnp.ones_like(root, bool), stacked(found, present)], axis=1),
            q=jax.tree.map(stacked, drawn.q, distributions),
            q_row=None if drawn.q is None else rows,
            depth=self.max_depth,
            width=chains,
        )
        return Draft(tree=tree, places=rows + 1, nodes=nodes), memory


def _alike(tokens: Int[Array, "B K"], before: Bool[Array, "B K K"]) -> Bool[Array, "B K K"]:
    """Which chains are the same so far, given which were before their last token."""
    return before & (tokens[:, :, None] == tokens[:, None, :])
