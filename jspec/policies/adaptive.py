"""Chooses the width of every round by expected accepted tokens and cost, for any drafter.

A round of width w verifies w drafted nodes. It is expected to emit 1 + E(w) tokens, where E(w) sums
up the w largest probabilities that the target accepts a node, and it takes t(w) seconds. Of the
drafter's whole tree the w best nodes are verified, for the w with the largest

    harmonic mean over the running rows of (1 + E(w)) / t(w)

By the largest sum of tokens, rows with poor drafts would wait in every round for the others, and at
the end the batch for them. Rows differ in luck, and the batch ends with its last row: so the extra
time of a wider round counts 8% more for each other row, which waits. w = 0 is plain
decoding: a wrong drafter costs no more than its draft. The widths are static (speculation-length
buckets), with one program for each; the choice among them is data, and so is t.

The probabilities are learnt from the emitted tokens, as those of a merge are. They judge all that
was offered, verified or not: a drafter that was left out is taken up again as soon as it would have
been right, and nothing has to be tried at a loss.

Drafting takes time too, whether or not the draft is verified: see `jspec.policies.backoff`.

What the last rounds of a row accepted says more about its next one than a hundred rounds of other
text: alongside the calibration that all rows share, each row has an offset that forgets in ten
rounds. At first, probabilities are taken to be smaller than the drafter says: a rejected wide round
costs more than an accepted one saves.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec._xla.manual_axes import cond
from jspec.drafters.growth.calibration import (
    AcceptanceModel,
    among_siblings,
    features,
    outcomes,
)
from jspec.drafters.growth.union import check_deterministic
from jspec.policies.backoff import Backoff
from jspec.policies.cost_curve import CostCurve
from jspec.protocols import WidthPolicy
from jspec.round.packed import largest_together
from jspec.round.widths import sizes_of
from jspec.types import Frame, PolicyFeedback, PyTree, Tree, WidthChoice

_DOUBT = -1.0
"""The log odds by which probabilities are lowered at the start."""
_WAITING = 0.08
"""The share by which a wider round's extra time counts more, for each other running row."""
_STEP_SIZE, _DECAY = 0.3, 0.9
"""Step size of a row's offset, and its decay per round."""
_PRIOR, _FADES = 16.0, 0.98
"""Drafted tokens that are taken to have been accepted as expected, and how much of the
knowledge of such tokens per round leaves."""


@struct.dataclass
class Estimate:
    """The estimates of a draft's acceptance, for what is learnt of the round."""

    buckets: Int[Array, "B N"]
    """The kind of proposal that each node is, see `calibration.features`."""
    probs: Float[Array, "B N"]
    """The estimated probability of each node given that its parent is accepted."""
    gains: Float[Array, "B R"]
    """E of each round that there may be, as the probabilities add up."""


@struct.dataclass
class AdaptiveState:
    """A model of the probabilities that nodes are accepted, which all rows have taught."""

    acceptance: AcceptanceModel
    offsets: Float[Array, " B"]
    """Log odds by which a row has been accepting more than the model says."""
    expected: Float[Array, ""]
    """The fading number of verified tokens that were expected to be accepted."""
    accepted: Float[Array, ""]
    """The fading number of tokens that were accepted."""
    backoff: Backoff

    @property
    def trust(self) -> Float[Array, ""]:
        """The share of what is expected that comes.

        Of estimates of equal quality, those are chosen that are too high.
        """
        return jnp.minimum(self.accepted / self.expected, 1.0)


