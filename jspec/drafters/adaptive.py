"""Chooses the width of every round by expected accepted tokens and cost, for any drafter.

A round of width w verifies w drafted nodes. It is expected to emit 1 + E(w) tokens, where E(w) sums
up the w largest probabilities that the target accepts a node, and it takes t(w) seconds. Of the
drafter's whole tree the w best nodes are verified, for the w with the largest

    geometric mean over the running rows of (1 + E(w)) / t(w)

By the largest sum of tokens, rows with poor drafts would wait in every round for the others, and at
the end the batch for them. w = 0 is plain decoding: a wrong drafter costs no more than its draft.
The widths are static (speculation-length buckets), with one program for each; the choice among them
is data, and so is t.

The probabilities are learnt from the emitted tokens, as those of a merge are. They judge all that
was offered, verified or not: a drafter that was left out is taken up again as soon as it would have
been right, and nothing has to be tried at a loss.

Drafting takes time too, whether or not the draft is verified: see `jspec.drafters.backoff`.

What the last rounds of a row accepted says more about its next one than a hundred rounds of other
text: beside the calibration that all rows share, each row has an offset that forgets in ten rounds.
At first, probabilities are taken to be smaller than the drafter says: a rejected wide round costs
more than an accepted one saves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec._xla import mesh_axes
from jspec.drafters.backoff import Backoff, absent, draft_unless, if_any_drafted, update_unless
from jspec.drafters.cost_curve import CostCurve
from jspec.drafters.ensemble.members import at_width, own_view
from jspec.drafters.growth.calibration import (
    AcceptanceModel,
    among_siblings,
    features,
    outcomes,
)
from jspec.drafters.growth.union import check_deterministic
from jspec.protocols import Drafter, Verifier
from jspec.round.packed import largest_together
from jspec.tree.sanitize import check_tree, sanitize
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree, WidthChoice
from jspec.verify.choice import takes_parts

_DOUBT = -1.0
"""The log odds by which probabilities are lowered at the start."""
_STEP_SIZE, _DECAY = 0.3, 0.9
"""How fast a row's offset follows what it accepts, and how much of it a round leaves."""
_PRIOR, _FADES = 16.0, 0.98
"""Drafted tokens that are taken to have been accepted as expected, and how much of the knowledge of
such tokens a round leaves."""


@struct.dataclass
class AdaptiveParams:
    """The params of a drafter that chooses its widths: its own, and the time that rounds take.

    Example:
        >>> import jspec
        >>> params = AdaptiveParams(None, jspec.CostCurve.of({1: 0.020, 8: 0.034}))
        >>> [round(seconds, 3) for seconds in params.costs.at([1, 8]).tolist()]
        [0.02, 0.034]
    """

    drafter: PyTree
    """The params of the drafter itself; None if it has none."""
    costs: CostCurve
    """Another curve of as many points compiles nothing."""


@struct.dataclass
class DraftEstimate:
    """The tree that a drafter drafted for a round, with the estimates of its acceptance."""

    tree: Tree
    buckets: Int[Array, "B N"]
    """The kind of proposal that each node is, see `calibration.features`."""
    probs: Float[Array, "B N"]
    """The estimated probability of each node given that its parent is accepted."""
    gains: Float[Array, "B R"]
    """E of each round that there may be, as the probabilities add up."""
    inner: PyTree
    """What the drafter gave beside its tree."""
    chosen: Int[Array, ""] | None = None
    """Which of the rounds was chosen."""
    in_backoff: Bool[Array, ""] | None = None
    """Whether the drafter was not asked, and all of this is zeros; None: it always is."""


@struct.dataclass
class AdaptiveState:
    """The drafter's memory, and a model of its probabilities that all rows have taught."""

    drafter: PyTree
    acceptance: AcceptanceModel
    offsets: Float[Array, " B"]
    """Log odds by which a row has been accepting more than the model says."""
    capacity: Int[Array, ""]
    """Slots of a row's cache, by which the costs are looked up."""
    vocab_sizes: Int[Array, " B"]
    """V of the target, as the row's prompt told it: nodes of other tokens may not count as the
    best."""
    expected: Float[Array, ""]
    """The fading number of verified tokens that were expected to be accepted."""
    accepted: Float[Array, ""]
    """That of those that were."""
    backoff: Backoff

    @property
    def trust(self) -> Float[Array, ""]:
        """The share of what is expected that comes.

        Of estimates of equal quality, those are chosen that are too high.
        """
        return jnp.minimum(self.accepted / self.expected, 1.0)


