"""EAGLE (Li et al. 2024): a head that drafts from the target's states and its own tokens."""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache, DraftHead, Nodes, PyTree, Round, Tree
from jspec.drafters import best_first, static_tree
from jspec.drafters.best_first import Worth
from jspec.drafters.pairs import PairDrafter, PairState, check_sharpness, likeliest, share
from jspec.drafters.scoring import Level, entered, visible
from jspec.draws import Drawn
from jspec.tree import Template

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
    round: Round
    places: int

    def root(self) -> Level:
        """What the head predicted when it read the last true pair."""
        batch = len(self.round.root)
        hidden = self.hidden[:, None]
        held = self.head.init_cache(batch, self.places)
        return Level(
            logits=self.head.apply(self.params, hidden, method="logits"),
            lineage=(jnp.zeros((batch, 1, self.places), bool), hidden),
            nodes=Nodes(held.keys, held.values),
        )

    def below(
        self,
        level: Int[Array, ""] | int,
        place: Int[Array, ""] | int,
        tokens: Int[Array, "B M"],
        lineage: tuple[Bool[Array, "B M C"], Float[Array, "B M E"]],
        nodes: Nodes,
    ) -> Level:
        """As in `jspec.drafters.scoring.Scorer`: the pair of the parent's state and the token."""
        above, hidden = lineage
        # A pair stands at its state's position, one before its token's.
        positions = jnp.broadcast_to((self.round.positions + level - 1)[:, None], tokens.shape)
        output = self.head.apply(
            self.params, hidden, tokens, positions, visible(above), self.cache, nodes
        )
        seen, nodes = entered(above, nodes, output, place - _UNSCORED)
        return Level(output.logits, (seen, output.hidden), nodes)


@dataclass(frozen=True)
class Eagle(PairDrafter):
    """EAGLE-1 (arXiv:2401.15077): the head's likeliest tokens in a fixed tree.

    Args:
        head: see `jspec.models.eagle.EagleHead`.
        template: the published one has 25 nodes, 26 tokens a forward.

    Raises:
        ValueError: if the tree is no template, empty, or asks for more children than tokens.
    """

    template: Template = PUBLISHED

    def __post_init__(self):
        static_tree.check_template(self.template, self.head.vocab_size)

    @property
    def depth(self) -> int:
        return self.template.depth

    def propose(self, params: PyTree, state: PairState, round: Round) -> tuple[Tree, PyTree]:
        scored = static_tree.scored(self.template)
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, round, scored)
        return static_tree.fill(self.template, scorer, likeliest, None).tree, ()


@dataclass(frozen=True)
class Eagle2(PairDrafter):
    """EAGLE-2 (arXiv:2406.16858): a tree expanded by the head's confidence, and ranked again.

    Each level's `beam` likeliest paths get `beam` children each; of all, the `nodes` of the largest
    joint probability are verified. With an EAGLE-3 head it is EAGLE-3's tree too.

    Args:
        head: see `jspec.models.eagle`.
        nodes: the budget, without the root. The default is the authors' 60 tokens a forward, for
            GPUs; 8 to 16 suit CPUs.
        max_depth: levels; 8 are the authors' "depth 7", which counts those after the first.
        beam: paths expanded a level, and children of each ("top-k").
        min_gain: see `jspec.drafters.best_first.BestFirst`.
        sharpness: see `jspec.drafters.pairs.share`; 1 is published.

    Raises:
        ValueError: if an argument is out of range.
    """

    nodes: int = 59
    max_depth: int = 8
    beam: int = 10
    min_gain: float = 0.0
    sharpness: float = 1.0

    def __post_init__(self):
        check_sharpness(self.sharpness)
        best_first.check(self.nodes, self.max_depth, self.beam, self.min_gain, self.head.vocab_size)

    @property
    def depth(self) -> int:
        return self.max_depth

    def propose(self, params: PyTree, state: PairState, round: Round) -> tuple[Tree, PyTree]:
        scored = (self.max_depth - 1) * self.beam
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, round, scored)
        draft, _ = best_first.grow(
            scorer,
            likeliest,
            None,
            partial(joint, sharpness=self.sharpness),
            nodes=self.nodes,
            depth=self.max_depth,
            width=self.beam,
            threshold=0.0,
            gain=self.min_gain,
        )
        return draft.tree, ()


def joint(drawn: Drawn, value: Float[Array, "B M"], sharpness: float = 1.0) -> Worth:
    """A node is worth the joint probability of its path."""
    worth = value[..., None] * share(drawn, sharpness)
    return Worth(worth, worth)
