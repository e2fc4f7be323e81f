"""Any drafter, with the width of every round chosen by what it is worth and what it costs.

A round that verifies w drafted nodes is expected to emit 1 + E(w) tokens, where E(w) sums up the w
largest chances that the target accepts a node, and takes t(w) seconds. The drafter's whole tree is
offered, and the round verifies the w best nodes of it, for the w with the largest

    sum over running rows of (1 + E(w)) / t(w)

w = 0 is plain decoding, so a drafter that is wrong costs the time of its draft. The widths are a
static ladder, one program for each; the choice among them is data.

The chances are learnt from the emitted tokens, which judge all that was offered, verified or not:
a drafter that was left out is taken up again as soon as it would have been right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from jspec import tree as trees
from jspec.admission import admit, check_tree
from jspec.arguments import check_integer
from jspec.base import Feedback, Frame, Output, PyTree, Tree, WidthChoice
from jspec.costs import CostCurve
from jspec.drafters.ensemble.members import Offer, own_view
from jspec.drafters.growth.calibration import (
    AcceptanceModel,
    among_siblings,
    features,
    outcomes,
)
from jspec.drafters.growth.union import check_deterministic
from jspec.errors import InputError
from jspec.protocols import Drafter, Verifier
from jspec.verify.schemes import COUPLED
from jspec.widths import kept_nodes

_TRUST_PRIOR = 8.0
"""The expected tokens that a trust of 1 counts for at the start."""
_TRUST_DECAY = 0.98
"""The share of what was seen that a round leaves: the last 50 rounds count."""


@struct.dataclass
class AdaptiveParams:
    """The weights of the drafter, and the time that rounds take."""

    inner: PyTree
    costs: CostCurve


@struct.dataclass
class Trust:
    """How many tokens were accepted at each width, against how many were expected."""

    accepted: Float[Array, " W"]
    expected: Float[Array, " W"]

    @staticmethod
    def init(num_widths: int) -> "Trust":
        some = jnp.full(num_widths, _TRUST_PRIOR, jnp.float32)
        return Trust(some, some)

    @property
    def factor(self) -> Float[Array, " W"]:
        """The factor that an expectation is to be multiplied with."""
        return self.accepted / self.expected


@struct.dataclass
class Offered:
    """The tree of a round, as its drafter offered it."""

    tree: Tree
    """With calibrated values."""
    probs: Float[Array, "B N"]
    """The estimated probability of each node given that its parent is accepted."""
    buckets: Int[Array, "B N"]
    expected: Float[Array, "B W"]
    """The tokens expected to be accepted at each width, before `Trust`."""


@struct.dataclass
class AdaptiveState:
    """The drafter's memory, and what is learnt of its chances by all rows together."""

    inner: PyTree
    acceptance: AcceptanceModel
    trust: Trust
    slots: Int[Array, ""]
    offered: Offered | None


