"""RSD-S (Jeon et al. 2024, section 3.2.2): stochastic beam search as a drafter."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jspec.base import NO_PARENT, PyTree, Tree
from jspec.drafters.draft_model.base import DraftModel
from jspec.drafters.growth.scorer import Draft, Scorer, inherited, stacked
from jspec.errors import InputError
from jspec.verify.proposals import Candidates, truncated


@dataclass(frozen=True)
class RSDS(DraftModel):
    """Keeps at each depth the W sequences of largest perturbed log-probability (Algorithms 8, 9).

    The perturbed values of a node's children are Gumbels whose maximum is the node's own (Kool et
    al. 2019), so that each level is a sample of W sequences without replacement. How many children
    a node has is random but does not depend on the last one's identity, which keeps the rejection
    exact. `scheme=jspec.schemes.RECURSIVE` is the published method.

    Args:
        beam: W, sequences kept at each depth.
        max_depth: L, levels.

    Raises:
        InputError: if either is below 1, or the beam is wider than the vocabulary.
    """

    beam: int = 4
    max_depth: int = 4

    def __post_init__(self):
        if self.max_depth < 1:
            raise InputError(f"max_depth is {self.max_depth}; draft at least 1 level")
        if not 1 <= self.beam <= self.model.vocab_size:
            raise InputError(
                f"the beam width is {self.beam}; keep 1 .. {self.model.vocab_size} sequences, the "
                "vocabulary"
            )

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def scored(self) -> int:
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
            best, place = jax.lax.top_k(given.reshape(batch, -1), width)

            def pick(values):
                return jnp.take_along_axis(values.reshape(batch, -1), place, axis=1)

            return (pick(longer), best), pick(drawn.tokens), place // width

        level = scorer.root()
        zeros = jnp.zeros((batch, 1), jnp.float32)
        drawn = draw(level.logits, 0)
        beam, tokens, _ = select(drawn, zeros, zeros)
        lineage = jnp.repeat(level.lineage, width, axis=1)

        def deeper(carry, depth):
            beam, tokens, lineage, nodes = carry
            level = scorer.below(depth, 2 + (depth - 1) * width, tokens, lineage, nodes)
            drawn = draw(level.logits, depth)
            beam, tokens, parents = select(drawn, *beam)
            lineage = inherited(level.lineage, parents)
            return (beam, tokens, lineage, level.nodes), (tokens, parents, beam[1], drawn.q)

        (*_, nodes), (below, parents, values, distributions) = jax.lax.scan(
            deeper, (beam, tokens, lineage, level.nodes), jnp.arange(1, self.max_depth)
        )

        root = frame.root[:, None]
        above = 1 + jnp.arange(self.max_depth - 1)[:, None, None] * width + parents
        ids = jnp.arange(1 + width * self.max_depth, dtype=jnp.int32)
        rows = jnp.broadcast_to(jnp.where(ids <= self.scored, ids, 0), (batch, len(ids)))
        tree = Tree(
            tokens=jnp.concatenate([root, stacked(tokens, below)], axis=1),
            parents=jnp.concatenate(
                [jnp.full_like(root, NO_PARENT), stacked(jnp.zeros_like(tokens), above)], axis=1
            ),
            valid=jnp.concatenate(
                [jnp.ones_like(root, bool), stacked(beam[1], values) > -jnp.inf], axis=1
            ),
            q=jax.tree.map(stacked, drawn.q, distributions),
            q_row=None if drawn.q is None else rows,
            depth=self.max_depth,
            width=width,
        )
        return Draft(tree=tree, places=rows + 1, nodes=nodes), memory
