"""SpecTr (Sun et al. 2023): several independent chains from one draft model."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec._validate.arguments import check_integer
from jspec._validate.kinds import COUNT
from jspec.drafters.draft_model.draft_model import DraftModel
from jspec.drafters.growth.even_levels import Level, join_levels
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.types import PyTree
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
        num_chains: chains, K in the paper.
        max_depth: tokens of a chain, L.
        scheme: how tokens are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

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

    _: KW_ONLY
    num_chains: Annotated[int, COUNT] = 4
    max_depth: Annotated[int, COUNT] = 4

    paper_settings: ClassVar = {"scheme": K_SEQ}

    def __post_init__(self):
        super().__post_init__()
        check_integer("num_chains", self.num_chains, 1, self.model.vocab_size, "the vocabulary")

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def num_scored(self) -> int:
        return self.num_chains * (self.max_depth - 1)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        del memory
        frame, chains = scorer.frame, self.num_chains
        level = scorer.root()
        drawn = self.scheme.draw(level.logits, self.sampling, frame, 0, chains)
        tokens, valid = drawn.tokens[:, 0], drawn.scores[:, 0] > -jnp.inf
        first = Level(tokens, jnp.zeros_like(tokens), valid, drawn.q)
        alike = _alike(tokens, jnp.ones((len(tokens), chains, chains), bool))
        inherited = jnp.repeat(level.inherited, chains, axis=1)

        def deeper(carry, depth):
            tokens, valid, alike, inherited, kv = carry
            kv_index = 2 + (depth - 1) * chains
            level = scorer.below(depth, kv_index, tokens, inherited, kv)
            drawn = self.scheme.draw(level.logits, self.sampling, frame, depth, 1)
            tokens = drawn.tokens[:, :, 0]
            valid = valid & (drawn.scores[:, :, 0] > -jnp.inf)
            parents = alike.argmax(-1).astype(jnp.int32)  # the first of the chains alike so far
            carry = tokens, valid, _alike(tokens, alike), level.inherited, level.kv
            return carry, Level(tokens, parents, valid, drawn.q)

        start = tokens, valid, alike, inherited, level.kv
        (*_, kv), below = jax.lax.scan(deeper, start, jnp.arange(1, self.max_depth))
        return join_levels(frame.root, first, below, kv), ()


def _alike(tokens: Int[Array, "B K"], before: Bool[Array, "B K K"]) -> Bool[Array, "B K K"]:
    """Returns the pairs of chains that are equal so far."""
    return before & (tokens[:, :, None] == tokens[:, None, :])