@dataclass(frozen=True)
class Adaptive(WidthPolicy):
    """Verifies as many nodes in each round as make the most tokens for their time. jspec's own.

    The nodes are those of the drafter's tree that are likeliest to be accepted. With 0 among the
    widths it asks no draft where drafts save less time than they take.

    Its `policy_params` are a `CostCurve`, which `jspec.costs.measure` measures: another curve
    compiles nothing. Every width is a program of its own inside the loop: a few, far apart, are as
    good as many.

    Args:
        widths: rising numbers of drafted nodes that a round may verify of a row; 0 is plain
            decoding.
        token_budget: the tokens that a round verifies (vLLM's `max_num_batched_tokens`), as a
            fraction of all rows' tokens at its width, rounded up to whole rows. The nodes that are
            likeliest to be accepted are taken, in whichever row they are. 1: each row has as many
            as the others.

    Raises:
        InputError: if the widths do not rise or the budget is out of range. While a call is traced:
            if the drafter has fewer nodes than the largest width, or its draws have a verifier of
            their own.

    Example:
        >>> import jspec
        >>> model, costs = jspec.testing.PrefixLM(), jspec.CostCurve.of({1: 0.020, 8: 0.034})
        >>> ask = dict(drafter=jspec.PromptLookup(num_speculative_tokens=7), max_new_tokens=6)
        >>> ask |= dict(policy=Adaptive((0, 3, 7)), policy_params=costs)
        >>> jspec.decode(model, model.init(), [[1, 2, 1, 2, 1]], **ask).stats.widths
        (0, 3, 7)
    """

    widths: tuple[int, ...]
    token_budget: float = 1.0

    def __post_init__(self):
        if not isinstance(self.widths, Iterable):
            raise InputError(
                f"widths is {self.widths!r:.80}; give rising numbers of drafted nodes, such as "
                "(0, 3, 7)"
            )
        for width in (widths := tuple(self.widths)):
            check_integer("a width", width, 0, None)
        # Python's numbers, which hash and print alike wherever they come from.
        object.__setattr__(self, "widths", tuple(int(width) for width in widths))
        if not widths or tuple(sorted(set(widths))) != widths:
            raise InputError(
                f"widths is {widths}; give rising numbers of drafted nodes, such as (0, 3, 7)"
            )
        check_number("token_budget", self.token_budget, 0, 1)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> AdaptiveState:
        if earlier is not None and not isinstance(earlier, AdaptiveState):
            raise InputError(
                f"policy_state is a {type(earlier).__name__} and Adaptive keeps an AdaptiveState; "
                "pass the state of a call with the same policy"
            )
        if earlier is None:
            fresh = AcceptanceModel.init(1)
            prior = jnp.float32(_PRIOR)
            doubting = replace(fresh, bias=fresh.bias.at[0].set(_DOUBT))
            return AdaptiveState(
                acceptance=doubting,
                offsets=jnp.zeros(batch, jnp.float32),
                expected=prior,
                accepted=prior,
                backoff=Backoff.init(),
            )
        return replace(earlier, offsets=jnp.zeros(batch, jnp.float32))

    def should_draft(self, params: PyTree, state: AdaptiveState) -> "bool | Bool[Array, '']":
        if self.widths == (0,):
            return False
        # Without plain decoding as a choice, a round without a draft would gain nothing.
        return state.backoff.over if self.widths[0] == 0 else True

    def skip_expensive_updates(self, params: PyTree, state: AdaptiveState) -> Bool[Array, ""]:
        return state.backoff.skip_expensive_updates

    def choose(
        self, params: CostCurve, state: AdaptiveState, tree: Tree, frame: Frame
    ) -> WidthChoice:
        """Returns the round in which the rows are fastest."""
        if not isinstance(params, CostCurve):
            raise InputError(
                f"policy_params is {params!r:.80} and Adaptive needs a cost curve; pass "
                "jspec.costs.prior(params), or one from jspec.costs.measure(..)"
            )
        check_deterministic(tree)
        prior, buckets = features(tree, trees.depths(tree))
        scores = state.acceptance.scores(prior[..., None], buckets[..., None])
        probs = among_siblings(tree.parents, tree.valid, scores + state.offsets[:, None])
        value = trees.path_probabilities(tree.parents, probs, tree.depth)
        # What an ended row drafts takes no room from the others.
        there = tree.valid & ~frame.done[:, None]
        best = -jnp.sort(-jnp.where(there, value, 0.0).at[:, 0].set(0.0), axis=1)
        running = jnp.sum(~frame.done, dtype=jnp.int32)
        sizes = sizes_of(self, frame.root)
        gains = jnp.stack(
            [_together(best[:, :width], tokens, running).sum(-1) for width, tokens in sizes],
            axis=-1,
        )
        expected = state.trust * gains

        def of_running(values: Float[Array, "B R"]) -> Float[Array, " R"]:
            return jnp.where(frame.done[:, None], 0.0, values).sum(0)

        seconds, fits = self._seconds(params, frame.root, running)
        others = jnp.maximum(running - 1, 0).astype(jnp.float32)
        more = jnp.maximum(seconds - seconds[0], 0.0)
        slowness = of_running(1 / (1 + expected)) * (seconds + _WAITING * others * more)
        return WidthChoice(
            index=jnp.argmin(jnp.where(fits, slowness, jnp.inf)).astype(jnp.int32),
            values=value,
            expected_tokens=of_running(1 + expected),
            seconds=seconds,
            aux=Estimate(buckets, probs, gains),
        )

    def update(
        self, params: CostCurve, state: AdaptiveState, feedback: PolicyFeedback
    ) -> AdaptiveState:
        # A round without drafted nodes shows nothing: what was learnt of others fades.
        shown = replace(
            state,
            offsets=_DECAY * state.offsets,
            acceptance=state.acceptance.after_nothing(),
            expected=_FADES * state.expected + (1 - _FADES) * _PRIOR,
            accepted=_FADES * state.accepted + (1 - _FADES) * _PRIOR,
        )
        tree, choice = feedback.tree, feedback.choice
        if tree is None or choice is None:
            return replace(shown, backoff=state.backoff.count_down())
        estimate: Estimate = choice.aux

        def learnt() -> tuple[AcceptanceModel, Float[Array, " B"]]:
            tried, taken = outcomes(tree, trees.depths(tree), feedback)
            # A row whose logits are not numbers learns nothing.
            probs = jnp.where(jnp.isfinite(estimate.probs), estimate.probs, 0.0)
            surplus = jnp.where(tried, taken.astype(jnp.float32) - probs, 0.0).sum(-1)
            buckets = estimate.buckets[..., None]
            return state.acceptance.learn(buckets, estimate.probs, tried, taken), surplus

        nothing = shown.acceptance, jnp.zeros_like(state.offsets)
        any_drafted = tree.valid[:, 1:].any()
        acceptance, surplus = cond(any_drafted, learnt, lambda: nothing, nothing)
        ran, gain = feedback.counts > 0, estimate.gains[:, choice.index]
        taken = feedback.counts.astype(jnp.float32) - 1
        shown = replace(
            shown,
            offsets=shown.offsets + _STEP_SIZE * surplus,
            acceptance=acceptance,
            expected=shown.expected + jnp.where(ran, gain, 0.0).sum(),
            accepted=shown.accepted + jnp.where(ran, taken, 0.0).sum(),
        )
        if self.widths[0]:
            return shown
        return replace(shown, backoff=self._backoff_after(params, state, gain, choice, feedback))

    def _backoff_after(
        self,
        costs: CostCurve,
        state: AdaptiveState,
        gain: Float[Array, " B"],
        choice: WidthChoice,
        feedback: PolicyFeedback,
    ) -> Backoff:
        """Returns the back-off after a round, by what its draft saved."""
        ran, counts = feedback.counts > 0, feedback.counts.astype(jnp.float32)
        running = ran.sum(dtype=jnp.int32)
        seconds, fits = self._seconds(costs, feedback.counts, running)
        # The narrowest round that there was room in, with a draft and without.
        drafted = seconds[jnp.argmax(fits)]
        drafting = costs.at([len(ran)])[0] - costs.undrafted
        plain = drafted - drafting
        rows = jnp.maximum(running, 1).astype(jnp.float32)
        expected = jnp.where(ran, 1 + state.trust * gain, 0.0).sum() / rows
        # What one row's round has really given says little of its draft, the mean of many says
        # more: a refused draft costs many times what drafting does.
        tokens = expected + (1 - 1 / rows) * (counts.sum() / rows - expected)
        return state.backoff.after(tokens * plain - seconds[choice.index], drafting)

    def _seconds(
        self, costs: CostCurve, rows: Array, running: Int[Array, ""]
    ) -> tuple[Float[Array, " R"], Bool[Array, " R"]]:
        """Returns the time of each round, and whether it has room for the rows that are running."""
        tokens = [tokens for _, tokens in sizes_of(self, rows)]
        return costs.at(tokens), jnp.array(tokens) >= running


def _together(
    probabilities: Float[Array, "B w"], tokens: int, running: Int[Array, ""]
) -> Float[Array, "B w"]:
    """Returns the largest probabilities of all rows that fit, and 0 in place of the others."""
    if tokens >= len(probabilities) + probabilities.size:
        return probabilities
    return jnp.where(
        largest_together(probabilities, probabilities > 0, tokens - running), probabilities, 0.0
    )