@dataclass(frozen=True)
class Adaptive:
    """Drafts the tree of its drafter, of which as much is verified as pays.

    Make it with `adaptive`, which says what its fields are and what it refuses.
    """

    drafter: Drafter
    widths: tuple[int, ...]
    token_budget: float = 1.0
    drafting: bool | None = field(default=None, repr=False)
    """Whether the drafter is asked in every round, or in none; None: unless it backs off."""

    needs_costs: ClassVar = True

    def __post_init__(self):
        if isinstance(self.drafter, type) or not isinstance(self.drafter, Drafter):
            raise InputError(
                f"drafter is {self.drafter!r:.80}; pass an instance such as jspec.PromptLookup()"
            )
        if not takes_parts(self.drafter):
            raise InputError(
                f"drafter is {self.drafter!r:.80}, whose draws have a verifier of their own: a "
                "part of them would not be lossless; give it scheme=jspec.schemes.COUPLED"
            )
        for width in self.widths:
            check_integer("a width", width, 0, None)
        # Python's numbers, which hash and print alike wherever they come from.
        object.__setattr__(self, "widths", tuple(int(width) for width in self.widths))
        if not self.widths or tuple(sorted(set(self.widths))) != self.widths:
            raise InputError(
                f"widths is {self.widths}; give rising numbers of drafted nodes, such as (0, 3, 7)"
            )
        check_number("token_budget", self.token_budget, 0, 1)

    def sizes(self, root: Num[Array, " B"]) -> tuple[tuple[int, int], ...]:
        """The (width, tokens) of each round that there may be, the latter of all rows together.

        Args:
            root: the last tokens of the rows, of which only the number is read, and whether they
                lie on several devices: there each row has its own width, as if `token_budget` was
                1.

        Example:
            >>> import jspec
            >>> drafter = jspec.adaptive(jspec.PromptLookup(), widths=(0, 3, 7), token_budget=0.25)
            >>> drafter.sizes(jnp.zeros(1)), drafter.sizes(jnp.zeros(8))
            (((0, 1), (3, 4), (7, 8)), ((0, 2), (0, 8), (3, 8), (7, 16)))
        """
        batch = len(root)
        # 0.07 of 100 rows are 7, and 7.000000000000001 in floats.
        part = max(ceil(round(self.token_budget * batch, 6)), 1)
        rows = batch if mesh_axes.rows_are_split(root) else part
        narrowest = self.widths[0]
        # Whatever is drafted, there is a round in which all rows have room.
        sizes = {(narrowest, batch * (1 + narrowest))}
        return tuple(sorted(sizes | {(width, rows * (1 + width)) for width in self.widths}))

    @property
    def verifier(self) -> Verifier | None:
        """The drafter's own."""
        return getattr(self.drafter, "verifier", None)

    @property
    def context(self) -> int | None:
        """The longest row that the drafter can read, in tokens; None if there is no bound."""
        return getattr(self.drafter, "context", None)

    @property
    def follows_text(self) -> bool:
        """Whether back-offs leave no gap in the drafter's memory."""
        return getattr(self.drafter, "follows_text", False)

    @property
    def is_plain(self) -> bool:
        """Whether plain decoding is the only choice."""
        return self.widths[-1] == 0

    @property
    def may_back_off(self) -> bool:
        """Whether it ever backs off: where plain decoding is no choice, that would gain nothing."""
        return self.widths[0] == 0 and not self.is_plain

    def narrowest(self) -> "Adaptive":
        """The same drafter, whose rounds have the narrowest of its widths alone.

        It goes on with the same memory and the same states, from round to round. Its program is
        a fraction of that of all widths: one for the time in which that is compiled. Where the
        narrowest width is plain decoding, nothing is drafted; the drafter learns all the same.

        Example:
            >>> import jspec
            >>> jspec.adaptive(jspec.PromptLookup(), widths=(0, 3, 7)).narrowest().widths
            (0,)
        """
        return replace(self, widths=self.widths[:1])

    @property
    def turns(self) -> tuple[tuple["Adaptive", Callable[[AdaptiveState], Bool[Array, ""]]], ...]:
        """A drafter for back-offs and one for all other rounds, and when each has its turn.

        Empty where there are no back-offs. Together they draft as this one does.
        """
        if not self.may_back_off:
            return ()
        backed_off = replace(self, widths=self.widths[:1], drafting=False)
        return (
            (backed_off, lambda state: ~state.backoff.over),
            (replace(self, drafting=True), lambda state: state.backoff.over),
        )

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> AdaptiveState:
        if earlier is not None and not isinstance(earlier, AdaptiveState):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and a drafter that chooses its "
                "widths keeps an AdaptiveState; pass the state of a call with the same drafter"
            )
        fresh = AcceptanceModel.init(1)
        doubting = replace(fresh, bias=fresh.bias.at[0].set(_DOUBT))
        return AdaptiveState(
            drafter=self.drafter.init(
                batch, capacity, None if earlier is None else earlier.drafter
            ),
            acceptance=doubting if earlier is None else earlier.acceptance,
            offsets=jnp.zeros(batch, jnp.float32),
            capacity=jnp.int32(capacity),
            vocab_sizes=jnp.zeros(batch, jnp.int32),
            expected=jnp.float32(_PRIOR) if earlier is None else earlier.expected,
            accepted=jnp.float32(_PRIOR) if earlier is None else earlier.accepted,
            backoff=Backoff.init() if earlier is None else earlier.backoff,
        )

    def prefill(self, params: PyTree, state: AdaptiveState, chunk: PromptChunk) -> AdaptiveState:
        _check_params(params)
        known = self.drafter.prefill(params.drafter, state.drafter, chunk)
        vocab_sizes = jnp.full_like(state.vocab_sizes, chunk.output.logits.shape[-1])
        return replace(state, drafter=known, vocab_sizes=vocab_sizes)

    def draft(
        self, params: AdaptiveParams, state: AdaptiveState, frame: Frame
    ) -> tuple[Tree, DraftEstimate | None]:
        """The drafter's tree with calibrated values, and the choice of a width."""
        _check_params(params)
        # What is traced once serves all.
        estimate = partial(_estimated_draft, replace(self, drafting=None), params, state, frame)
        backed_off, in_backoff = self.is_plain or self.drafting is False, None
        if backed_off:
            estimated = absent(estimate)
        elif self.drafting or not self.may_back_off:
            estimated = estimate()
        else:
            # All that reads the draft goes with it: in a back-off a round shall be plain decoding.
            in_backoff = ~state.backoff.over
            estimated = draft_unless(in_backoff, estimate, state.drafter, frame)
        choice = self._choose(state.trust * estimated.gains, params.costs, state.capacity, frame)
        if in_backoff is not None:
            choice = replace(choice, index=jnp.where(in_backoff, 0, choice.index))
        aux = None if backed_off else replace(estimated, chosen=choice.index, in_backoff=in_backoff)
        return replace(estimated.tree, choice=choice), aux

    def update(
        self,
        params: AdaptiveParams,
        state: AdaptiveState,
        aux: DraftEstimate | None,
        feedback: Feedback,
    ) -> AdaptiveState:
        # Who is asked in every round learns from every round.
        if self.drafting is False or (self.may_back_off and not self.drafting):
            feedback = replace(
                feedback, skip_expensive_updates=state.backoff.skip_expensive_updates
            )
        # A round without drafted nodes shows nothing: what was learnt of others fades.
        shown = replace(
            state,
            offsets=_DECAY * state.offsets,
            acceptance=state.acceptance.after_nothing(),
            expected=_FADES * state.expected + (1 - _FADES) * _PRIOR,
            accepted=_FADES * state.accepted + (1 - _FADES) * _PRIOR,
        )
        if aux is None:
            return replace(
                shown,
                drafter=self.drafter.update(params.drafter, state.drafter, None, feedback),
                backoff=state.backoff.count_down() if self.drafting is False else state.backoff,
            )
        tree, width = aux.tree, feedback.tree.tokens.shape[1] - 1
        own = own_view(at_width(tree, width), feedback, others=False)

        def learnt() -> tuple[AcceptanceModel, Float[Array, " B"]]:
            depths = trees.depths(tree)
            tried, taken = outcomes(tree.tokens, tree.parents, tree.valid, depths, own)
            # A row whose logits are no numbers learns nothing.
            probs = jnp.where(jnp.isfinite(aux.probs), aux.probs, 0.0)
            surplus = jnp.where(tried, taken.astype(jnp.float32) - probs, 0.0).sum(-1)
            return state.acceptance.learn(aux.buckets[..., None], aux.probs, tried, taken), surplus

        acceptance, surplus = if_any_drafted(
            tree.valid, learnt, (shown.acceptance, jnp.zeros_like(state.offsets))
        )
        shown = replace(
            shown,
            offsets=shown.offsets + _STEP_SIZE * surplus,
            drafter=update_unless(
                None if width else aux.in_backoff,
                *(self.drafter, params.drafter, state.drafter, aux.inner, own, feedback),
            ),
            acceptance=acceptance,
        )
        if width:
            ran, gain = feedback.counts > 0, aux.gains[:, aux.chosen]
            taken = feedback.counts.astype(jnp.float32) - 1
            shown = replace(
                shown,
                expected=shown.expected + jnp.where(ran, gain, 0.0).sum(),
                accepted=shown.accepted + jnp.where(ran, taken, 0.0).sum(),
            )
        if not self.may_back_off:
            return shown
        return replace(shown, backoff=self._backoff_after(params.costs, state, aux, feedback))

    def _backoff_after(
        self, costs: CostCurve, state: AdaptiveState, aux: DraftEstimate, feedback: Feedback
    ) -> Backoff:
        """The back-off after a round, by what its draft saved."""
        ran, counts = feedback.counts > 0, feedback.counts.astype(jnp.float32)
        running = ran.sum(dtype=jnp.int32)
        seconds, fits = self._seconds(costs, state.capacity, feedback.counts, running)
        # The narrowest round that there was room in, with a draft and without.
        drafted = seconds[jnp.argmax(fits)]
        undrafted = costs.without_draft(state.capacity)
        drafting = costs.at([len(ran) * (1 + self.widths[0])], state.capacity)[0] - undrafted
        plain = drafted - drafting
        rows = jnp.maximum(running, 1).astype(jnp.float32)
        gain = aux.gains[:, aux.chosen]
        expected = jnp.where(ran, 1 + state.trust * gain, 0.0).sum() / rows
        # What one row's round has really given says little of its draft, the mean of many says
        # more: a refused draft costs many times what drafting does.
        tokens = expected + (1 - 1 / rows) * (counts.sum() / rows - expected)
        return state.backoff.after(tokens * plain - seconds[aux.chosen], drafting)

    def _choose(
        self, gains: Float[Array, "B R"], costs: CostCurve, capacity: Int[Array, ""], frame: Frame
    ) -> WidthChoice:
        """The round in which the rows are fastest."""
        widths, tokens = zip(*self.sizes(frame.root), strict=True)
        running = jnp.sum(~frame.done, dtype=jnp.int32)

        def of_running(values: Float[Array, "B R"]) -> Float[Array, " R"]:
            return jnp.where(frame.done[:, None], 0.0, values).sum(0)

        count = jnp.maximum(running, 1).astype(jnp.float32)
        seconds, fits = self._seconds(costs, capacity, frame.root, running)
        speeds = of_running(jnp.log1p(gains)) / count - jnp.log(seconds)
        return WidthChoice(
            index=jnp.argmax(jnp.where(fits, speeds, -jnp.inf)).astype(jnp.int32),
            expected_tokens=of_running(1 + gains),
            seconds=seconds,
            widths=widths,
            tokens=None if widths == self.widths else tokens,
        )

    def _seconds(
        self,
        costs: CostCurve,
        capacity: Int[Array, ""],
        root: Num[Array, " B"],
        running: Int[Array, ""],
    ) -> tuple[Float[Array, " R"], Bool[Array, " R"]]:
        """The time of each round, and whether it has room for the rows that are running."""
        tokens = [tokens for _, tokens in self.sizes(root)]
        return costs.at(tokens, capacity), jnp.array(tokens) >= running


