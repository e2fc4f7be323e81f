"""SpecTr (Sun et al. 2023): several independent chains from one draft model."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.base import NO_PARENT, PyTree, Tree
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.scoring import Draft, Scorer, stacked


@dataclass(frozen=True)
class SpecTr(DraftModel):
    """Drafts K chains of L tokens; where chains agree, what follows hangs from the first of them.

    `scheme=jspec.schemes.K_SEQ` is the published method: equal tokens are kept, since the rule
    counts the chains that still agree with what was accepted.

    Args:
        chains: K.
        length: L.

    Raises:
        ValueError: if either is below 1, or there are more chains than tokens.
    """

    chains: int = 4
    length: int = 4

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"length is {self.length}; draft at least 1 token")
        if not 1 <= self.chains <= self.model.vocab_size:
            raise ValueError(
                f"chains is {self.chains}; draft 1 .. {self.model.vocab_size}, the vocabulary"
            )

    @property
    def depth(self) -> int:
        return self.length

    @property
    def scored(self) -> int:
        return self.chains * (self.length - 1)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        round, chains = scorer.round, self.chains
        level = scorer.root()
        drawn = self.scheme.draw(level.logits, self.sampling, round, 0, chains)
        first = drawn.tokens[:, 0]
        found = drawn.scores[:, 0] > -jnp.inf
        alike = _alike(first, jnp.ones((len(first), chains, chains), bool))
        lineage = jnp.repeat(level.lineage, chains, axis=1)

        def deeper(carry, depth):
            tokens, found, alike, lineage, nodes = carry
            before = 1 + (depth - 1) * chains  # ids of the level above start here
            level = scorer.below(depth, 1 + before, tokens, lineage, nodes)
            drawn = self.scheme.draw(level.logits, self.sampling, round, depth, 1)
            tokens = drawn.tokens[:, :, 0]
            found = found & (drawn.scores[:, :, 0] > -jnp.inf)
            parents = before + alike.argmax(-1).astype(jnp.int32)
            carry = tokens, found, _alike(tokens, alike), level.lineage, level.nodes
            return carry, (tokens, found, parents, drawn.q)

        start = first, found, alike, lineage, level.nodes
        (*_, nodes), (tokens, present, parents, laws) = jax.lax.scan(
            deeper, start, jnp.arange(1, self.length)
        )
        ids = jnp.arange(1 + chains * self.length, dtype=jnp.int32)
        rows = jnp.broadcast_to(jnp.where(ids <= self.scored, ids, 0), (len(first), len(ids)))
        root = round.root[:, None]
        tree = Tree(
            tokens=jnp.concatenate([root, stacked(first, tokens)], axis=1),
            parents=jnp.concatenate(
                [jnp.full_like(root, NO_PARENT), stacked(jnp.zeros_like(first), parents)], axis=1
            ),
            valid=jnp.concatenate([jnp.ones_like(root, bool), stacked(found, present)], axis=1),
            q=jax.tree.map(stacked, drawn.q, laws),
            q_row=None if drawn.q is None else rows,
            depth=self.length,
            width=chains,
        )
        return Draft(tree=tree, places=rows + 1, nodes=nodes), memory


def _alike(tokens: Int[Array, "B K"], before: Bool[Array, "B K K"]) -> Bool[Array, "B K K"]:
    """Which chains are the same so far, given which were before their last token."""
    return before & (tokens[:, :, None] == tokens[:, None, :])
