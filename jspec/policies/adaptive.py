"""Chooses the width of every round by expected accepted tokens and cost, for any drafter.

A round of width w verifies w drafted nodes. It is expected to emit 1 + E(w) tokens, and it takes
t(w) seconds. Of the drafter's whole tree the w best nodes are verified, for the w with the largest

    harmonic mean over the running rows of (1 + E(w)) / t(w)

By the largest sum of tokens, rows with poor drafts would wait in every round for the others, and at
the end the batch for them. Rows differ in luck, and the batch ends with its last row: so the extra
time of a wider round counts 8% more for each other row, which waits. w = 0 is plain
decoding: a wrong drafter costs no more than its draft. The widths are static (speculation-length
buckets), with one program for each; the choice among them is data, and so is t.

E(w) is what the drafter says, the sum of the w largest values, times the share of such sums that
has come true lately. That share is counted for each width and for drafts of about as much promise,
in all rows together. What would have been accepted is known of all that was offered, verified or
not: a drafter that was left out is taken up again as soon as it would have been right, and nothing
has to be tried at a loss.

Drafting takes time too, whether or not the draft is verified: see `jspec.policies.backoff`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.drafters.growth.union import check_deterministic
from jspec.policies.backoff import Backoff
from jspec.policies.cost_curve import CostCurve
from jspec.policies.prior import prior
from jspec.protocols import CausalLM, WidthPolicy
from jspec.types import Frame, PolicyFeedback, PyTree, Tree, WidthChoice

_WAITING = 0.08
"""The share by which a wider round's extra time counts more, for each other running row."""
_PROMISES = 0.5 * 1.5 ** np.arange(8, dtype=np.float32)
"""The least sums of values with which each kind of drafts but the first begins."""
_PRIOR, _DOUBT, _FADES = 4.0, 0.8, 0.98
"""Tokens of each kind that are taken to have been promised before the first round, the share of
them that came, and the share of this knowledge that a round leaves. A rejected wide round costs
more than an accepted one saves."""


@struct.dataclass
class Estimate:
    """The estimates of a draft's acceptance, for what is learnt of the round."""

    promised: Float[Array, "B W"]
    """The sum of the values of each width's nodes."""
    expected: Float[Array, "B W"]
    """E of each width."""


@struct.dataclass
class AdaptiveState:
    """What drafts of each kind promised and gave, by width: fading sums over all rows."""

    promised: Float[Array, "K W"]
    accepted: Float[Array, "K W"]
    backoff: Backoff


