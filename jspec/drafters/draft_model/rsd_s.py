"""RSD-S (Jeon et al. 2024, section 3.2.2): stochastic beam search as a drafter."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jspec.arguments import check_integer
from jspec.base import NO_PARENT, PyTree, Tree
from jspec.drafters.draft_model.base import DraftModel
from jspec.drafters.growth.scorer import Draft, Scorer, concat_levels, inherit
from jspec.verify.proposals import Candidates, truncated
from jspec.verify.schemes import RECURSIVE


@dataclass(frozen=True)
class RSDS(DraftModel):
    """RSD-S, a tree by stochastic beam search; verified by the coupled scheme unless asked.

    It keeps at each depth the W sequences of largest perturbed log-probability (Jeon et al. 2024,
    Algorithms 8 and 9). The perturbed values of a node's children are Gumbels whose maximum is the
    node's own (Kool et al. 2019), so each level is a sample of W sequences without replacement. How
    many children a node has is random but does not depend on which token the last one is, which
    keeps the rejection exact. The paper verifies by recursive rejection, which
    `RSDS.published(model)` does. The default is jspec's coupled scheme, whose tokens are those of
    plain decoding with the same key.

    Args:
        model: the draft model.
        beam: W, sequences kept at each depth.
        max_depth: L, levels.
        scheme: how children are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: those of the target.

    Raises:
        InputError: if an argument is out of range, such as a beam wider than the vocabulary.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.RSDS(draft, beam=4, max_depth=3).depth
        3
        >>> jspec.RSDS.published(draft).scheme == jspec.schemes.RECURSIVE
        True
    """

    beam: int = 4
    max_depth: int = 4

    paper_settings: ClassVar = {"scheme": RECURSIVE}

    def __post_init__(self):
        super().__post_init__()
        check_integer("max_depth", self.max_depth, 1, None)
        check_integer("beam", self.beam, 1, self.model.vocab_size, "the vocabulary")

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def num_scored(self) -> int:
        return self.beam * (self.max_depth - 1)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        frame, width = scorer.frame, self.beam
        batch = len(frame.root)

        def draw(logits, level):
            return self.scheme.draw(logits, self.sampling, frame, level, width)

        def select(drawn: Candidates, likelihood, perturbed):
            """The best W of all children: (beam, tokens, parents), largest first."""
            # [B, M, K] log-probabilities of the sequences, free Gumbels, and Gumbels given the
            # parent's. A node's first child has its largest value.
            longer = likelihood[..., None] + jnp.log(drawn.chances)
            free = likelihood[..., None] + drawn.scores
            free = jnp.where(jnp.isfinite(perturbed)[..., None], free, -jnp.inf)
            given = truncated(free, free[..., :1], perturbed[..., None])
            best, chosen = jax.lax.top_k(given.reshape(batch, -1), width)

            def pick(values):
                return jnp.take_along_axis(values.reshape(batch, -1), chosen, axis=1)

            return (pick(longer), best), pick(drawn.tokens), chosen // width

        level = scorer.root()
        zeros = jnp.zeros((batch, 1), jnp.float32)
        drawn = draw(level.logits, 0)
        beam, tokens, _ = select(drawn, zeros, zeros)
        inherited = jnp.repeat(level.inherited, width, axis=1)

        def deeper(carry, depth):
            beam, tokens, inherited, kv = carry
            level = scorer.below(depth, 2 + (depth - 1) * width, tokens, inherited, kv)
            drawn = draw(level.logits, depth)
            beam, tokens, parents = select(drawn, *beam)
            inherited = inherit(level.inherited, parents)
            return (beam, tokens, inherited, level.kv), (tokens, parents, beam[1], drawn.q)

        (*_, kv), (below, parents, values, distributions) = jax.lax.scan(
            deeper, (beam, tokens, inherited, level.kv), jnp.arange(1, self.max_depth)
        )

        root = frame.root[:, None]
        above = 1 + jnp.arange(self.max_depth - 1)[:, None, None] * width + parents
        ids = jnp.arange(1 + width * self.max_depth, dtype=jnp.int32)
        rows = jnp.broadcast_to(jnp.where(ids <= self.num_scored, ids, 0), (batch, len(ids)))
        tree = Tree(
            tokens=jnp.concatenate([root, concat_levels(tokens, below)], axis=1),
            parents=jnp.concatenate(
                [jnp.full_like(root, NO_PARENT), concat_levels(jnp.zeros_like(tokens), above)], axis=1
            ),
            valid=jnp.concatenate(
                [jnp.ones_like(root, bool), concat_levels(beam[1], values) > -jnp.inf], axis=1
            ),
            q=jax.tree.map(concat_levels, drawn.q, distributions),
            q_row=None if drawn.q is None else rows,
            depth=self.max_depth,
            width=width,
        )
        return Draft(tree=tree, kv_index=rows + 1, kv=kv), memory
