"""EAGLE (Li et al. 2024): a head that drafts from the target's states and its own tokens."""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache, Frame, PyTree, Tree, TreeKV
from jspec.drafters.draft_head.base import HeadDrafter, HeadState, check_sharpness, likeliest, share
from jspec.drafters.growth import best_first
from jspec.drafters.growth import template as templates
from jspec.drafters.growth.best_first import NodeValues
from jspec.drafters.growth.scorer import LevelOutput, append_kv, attention_mask
from jspec.protocols import DraftHead
from jspec.tree import Template
from jspec.verify.proposals import Candidates

_UNSCORED = 2
"""Places of a tree's scorer that are not the head's: the root's pair stands in the cache."""

# `mc_sim_7b_63` of the authors' code: 25 drafted nodes in 5 levels.
PUBLISHED = Template(
    tuple(
        tuple(map(int, path))
        for path in """
        0 1 2 3
        00 01 02 10 11 20 21 30
        000 001 002 010 011 020 021 100
        0000 0001 0002
        00000 00001
        """.split()
    )
)


@dataclass(frozen=True)
class HeadScorer:
    """A draft head in one round. A node hands its children its ancestors and its state."""

    head: DraftHead
    params: PyTree
    cache: Cache
    hidden: Float[Array, "B E"]
    frame: Frame
    places: int

    def root(self) -> LevelOutput:
        """What the head predicted when it read the last true pair."""
        batch = len(self.frame.root)
        hidden = self.hidden[:, None]
        held = self.head.init_cache(batch, self.places)
        return LevelOutput(
            logits=self.head.score(self.params, hidden),
            inherited=(jnp.zeros((batch, 1, self.places), bool), hidden),
            kv=TreeKV(held.keys, held.values),
        )

    def below(
        self,
        level: Int[Array, ""] | int,
        kv_index: Int[Array, ""] | int,
        tokens: Int[Array, "B W"],
        inherited: tuple[Bool[Array, "B W M"], Float[Array, "B W E"]],
        kv: TreeKV,
    ) -> LevelOutput:
        """As in `jspec.drafters.growth.scorer.Scorer`: the pair of the parent's state and the
        token.
        """
        above, hidden = inherited
        # A pair stands at its state's position, one before its token's.
        positions = jnp.broadcast_to((self.frame.positions + level - 1)[:, None], tokens.shape)
        output = self.head.apply(
            self.params, hidden, tokens, positions, attention_mask(above), self.cache, kv
        )
        seen, kv = append_kv(above, kv, output, kv_index - _UNSCORED)
        return LevelOutput(output.logits, (seen, output.hidden), kv)


@dataclass(frozen=True)
class EAGLE(HeadDrafter):
    """EAGLE-1 (arXiv:2401.15077): the head's likeliest tokens in a fixed tree.

    Args:
        head: see `jspec.models.heads.eagle.EAGLEHead`.
        template: the published one has 25 nodes, 26 tokens a forward.

    Raises:
        InputError: if the tree is no template, empty, or asks for more children than tokens.
    """

    template: Template = PUBLISHED

    def __post_init__(self):
        templates.check_template(self.template, self.head.vocab_size)

    @property
    def depth(self) -> int:
        return self.template.depth

    def propose(self, params: PyTree, state: HeadState, frame: Frame) -> tuple[Tree, PyTree]:
        scored = templates.num_scored(self.template)
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, frame, scored)
        return templates.fill(self.template, scorer, likeliest, None).tree, ()


@dataclass(frozen=True)
class EAGLE2(HeadDrafter):
    """EAGLE-2 (arXiv:2406.16858): a tree expanded by the head's confidence, and ranked again.

    Each level's `beam` likeliest paths get `beam` children each; of all, the `nodes` of the largest
    joint probability are verified. With an EAGLE-3 head it is EAGLE-3's tree too.

    Args:
        head: see `jspec.models.heads.eagle`.
        num_speculative_tokens: the budget, without the root. The default is the authors' 60 tokens
            a forward, for GPUs; 8 to 16 suit CPUs.
        max_depth: levels; 8 are the authors' "depth 7", which counts those after the first.
        beam: paths expanded a level, and children of each ("top-k").
        min_gain: see `jspec.drafters.draft_model.base.best_first.BestFirst`.
        sharpness: see `jspec.drafters.draft_head.base.share`; 1 is published.

    Raises:
        InputError: if an argument is out of range.
    """

    num_speculative_tokens: int = 59
    max_depth: int = 8
    beam: int = 10
    min_gain: float = 0.0
    sharpness: float = 1.0

    def __post_init__(self):
        check_sharpness(self.sharpness)
        best_first.check(
            self.num_speculative_tokens,
            self.max_depth,
            self.beam,
            self.min_gain,
            self.head.vocab_size,
        )

    @property
    def depth(self) -> int:
        return self.max_depth

    def propose(self, params: PyTree, state: HeadState, frame: Frame) -> tuple[Tree, PyTree]:
        scored = (self.max_depth - 1) * self.beam
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, frame, scored)
        draft, _ = best_first.grow(
            scorer,
            likeliest,
            None,
            partial(joint, sharpness=self.sharpness),
            num_speculative_tokens=self.num_speculative_tokens,
            max_depth=self.max_depth,
            beam=self.beam,
            min_gain=self.min_gain,
        )
        return draft.tree, ()


def joint(drawn: Candidates, value: Float[Array, "B M"], sharpness: float = 1.0) -> NodeValues:
    """A node is worth the joint probability of its path."""
    value = value[..., None] * share(drawn, sharpness)
    return NodeValues(value, value)