@dataclass(frozen=True)
class Adaptive(WidthPolicy):
    """Verifies as many nodes in each round as make the most tokens for their time. jspec's own.

    The nodes are those of largest value in the drafter's tree. With 0 among the widths it asks no
    draft where drafts save less time than they take.

    Its `policy_params` are a `CostCurve`, which `jspec.costs.measure` measures and
    `jspec.costs.prior` guesses, as it does where there is none: another curve compiles nothing.
    Every width is a program of its own inside the loop: a few, far apart, are as good as many.

    Args:
        widths: rising numbers of drafted nodes that a round may verify of a row; 0 is plain
            decoding.

    Raises:
        InputError: if the widths do not rise. While a call is traced: if the drafter has fewer
            nodes than the largest width, or its draws have a verifier of their own.

    Example:
        >>> import jspec
        >>> model, lookup = jspec.testing.PrefixLM(), jspec.PromptLookup(num_speculative_tokens=7)
        >>> ask = dict(drafter=lookup, policy=Adaptive((0, 3, 7)), max_new_tokens=6)
        >>> jspec.decode(model, model.init(), [[1, 2, 1, 2, 1]], **ask).stats.widths
        (0, 3, 7)
    """

    widths: tuple[int, ...]

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

    def init_params(self, model: CausalLM, params: PyTree) -> CostCurve:
        return prior(params, model=model)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> AdaptiveState:
        shape = len(_PROMISES) + 1, len(self.widths)
        if earlier is None:
            promised = jnp.full(shape, _PRIOR, jnp.float32)
            return AdaptiveState(promised, _DOUBT * promised, Backoff.init())
        if not isinstance(earlier, AdaptiveState) or earlier.promised.shape != shape:
            raise InputError(
                f"policy_state is a {type(earlier).__name__} and Adaptive keeps an AdaptiveState "
                f"of {len(self.widths)} widths; pass the state of a call with the same policy"
            )
        return earlier

    def should_draft(self, params: PyTree, state: PyTree) -> "bool | Bool[Array, '']":
        if self.widths == (0,):
            return False
        # Without plain decoding as a choice, a round without a draft would gain nothing.
        return state.backoff.over if self.widths[0] == 0 else True

    def skip_expensive_updates(self, params: PyTree, state: PyTree) -> Bool[Array, ""]:
        return state.backoff.skip_expensive_updates

    def choose(
        self, params: CostCurve, state: AdaptiveState, tree: Tree, frame: Frame
    ) -> WidthChoice:
        """Returns the round in which the rows are fastest."""
        if not isinstance(params, CostCurve):
            raise InputError(
                f"policy_params is {params!r:.80} and Adaptive takes a cost curve; pass one from "
                "jspec.costs.measure(..), or leave it out"
            )
        check_deterministic(tree)
        value = jnp.clip(trees.values(tree), 0.0, 1.0)  # an infinite one would stay in the sums
        promised = self._of_widths(tree, value, value)
        share = (state.accepted / state.promised)[_kind(promised)]
        expected = jnp.minimum(share * promised, float(tree.depth))
        running = jnp.sum(~frame.done, dtype=jnp.int32)

        def of_running(values: Float[Array, "B W"]) -> Float[Array, " W"]:
            return jnp.where(frame.done[:, None], 0.0, values).sum(0)

        seconds = self._seconds(params, len(frame.root))
        num_waiting = jnp.maximum(running - 1, 0).astype(jnp.float32)
        more = jnp.maximum(seconds - seconds[0], 0.0)
        slowness = of_running(1 / (1 + expected)) * (seconds + _WAITING * num_waiting * more)
        return WidthChoice(
            index=jnp.argmin(slowness).astype(jnp.int32),
            expected_tokens=of_running(1 + expected),
            seconds=seconds,
            aux=Estimate(promised, expected),
        )

    def update(
        self, params: CostCurve, state: AdaptiveState, feedback: PolicyFeedback
    ) -> AdaptiveState:
        # A round without drafted nodes shows nothing: what was learnt of others fades.
        faded = replace(
            state,
            promised=_FADES * state.promised + (1 - _FADES) * _PRIOR,
            accepted=_FADES * state.accepted + (1 - _FADES) * _DOUBT * _PRIOR,
        )
        tree, choice = feedback.tree, feedback.choice
        if tree is None or choice is None:
            return replace(faded, backoff=state.backoff.count_down())
        estimate: Estimate = choice.aux
        value = jnp.clip(trees.values(tree), 0.0, 1.0)
        accepted = self._of_widths(tree, value, _come_true(tree, value, feedback))
        kinds = (
            _kind(estimate.promised)[:, None, None] == np.arange(len(_PROMISES) + 1)[None, :, None]
        )
        kinds &= (feedback.counts > 0)[:, None, None]

        def of_kinds(values: Float[Array, "B W"]) -> Float[Array, "K W"]:
            return jnp.where(kinds, values[:, None], 0.0).sum(0)

        learnt = replace(
            faded,
            promised=faded.promised + of_kinds(estimate.promised),
            accepted=faded.accepted + of_kinds(accepted),
        )
        if self.widths[0]:
            return learnt
        return replace(learnt, backoff=self._backoff_after(params, state, choice, feedback))

    def _backoff_after(
        self, costs: CostCurve, state: AdaptiveState, choice: WidthChoice, feedback: PolicyFeedback
    ) -> Backoff:
        """Returns the back-off after a round, by what its draft saved."""
        ran, counts = feedback.counts > 0, feedback.counts.astype(jnp.float32)
        seconds = self._seconds(costs, len(ran))
        # A draft adds as much whatever the rows: a curve that is a guess begins at one of them.
        drafting = costs.seconds[0] - costs.undrafted
        plain = seconds[0] - drafting
        rows = jnp.maximum(ran.sum(dtype=jnp.int32), 1).astype(jnp.float32)
        expected = jnp.where(ran, 1 + choice.aux.expected[:, choice.index], 0.0).sum() / rows
        # What one row's round has really given says little of its draft, the mean of many says
        # more: a refused draft costs many times what drafting does.
        tokens = expected + (1 - 1 / rows) * (counts.sum() / rows - expected)
        return state.backoff.after(tokens * plain - seconds[choice.index], drafting)

    def _seconds(self, costs: CostCurve, rows: int) -> Float[Array, " W"]:
        """Returns the time of a round of each width."""
        return costs.at([rows * (1 + width) for width in self.widths])

    def _of_widths(
        self, tree: Tree, value: Float[Array, "B N"], summands: Float[Array, "B N"]
    ) -> Float[Array, "B W"]:
        """Returns the sums over the nodes of largest value, as many as each width verifies."""
        place = jnp.arange(value.shape[1], dtype=jnp.int32)
        if tree.value is None or tree.nested:
            place = jnp.broadcast_to(place, value.shape)
        else:
            order = jnp.where(tree.valid, value, -1.0).at[:, 0].set(jnp.inf)
            ahead = order[:, None] > order[..., None]
            ahead |= (order[:, None] == order[..., None]) & (place[:, None] > place[None])[None]
            place = ahead.sum(-1, dtype=jnp.int32)
        drafted = tree.valid.at[:, 0].set(False)
        verified = drafted[..., None] & (
            place[..., None] <= np.array(self.widths, np.int32)[None, None]
        )
        return jnp.where(verified, summands[..., None], 0.0).sum(1)


def _kind(promised: Float[Array, "B W"]) -> Int[Array, " B"]:
    """Returns the kind of each draft, by what all of it promises."""
    return (promised[:, -1:] >= _PROMISES[None]).sum(-1, dtype=jnp.int32)


def _come_true(
    tree: Tree, value: Float[Array, "B N"], feedback: PolicyFeedback
) -> Float[Array, "B N"]:
    """Returns 1 for a node that the text went through and 0 for one that it went past.

    A node below the last token that is known has its probability by the drafter's values.
    """
    depths = trees.depths(tree)
    above = jnp.take_along_axis(value, jnp.maximum(tree.parents, 0), axis=1)
    chance = jnp.where(above > 0, value / jnp.where(above > 0, above, 1.0), 0.0)
    lane = jnp.maximum(depths - 1, 0)
    emitted = jnp.take_along_axis(feedback.emitted, lane, axis=1, mode="clip")
    right = (tree.valid & (tree.tokens == emitted)).astype(jnp.float32)
    right = jnp.where(depths > feedback.counts[:, None], chance, right).at[:, 0].set(1.0)
    return trees.path_probabilities(tree.parents, right, tree.depth)
