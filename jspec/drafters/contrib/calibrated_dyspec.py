"""DySpec with acceptance rates that it learns instead of the draft's own probabilities."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.drafters.draft_model.best_first_tree import drawn_along_path
from jspec.drafters.draft_model.draft_model import Drafted
from jspec.drafters.draft_model.dyspec import DySpec, remaining_mass
from jspec.drafters.growth.best_first import NodeValues, ValueFn
from jspec.types import Feedback
from jspec.verify.proposals import ChildDraws

_RANKS = 4
"""The number of ranks told apart among siblings; the last stands for all further ones."""
_BUCKETS = 16
"""The number of probabilities told apart, half an octave each."""
_PRIOR = 4.0
"""The number of attempts that the prior estimate counts for."""
_MEMORY = 0.98
"""The share of all counts that remains after a round."""


@struct.dataclass
class RateTable:
    """Attempts and acceptances by rank and probability: R ranks, Q buckets."""

    tried: Float[Array, "B R Q"]
    taken: Float[Array, "B R Q"]

    def __call__(self, probability: Float[Array, "B W K"]) -> Float[Array, "B W K"]:
        """Returns the acceptance rates of siblings in drawing order, given their probabilities."""
        cell = _cell(probability)
        flat = (self.taken / self.tried).reshape(len(self.tried), -1)
        return jax.vmap(lambda rates, cell: rates[cell])(flat, cell)

    def count(
        self,
        probability: Float[Array, "B P K"],
        tried: Bool[Array, "B P K"],
        taken: Bool[Array, "B P K"],
    ) -> "RateTable":
        """Returns the table after a round's attempts."""
        cell = _cell(probability).reshape(len(tried), -1)

        def add(known, new):
            fresh = jax.vmap(
                lambda cell, new: jnp.zeros(_RANKS * _BUCKETS, jnp.float32).at[cell].add(new)
            )
            return _MEMORY * known + fresh(cell, new.reshape(cell.shape)).reshape(known.shape)

        # What is forgotten is replaced by the prior, so that no cell runs empty.
        prior = self.init(len(tried))

        def refill(known, first):
            return known + (1 - _MEMORY) * first

        return RateTable(
            tried=refill(add(self.tried, tried.astype(jnp.float32)), prior.tried),
            taken=refill(add(self.taken, taken.astype(jnp.float32)), prior.taken),
        )

    @staticmethod
    def init(batch: int) -> "RateTable":
        """Returns the published estimate: the draft's probability of each token."""
        centre = 2.0 ** (-(jnp.arange(_BUCKETS, dtype=jnp.float32) + 0.5) / 2)
        tried = jnp.full((batch, _RANKS, _BUCKETS), _PRIOR, jnp.float32)
        return RateTable(tried=tried, taken=tried * centre[None, None])


@struct.dataclass
class AcceptanceRates:
    """Acceptance rates of a slot before its token is drawn, and of a token once it is drawn."""

    slots: RateTable
    tokens: RateTable


