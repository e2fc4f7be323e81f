"""RSD-S (Jeon et al. 2024, section 3.2.1): stochastic beam search as a drafter."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.kinds import COUNT
from jspec.arrays.top_k import largest
from jspec.drafters.draft_model.draft_model import DraftModel
from jspec.drafters.growth.even_levels import Level, join_levels
from jspec.drafters.growth.scorer import Draft, Scorer, inherit
from jspec.types import PyTree
from jspec.verify.proposals import ChildDraws, truncate
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
        sampling: the draft's own temperature and filters; None: the target's.

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

    _: KW_ONLY
    beam: Annotated[int, COUNT] = 4
    max_depth: Annotated[int, COUNT] = 4

    paper_settings: ClassVar = {"scheme": RECURSIVE}

    def __post_init__(self):
        super().__post_init__()
        check_integer("beam", self.beam, 1, self.model.vocab_size, "the vocabulary")

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def num_scored(self) -> int:
        return self.beam * (self.max_depth - 1)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        del memory
        frame, width = scorer.frame, self.beam

        def draw(logits, level):
            return self.scheme.draw(logits, self.sampling, frame, level, width)

        level = scorer.root()
        zeros = jnp.zeros((len(frame.root), 1), jnp.float32)
        drawn = draw(level.logits, 0)
        beam, parents = _select(drawn, _Beam(frame.root[:, None], zeros, zeros))
        first = Level(beam.tokens, parents, beam.perturbed > -jnp.inf, drawn.q)

        def deeper(carry, depth):
            beam, inherited, kv = carry
            kv_index = 2 + (depth - 1) * width
            level = scorer.below(depth, kv_index, beam.tokens, inherited, kv)
            drawn = draw(level.logits, depth)
            beam, parents = _select(drawn, beam)
            carry = beam, inherit(level.inherited, parents), level.kv
            return carry, Level(beam.tokens, parents, beam.perturbed > -jnp.inf, drawn.q)

        start = beam, inherit(level.inherited, parents), level.kv
        (*_, kv), below = jax.lax.scan(deeper, start, jnp.arange(1, self.max_depth))
        return join_levels(frame.root, first, below, kv), ()


class _Beam(NamedTuple):
    """The W sequences of a level."""

    tokens: Int[Array, "B W"]
    """The last token of each sequence."""
    log_probs: Float[Array, "B W"]
    perturbed: Float[Array, "B W"]
    """Log-probabilities plus Gumbel noise; -inf where there is no sequence."""


def _select(drawn: ChildDraws, above: _Beam) -> tuple[_Beam, Int[Array, "B K"]]:
    """Returns the K best children of the beam, largest first, with their parents."""
    batch, _, width = drawn.tokens.shape
    log_probs = above.log_probs[..., None] + jnp.log(drawn.child_probs)
    # Free Gumbels, and Gumbels given the parent's. A node's first child has its largest value.
    free = above.log_probs[..., None] + drawn.scores
    free = jnp.where(jnp.isfinite(above.perturbed)[..., None], free, -jnp.inf)
    conditional = truncate(free, free[..., :1], above.perturbed[..., None])
    best, indices = largest(conditional.reshape(batch, -1), width)

    def pick(array: Array) -> Array:
        return jnp.take_along_axis(array.reshape(batch, -1), indices, axis=1)

    return _Beam(pick(drawn.tokens), pick(log_probs), best), indices // width