@partial(jax.jit, static_argnums=0, inline=True)
def _estimated_draft(
    drafter: Adaptive, params: AdaptiveParams, state: AdaptiveState, frame: Frame
) -> DraftEstimate:
    """The tree of a drafter, with what is expected of it."""
    name = type(drafter.drafter).__name__
    tree, inner = drafter.drafter.draft(params.drafter, state.drafter, frame)
    check_tree(name, tree, len(frame.root))
    check_deterministic(tree)
    if drafter.widths[-1] > (most := tree.tokens.shape[1] - 1):
        raise InputError(
            f"widths is {drafter.widths} and {name} drafts {most} nodes; give widths of at most "
            f"{most}"
        )
    sanitized = sanitize(
        tree, frame.root, state.vocab_sizes.max(), frame.grammar, frame.max_draft_tokens
    )
    tree = replace(sanitized, choice=None)
    prior, buckets = features(tree, trees.depths(tree))
    scores = state.acceptance.scores(prior[..., None], buckets[..., None])
    probs = among_siblings(tree.parents, tree.valid, scores + state.offsets[:, None])
    value = trees.path_probabilities(tree.parents, probs, tree.depth)
    # What an ended row drafts takes no room from the others.
    there = tree.valid & ~frame.done[:, None]
    probabilities = jnp.where(there, value, 0.0).at[:, 0].set(0.0)
    best = -jnp.sort(-probabilities, axis=1)
    running = jnp.sum(~frame.done, dtype=jnp.int32)
    gains = [
        _together(best[:, :width], tokens, running).sum(-1)
        for width, tokens in drafter.sizes(frame.root)
    ]
    return DraftEstimate(
        replace(tree, value=value), buckets, probs, jnp.stack(gains, axis=-1), inner
    )


