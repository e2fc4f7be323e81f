"""EAGLE (Li et al. 2024): a head that drafts from the target's states and its own tokens."""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.kinds import COUNT, Number
from jspec.drafters.draft_head.draft_head import DraftHead
from jspec.drafters.draft_head.head_drafter import (
    SHARPNESS,
    HeadDrafter,
    HeadState,
    child_probability,
    top_k_draw,
)
from jspec.drafters.growth import best_first
from jspec.drafters.growth import template_trees as templates
from jspec.drafters.growth.best_first import NodeValues
from jspec.drafters.growth.scorer import LevelOutput, append_kv, attention_mask
from jspec.memory import KVCache, TreeKV, numbers
from jspec.protocols import Verifier
from jspec.tree import Template
from jspec.types import Frame, PyTree, Tree
from jspec.verify import schemes
from jspec.verify.proposals import ChildDraws
from jspec.verify.schemes import COUPLED, Scheme

_UNSCORED = 2
"""Index of the first pair that is not cached: the root's pair is."""

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
    cache: KVCache
    hidden: Float[Array, "B E"]
    frame: Frame
    places: int

    def root(self) -> LevelOutput:
        """Returns the head's prediction when it read the last true pair, as the root's level."""
        batch = len(self.frame.root)
        hidden = self.hidden[:, None]
        cache = self.head.init_memory(batch, self.places)
        room = jax.tree.map(numbers, (cache.keys, cache.values))
        return LevelOutput(
            logits=self.head.score(self.params, hidden),
            inherited=(jnp.zeros((batch, 1, self.places), bool), hidden),
            kv=TreeKV(*room),
        )

    def below(
        self,
        level: Int[Array, ""] | int,
        kv_index: Int[Array, ""] | int,
        tokens: Int[Array, "B W"],
        inherited: tuple[Bool[Array, "B W M"], Float[Array, "B W E"]],
        kv: TreeKV,
    ) -> LevelOutput:
        """Scores W nodes of one depth, each from the pair of its parent's state and its token."""
        above, hidden = inherited
        # A pair has its state's position, one before its token's.
        positions = jnp.broadcast_to((self.frame.positions + level - 1)[:, None], tokens.shape)
        output = self.head.apply(
            self.params, hidden, tokens, positions, attention_mask(above), self.cache, kv
        )
        seen, kv = append_kv(above, kv, output, kv_index - _UNSCORED)
        return LevelOutput(output.logits, (seen, output.hidden), kv)


@dataclass(frozen=True)
class EAGLE(HeadDrafter):
    """EAGLE-1: the head's top tokens in a fixed tree, which may be a chain.

    Source: Li et al. 2024, arXiv:2401.15077. The authors verify sampled drafts by rejection; here
    the children are by default chosen by the noise that decides the target's token, so that the
    tokens are those of plain decoding.

    Args:
        head: see `jspec.models.heads.eagle.EAGLEHead` and `jspec.models.heads.mtp.MTPHead`.
        template: the tree; the published one has 25 nodes, 26 tokens a forward.
        scheme: how children are drawn and verified. `jspec.schemes.RECURSIVE` is rejection: its
            children are drawn from the head's distribution at the target's temperature.

    Raises:
        InputError: if the head is of another kind, or the tree is not a template, empty, or asks
            for more children than tokens, or the scheme is unknown.

    Example:
        >>> import jspec
        >>> from jspec import models
        >>> head, params, target = models.heads.load("jspec-7m/eagle", models.load("jspec-7m"))
        >>> jspec.EAGLE(head).depth
        5
        >>> jspec.EAGLE(head, jspec.Template(((0,), (1,), (0, 0)))).depth
        2
    """

    template: Template = PUBLISHED
    scheme: Scheme = field(default=COUPLED, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        templates.check_template(self.template, self.head.vocab_size)
        schemes.check(self.scheme)

    @property
    def verifier(self) -> Verifier:
        """The verifier that makes the drafter's draws lossless: the scheme's."""
        return self.scheme.verifier

    @property
    def depth(self) -> int:
        return self.template.depth

    def draft(self, params: PyTree, state: HeadState, frame: Frame) -> tuple[Tree, None]:
        scored = templates.num_scored(self.template)
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, frame, scored)
        return templates.fill(self.template, scorer, self.scheme.draw, None).tree, None


@dataclass(frozen=True)
class EAGLE2(HeadDrafter):
    """EAGLE-2: a tree expanded by the head's confidence, and ranked again.

    In each level the `beam` most probable paths get `beam` children each. Of all nodes, the
    `num_speculative_tokens` of the largest joint probability are verified. With an EAGLE-3 head it
    is EAGLE-3's tree too.

    Source: Li et al. 2024, arXiv:2406.16858; EAGLE-3: Li et al. 2025, arXiv:2503.01840.

    Args:
        head: see `jspec.models.heads`: `eagle`, `eagle3` and `mtp`.
        num_speculative_tokens: drafted nodes, without the root. The default is the authors' 60
            tokens a forward pass, for GPUs; 8 to 16 suit CPUs.
        max_depth: most levels; 8 are the authors' "depth 7", which counts those after the first.
        beam: paths expanded per level, and children of each ("top-k").
        min_gain: no level is grown that adds less than this share to the tokens expected so far.
        sharpness: power of the head's probabilities; 1 is published. See
            `jspec.drafters.draft_head.head_drafter.child_probability`.

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> import jspec
        >>> from jspec import models
        >>> head, params, target = models.heads.load("jspec-7m/eagle", models.load("jspec-7m"))
        >>> jspec.EAGLE2(head, num_speculative_tokens=7, max_depth=6, beam=2).depth
        6
    """

    num_speculative_tokens: Annotated[int, COUNT] = 59
    max_depth: Annotated[int, COUNT] = 8
    beam: Annotated[int, COUNT] = 10
    min_gain: Annotated[float, Number(0, 1, below_high=True)] = 0.0
    sharpness: Annotated[float, SHARPNESS] = 1.0

    def __post_init__(self):
        super().__post_init__()
        best_first.check(
            self.num_speculative_tokens, self.max_depth, self.beam, self.head.vocab_size
        )

    @property
    def depth(self) -> int:
        return self.max_depth

    def draft(self, params: PyTree, state: HeadState, frame: Frame) -> tuple[Tree, None]:
        scored = (self.max_depth - 1) * self.beam
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, frame, scored)
        draft, _ = best_first.grow(
            scorer,
            top_k_draw,
            None,
            partial(joint_probability, sharpness=self.sharpness),
            num_speculative_tokens=self.num_speculative_tokens,
            max_depth=self.max_depth,
            beam=self.beam,
            min_gain=self.min_gain,
        )
        return draft.tree, None


def joint_probability(
    drawn: ChildDraws, value: Float[Array, "B M"], sharpness: float = 1.0
) -> NodeValues:
    """Returns values per node by the joint probability of its path."""
    value = value[..., None] * child_probability(drawn, sharpness)
    return NodeValues(value, value)