@dataclass(frozen=True)
class Adaptive:
    """Drafts the tree of its drafter, and has as much of it verified as pays.

    Make it with `adaptive`. Its params are an `AdaptiveParams`.
    """

    drafter: Drafter
    widths: tuple[int, ...]

    def __post_init__(self):
        if isinstance(self.drafter, type) or not isinstance(self.drafter, Drafter):
            raise InputError(
                f"drafter is {self.drafter!r:.80}; pass an instance such as jspec.PromptLookup()"
            )
        if self.verifier not in (None, COUPLED.verifier):
            raise InputError(
                f"drafter is {self.drafter!r:.80}, whose draws have a verifier of their own: what "
                "is left of them would not be lossless; give it scheme=jspec.schemes.COUPLED"
            )
        for width in self.widths:
            check_integer("a width", width, 0, None)
        if not self.widths or tuple(sorted(set(self.widths))) != self.widths:
            raise InputError(f"widths is {self.widths}; give rising numbers of drafted nodes")

    @property
    def verifier(self) -> Verifier | None:
        """The drafter's own."""
        return getattr(self.drafter, "verifier", None)

    @property
    def context(self) -> int | None:
        """The longest row that the drafter can read, in tokens; None if there is no bound."""
        return getattr(self.drafter, "context", None)

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> AdaptiveState:
        if earlier is not None and not (
            isinstance(earlier, AdaptiveState)
            and earlier.trust.expected.shape == (len(self.widths),)
        ):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and a drafter with "
                f"{len(self.widths)} widths keeps an AdaptiveState for as many; pass the state of "
                "a call with the same drafter"
            )
        return AdaptiveState(
            inner=self.drafter.init(batch, slots, None if earlier is None else earlier.inner),
            acceptance=AcceptanceModel.init(1) if earlier is None else earlier.acceptance,
            trust=Trust.init(len(self.widths)) if earlier is None else earlier.trust,
            slots=jnp.int32(slots),
            offered=None,
        )

    def prefill(
        self,
        params: AdaptiveParams,
        state: AdaptiveState,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> AdaptiveState:
        _check_params(params)
        inner = self.drafter.prefill(params.inner, state.inner, prompt, lengths, output)
        return replace(state, inner=inner)

    def draft(
        self, params: AdaptiveParams, state: AdaptiveState, frame: Frame
    ) -> tuple[Tree, AdaptiveState]:
        """The drafter's tree with calibrated values, and the choice of a width."""
        tree, inner = self.drafter.draft(params.inner, state.inner, frame)
        check_tree(type(self.drafter).__name__, tree, len(frame.root))
        check_deterministic(tree)
        tree = replace(admit(tree, frame.root), choice=None)
        widths = self._possible(tree)
        prior, bucket = features(tree, trees.depths(tree))
        scores = state.acceptance.scores(prior[..., None], bucket[..., None])
        probs = among_siblings(tree.parents, tree.valid, scores)
        tree = replace(tree, value=trees.along(tree.parents, probs, jnp.multiply, tree.depth))

        hope = jnp.where(tree.valid, tree.value, 0.0).at[:, 0].set(0.0)
        # The largest first, behind them the root's zero.
        total = jnp.cumsum(-jnp.sort(-hope, axis=1), axis=1)
        expected = jnp.stack(
            [total[:, width - 1] if width else jnp.zeros_like(total[:, 0]) for width in widths],
            axis=1,
        )
        trusted = 1 + state.trust.factor * expected
        tokens = jnp.where(frame.done[:, None], 0.0, trusted).sum(0)
        seconds = params.costs.at(widths, state.slots)
        choice = WidthChoice(
            index=jnp.argmax(tokens / seconds).astype(jnp.int32),
            expected_tokens=tokens,
            seconds=seconds,
            widths=widths,
        )
        offered = Offered(tree, probs, bucket, expected)
        return replace(tree, choice=choice), replace(state, inner=inner, offered=offered)

    def update(
        self, params: AdaptiveParams, state: AdaptiveState, feedback: Feedback
    ) -> AdaptiveState:
        offered = state.offered
        assert offered is not None, "what is updated was drafted"
        tree = offered.tree
        num_drafted = feedback.tree.tokens.shape[1] - 1
        own = own_view(_offer(tree, num_drafted), feedback, others=False)
        depths = trees.depths(tree)
        tried, taken = outcomes(tree.tokens, tree.parents, tree.valid, depths, own)
        acceptance = state.acceptance.learn(
            offered.buckets[..., None], offered.probs, tried, taken
        )
        return AdaptiveState(
            inner=self.drafter.update(params.inner, state.inner, own),
            acceptance=acceptance,
            trust=self._judged(state.trust, offered, num_drafted, own),
            slots=state.slots,
            offered=None,
        )

    def _possible(self, tree: Tree) -> tuple[int, ...]:
        """The widths, no wider than the tree; as many as there are."""
        most = tree.tokens.shape[1] - 1
        if self.widths[-1] > most:
            raise InputError(
                f"widths is {self.widths} and {type(self.drafter).__name__} drafts {most} nodes; "
                f"give widths of {most} or less"
            )
        return self.widths

    def _judged(
        self, trust: Trust, offered: Offered, num_drafted: int, own: Feedback
    ) -> Trust:
        """The trust after a round, which tells of its own width and of all that are narrower."""
        lanes = jnp.arange(own.verdict.path.shape[1])
        ran = own.counts > 0
        on_path = (lanes > 0) & (lanes < own.verdict.counts[:, None]) & ran[:, None]
        tree = offered.tree
        told, accepted = [], []
        for width in self.widths:
            told.append(width <= num_drafted)
            if width > num_drafted:
                accepted.append(jnp.float32(0))
                continue
            kept = kept_nodes(tree, width)
            among = (own.verdict.path[:, :, None] == kept[:, None, :]).any(-1)
            accepted.append((on_path & among).sum().astype(jnp.float32))
        told = jnp.array(told)
        expected = jnp.where(ran[:, None], offered.expected, 0.0).sum(0)
        decay = jnp.where(told, _TRUST_DECAY, 1.0)
        return Trust(
            accepted=_TRUST_PRIOR * (1 - decay) + decay * trust.accepted + jnp.stack(accepted),
            expected=_TRUST_PRIOR * (1 - decay)
            + decay * trust.expected
            + jnp.where(told, expected, 0.0),
        )


def _offer(tree: Tree, num_drafted: int) -> Offer:
    """The tree, and where its nodes stand in what is left of it."""
    size = tree.tokens.shape[1]
    if num_drafted >= size - 1:
        number = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), tree.tokens.shape)
        return Offer(tree, number)
    kept = trees.best_nodes(tree, num_drafted)
    at = (kept[:, None, :] == jnp.arange(size)[None, :, None]) & True
    place = jnp.where(at.any(-1), at.argmax(-1), kept.shape[1]).astype(jnp.int32)
    return Offer(tree, place)


def _check_params(params: PyTree) -> None:
    if not isinstance(params, AdaptiveParams):
        raise InputError(
            f"drafter_params is a {type(params).__name__} and a drafter that chooses its widths "
            "needs costs beside the weights; pass jspec.AdaptiveParams(weights, costs)"
        )


def adaptive(drafter: Drafter, widths: Sequence[int]) -> Adaptive:
    """The drafter, with the width of every round chosen by worth and cost."""
    return Adaptive(drafter, tuple(widths))