def _check_params(params: PyTree) -> None:
    """Raises InputError unless they are those of a drafter that chooses its widths."""
    if not isinstance(params, AdaptiveParams):
        raise InputError(
            f"drafter_params is a {type(params).__name__} and a drafter that chooses its widths "
            "needs costs beside its own; pass jspec.AdaptiveParams(params, costs)"
        )
    if not isinstance(params.costs, CostCurve):
        raise InputError(
            f"costs is {params.costs!r:.80}; pass a jspec.CostCurve, such as "
            "jspec.CostCurve.of({tokens: seconds})"
        )


def _together(
    probabilities: Float[Array, "B w"], tokens: int, running: Int[Array, ""]
) -> Float[Array, "B w"]:
    """The largest probabilities of all rows that there is room for, and 0 in the place of the
    others.
    """
    if tokens >= len(probabilities) + probabilities.size:
        return probabilities
    return jnp.where(
        largest_together(probabilities, probabilities > 0, tokens - running), probabilities, 0.0
    )


def adaptive(drafter: Drafter, widths: Sequence[int], token_budget: float = 1.0) -> Adaptive:
    """Makes a drafter whose rounds have the width of the most expected tokens for their time.

    Each round verifies those nodes of the drafter's tree that are likeliest to be accepted, as many
    as make the most tokens for their time. The tokens stay those of plain decoding. jspec's own.

    Its `drafter_params` are an `AdaptiveParams`: the drafter's own, and a `CostCurve`, which
    `jspec.costs.measure` measures. Every width is a program of its own inside the loop: a few, far
    apart, are as good as many.

    Args:
        drafter: of deterministic proposals, as members of `jspec.merge` are.
        widths: rising numbers of drafted nodes that a round may verify of a row; 0 is plain
            decoding.
        token_budget: the tokens that a round verifies (vLLM's `max_num_batched_tokens`), as a
            fraction of those of all rows at its width: those of so many rows, rounded up and at
            least one. The nodes that are likeliest to be accepted are taken, in whichever row they
            stand. 1: each row has as many as the others.

    Raises:
        InputError: if the drafter draws by a rule of its own, or the widths do not rise. While a
            call is traced: if the drafter has fewer nodes than the largest width.

    Example:
        >>> import jspec
        >>> jspec.adaptive(jspec.Suffix(num_speculative_tokens=15), widths=(0, 3, 7, 15)).widths
        (0, 3, 7, 15)
    """
    if not isinstance(widths, Iterable):
        raise InputError(
            f"widths is {widths!r:.80}; give rising numbers of drafted nodes, such as (0, 3, 7)"
        )
    return Adaptive(drafter, tuple(widths), token_budget)
