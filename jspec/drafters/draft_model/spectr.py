"""SpecTr (Sun et al. 2023): several independent chains from one draft model."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.arguments import check_integer
from jspec.base import NO_PARENT, PyTree, Tree
from jspec.drafters.draft_model.base import DraftModel
from jspec.drafters.growth.scorer import Draft, Scorer, concat_levels
from jspec.verify.schemes import K_SEQ


@dataclass(frozen=True)
class SpecTr(DraftModel):
    """SpecTr's independent chains; verified by the coupled scheme unless asked.

    It drafts K chains of L tokens (Sun et al. 2023); where chains begin alike, what follows hangs
    from the first of them. The paper verifies by K-SEQ, which `SpecTr.published(model)` does: its
    rule counts the chains that still agree with what was accepted, so equal tokens are kept. The
    default is jspec's coupled scheme, whose tokens are those of plain decoding with the same key;
    chains differ in their first token alone then.

    Args:
        model: the draft model.
        num_chains: K.
        max_depth: L.
        scheme: how tokens are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: those of the target.

    Raises:
        InputError: if an argument is out of range, such as more chains than there are tokens.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.SpecTr(draft, num_chains=8, max_depth=4).depth
        4
        >>> jspec.SpecTr.published(draft, num_chains=8).scheme == jspec.schemes.K_SEQ
        True
    """

    num_chains: int = 4
    max_depth: int = 4

    paper_settings: ClassVar = {"scheme": K_SEQ}

    def __post_init__(self):
        super().__post_init__()
        check_integer("max_depth", self.max_depth, 1, None)
        check_integer("num_chains", self.num_chains, 1, self.model.vocab_size, "the vocabulary")

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def num_scored(self) -> int:
        return self.num_chains * (self.max_depth - 1)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        frame, chains = scorer.frame, self.num_chains
        level = scorer.root()
        drawn = self.scheme.draw(level.logits, self.sampling, frame, 0, chains)
        first = drawn.tokens[:, 0]
        found = drawn.scores[:, 0] > -jnp.inf
        alike = _alike(first, jnp.ones((len(first), chains, chains), bool))
        inherited = jnp.repeat(level.inherited, chains, axis=1)

        def deeper(carry, depth):
            tokens, found, alike, inherited, kv = carry
            before = 1 + (depth - 1) * chains  # ids of the level above start here
            level = scorer.below(depth, 1 + before, tokens, inherited, kv)
            drawn = self.scheme.draw(level.logits, self.sampling, frame, depth, 1)
            tokens = drawn.tokens[:, :, 0]
            found = found & (drawn.scores[:, :, 0] > -jnp.inf)
            parents = before + alike.argmax(-1).astype(jnp.int32)
            carry = tokens, found, _alike(tokens, alike), level.inherited, level.kv
            return carry, (tokens, found, parents, drawn.q)

        start = first, found, alike, inherited, level.kv
        (*_, kv), (tokens, present, parents, distributions) = jax.lax.scan(
            deeper, start, jnp.arange(1, self.max_depth)
        )
        ids = jnp.arange(1 + chains * self.max_depth, dtype=jnp.int32)
        rows = jnp.broadcast_to(jnp.where(ids <= self.num_scored, ids, 0), (len(first), len(ids)))
        root = frame.root[:, None]
        tree = Tree(
            tokens=jnp.concatenate([root, concat_levels(first, tokens)], axis=1),
            parents=jnp.concatenate(
                [jnp.full_like(root, NO_PARENT), concat_levels(jnp.zeros_like(first), parents)], axis=1
            ),
            valid=jnp.concatenate([jnp.ones_like(root, bool), concat_levels(found, present)], axis=1),
            q=jax.tree.map(concat_levels, drawn.q, distributions),
            q_row=None if drawn.q is None else rows,
            depth=self.max_depth,
            width=chains,
        )
        return Draft(tree=tree, kv_index=rows + 1, kv=kv), memory


def _alike(tokens: Int[Array, "B K"], before: Bool[Array, "B K K"]) -> Bool[Array, "B K K"]:
    """Which chains are the same so far, given which were before their last token."""
    return before & (tokens[:, :, None] == tokens[:, None, :])