@dataclass(frozen=True)
class CalibratedDySpec(DySpec):
    """DySpec with learnt acceptance rates, jspec's own; verified by the coupled scheme.

    DySpec takes the draft's probability of a token for the probability that the token is accepted.
    For a draft that agrees with its target that is too little: min(1, p/q) is near 1 however small
    q is. This drafter counts how often tokens are accepted, row by row, and starts from DySpec's
    estimate.

    Two rates are counted, each by a draw's rank among its siblings and by a probability. The rate
    of a slot goes by the largest probability that is left to draw, which is known before the draw
    and so keeps the rejection exact; it decides whether the slot is drafted. The rate of a drawn
    token goes by its own probability among what was left; it values the token's children and its
    later siblings.

    The rates remember the draws that they were counted from. With a hot start, give each call a key
    of its own.

    Args:
        model: the draft model.
        num_speculative_tokens: drafted tokens; this and what follows is as in `DySpec`.
        max_depth: most levels below the root.
        beam: nodes scored per level and children drawn per node.
        min_gain: share of the expected tokens that a level must be able to add.
        threshold: slots of this value or less are not drafted.
        order: of the nodes; None is breadth first.
        scheme: how children are drawn and verified, such as `jspec.schemes.RECURSIVE`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.CalibratedDySpec(draft, num_speculative_tokens=32).num_speculative_tokens
        32
    """

    paper_settings: ClassVar = None

    def init_memory(self, batch: int, earlier: AcceptanceRates | None) -> AcceptanceRates:
        """Returns the memory of a new call, the mean of earlier rows' for each row."""
        if earlier is None:
            return AcceptanceRates(slots=RateTable.init(batch), tokens=RateTable.init(batch))
        return jax.tree.map(
            lambda known: jnp.broadcast_to(known.mean(0), (batch, *known.shape[1:])), earlier
        )

    def value_fn(self, memory: AcceptanceRates) -> ValueFn:
        def expected(drawn: ChildDraws, above: Float[Array, "B W"]) -> NodeValues:
            slot, token = _residual_probabilities(drawn)
            taken = memory.tokens(token)
            refused = jnp.cumprod(1 - taken, axis=-1)
            reached = above[..., None] * jnp.concatenate(
                [jnp.ones_like(refused[..., :1]), refused[..., :-1]], axis=-1
            )
            return NodeValues(reached * memory.slots(slot), reached * taken, notes=(slot, token))

        return expected

    def learn(self, memory: AcceptanceRates, aux: Drafted, feedback: Feedback) -> AcceptanceRates:
        """Counts the children that were tried at each node of the accepted path."""
        tree, verdict = feedback.tree, feedback.verdict
        drawn, has_drawn = drawn_along_path(aux, feedback)
        lanes = jnp.arange(verdict.path.shape[1])[None]
        # A row that has ended may have been cut short, and so teaches nothing.
        seen = (lanes < verdict.path_lengths[:, None]) & has_drawn & ~feedback.done[:, None]
        # The tree holds the first draws of a node; how many, its slots decided.
        hangs = (tree.parents[:, None, :] == verdict.path[..., None]) & tree.valid[:, None, :]
        ranks = jnp.arange(drawn.tokens.shape[-1])
        drafted = ranks[None, None] < hangs.sum(-1)[..., None]
        # What was emitted after a node is the child that was taken, until the last node, which is
        # followed by a token of the target's own. In a merge the child may be another drafter's.
        goes_on = (lanes < verdict.path_lengths[:, None] - 1)[..., None]
        taken = (drawn.tokens == feedback.emitted[..., None]) & goes_on & drafted
        # Children are tried in order until one is taken: all of them if none is.
        not_beyond = (ranks[None, None] <= taken.argmax(-1)[..., None]) | ~taken.any(
            -1, keepdims=True
        )
        tried = drafted & not_beyond & seen[..., None]
        taken = taken & tried
        slot, token = drawn.notes
        return AcceptanceRates(
            slots=memory.slots.count(slot, tried, taken),
            tokens=memory.tokens.count(token, tried, taken),
        )


def _residual_probabilities(
    drawn: ChildDraws,
) -> tuple[Float[Array, "B W K"], Float[Array, "B W K"]]:
    """Returns two probabilities under the draft's distribution after earlier siblings.

    The first is the largest one before each draw, the second the drawn token's.
    """
    # The largest remaining probability is the largest of all until that token is drawn, and the
    # second largest after it. If the second is drawn too, the third would be right. The second is
    # kept as its upper bound, which spares a sort of the vocabulary.
    first = drawn.probs.max(-1, keepdims=True)
    second = jnp.where(drawn.probs == first, 0.0, drawn.probs).max(-1, keepdims=True)
    is_first = drawn.child_probs == first
    first_is_gone = (jnp.cumsum(is_first, axis=-1) > 1) | (
        (jnp.cumsum(is_first, axis=-1) > 0) & ~is_first
    )
    remaining = remaining_mass(drawn.child_probs)

    def normalised(probability):
        return probability / jnp.where(remaining > 0, remaining, 1.0)

    return normalised(jnp.where(first_is_gone, second, first)), normalised(drawn.child_probs)


def _cell(probability: Float[Array, "*S K"]) -> Int[Array, "*S K"]:
    """Returns the flat index of (rank, bucket)."""
    bucket = jnp.clip(jnp.floor(-2 * jnp.log2(probability)), 0, _BUCKETS - 1).astype(jnp.int32)
    rank = jnp.minimum(jnp.arange(probability.shape[-1]), _RANKS - 1)
    return jnp.broadcast_to(rank * _BUCKETS, bucket.shape) + bucket
