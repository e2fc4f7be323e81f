"""Suffix decoding: the tokens after earlier occurrences of the text's longest endings.

Of the family of SAM-Decoding (Hu et al. 2024) and SuffixDecoding (Oliaro et al. 2024).

Axes besides those of `jspec.types`: `searched` are the tokens that a row may draft from, `matches`
the places among them that vote, `depth` the levels of the tree.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from math import inf
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Integer, Number
from jspec._validate.options import check_fields
from jspec.arrays.top_k import largest
from jspec.drafters.growth.prefix_vote import top_prefixes
from jspec.drafters.retrieval.prompt_lookup import TextState, check_match
from jspec.protocols import Drafter
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree

_GAP = -1
"""The token between past outputs, and where there is no text."""
_NOTHING = -2
"""The token before a row's first; it equals no token and no gap."""
_MOST = 128
"""The bound of `max_match`, `num_matches` and `max_depth`, whose steps are compiled singly."""


@struct.dataclass
class SuffixState:
    """The text of each row in this call, and the outputs of all rows that ended."""

    text: TextState
    prompt_lengths: Int[Array, " B"]
    """The length of each row's prompt, at which its output begins."""
    archived: Bool[Array, " B"]
    """True for rows whose output is among the past ones already."""
    past: Int[Array, " capacity"]
    """Past outputs, the newest at the end, each behind a gap."""


@struct.dataclass
class Rollouts:
    """Each row's last output: params of `Suffix`.

    The tokens and lengths of an earlier `jspec.Result` fit, if the rows keep its order. Arrays of
    NumPy and of the device are the same program of `jspec.decode` and `stream`.
    """

    per_row: ClassVar[bool] = True
    tokens: Int[Array, "B T"]
    """The outputs without their prompts; entries at or beyond `lengths` are never read."""
    lengths: Int[Array, " B"]
    """The number of tokens; 0 for a row that has none."""


@dataclass(frozen=True)
class Suffix(Drafter):
    """Drafts a tree of the tokens that followed wherever the text had the same last tokens.

    Of the family of SAM-Decoding (Hu et al. 2024, arXiv 2411.10666) and SuffixDecoding (Oliaro et
    al. 2024, arXiv 2411.04975). In the order of the algorithm:

    1. Search. A row drafts from its prompt and output, and from the outputs of rows that ended, in
       this call and, with `drafter_state`, in earlier ones. At every place, the match is how many
       tokens up to there equal the last tokens of the row. All places are compared: that is exact,
       and at these sizes cheaper than an index.
    2. Select. The `num_matches` places with the longest matches vote; of equal ones the newest.
       In a rollout the same position counts as a token more, and of equals the nearest comes first.
    3. Continue. Each place votes for the tokens that follow it. Matches in the row's own text
       continue with themselves at its end, as in LZ77, so that a loop is drafted to any depth.
    4. Weigh. The longest matches come first: they are right with the measured rate of matches of
       that length. Shorter ones are right where all longer ones are wrong. The further tokens of a
       continuation are as sure as a match that has grown by the ones before.
    5. Grow. The nodes with the most weight make the tree.

    Params are None, or `jspec.Rollouts`: what each row wrote the last time, as in SPEC-RL (Liu et
    al. 2025, arXiv 2509.23232), here without its lenient rule. With the key and ids of that time
    the noise that decides is the same too, position by position, so that a policy that moved little
    draws most of its tokens again at any temperature.

    Memory: 4 bytes for each token of `capacity`, which all rows share, and of the rows' own texts.

    Args:
        num_speculative_tokens: drafted nodes.
        max_depth: most levels.
        min_match: shortest match to draft from, in tokens.
        max_match: largest match length that counts; longer matches count as this one.
        factor: levels drafted per matched token; a path has at most `offset + factor * match`
            tokens. SAM-Decoding has 4, Arctic's SuffixDecoding 1.
        offset: levels drafted in addition, whatever the match. SAM-Decoding has 1, Arctic 0.
        threshold: nodes of this probability or less are not drafted. Arctic has 0.1. A node left
            out saves nothing, but leaves its place to other drafters in `jspec.merge`.
        capacity: tokens of past outputs of all rows, oldest forgotten first; 0: the row's text.
        num_matches: most earlier places whose continuations are counted.

    Raises:
        InputError: if an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> drafter = jspec.Suffix(num_speculative_tokens=8, capacity=1024)
        >>> drafter.init(batch=2, capacity=64, earlier=None).past.shape
        (1024,)
    """

    num_speculative_tokens: Annotated[int, COUNT] = 16
    _: KW_ONLY
    max_depth: Annotated[int, Integer(1, _MOST)] = 24
    min_match: Annotated[int, Integer(1)] = 1
    max_match: Annotated[int, Integer(1, _MOST)] = 16
    factor: Annotated[float, Number(0, inf, below_high=True)] = 4.0
    offset: Annotated[float, Number(-inf, inf, above_low=True, below_high=True)] = 1.0
    threshold: Annotated[float, Number(0, 1, below_high=True)] = 0.0
    capacity: Annotated[int, Integer(0, 1 << 24)] = 8192
    num_matches: Annotated[int, Integer(1, _MOST)] = 16

    def __post_init__(self):
        check_fields(self)
        check_match(self.min_match, self.max_match)
        if self.offset + self.factor * self.min_match < 1:
            raise InputError(
                f"factor is {self.factor} and offset is {self.offset}, which drafts nothing after "
                f"a match of {self.min_match}; choose offset + factor * {self.min_match} >= 1"
            )

    @cached_property
    def hit_rate(self) -> Float[np.ndarray, " match"]:
        """The rate at which the token after a match of 0 .. max_match tokens follows again."""
        # Fitted to greedy texts of the bundled model: 0.33, 0.51, 0.56, 0.65, 0.79, .., 0.92 at 16.
        match = np.arange(1, self.max_match + 1)
        return np.append(0, 1 - 0.7 / match**0.65).astype(np.float32)

    @cached_property
    def survival(self) -> Float[np.ndarray, "match depth"]:
        """The rate at which a continuation whose first token is right is right for d more.

        Each right token makes the match longer. Beyond the length that the match allows it is 0.
        """
        match = np.arange(self.max_match + 1)[:, None]
        step = np.arange(self.max_depth)[None]
        grown = np.minimum(match + step, self.max_match)
        survival = np.cumprod(np.where(step > 0, self.hit_rate[grown], 1), axis=1)
        allowed = (match > 0) & (step < np.floor(self.offset + self.factor * match))
        return np.where(allowed, survival, 0).astype(np.float32)

    @property
    def _rollout(self) -> int:
        """The place of a rollout's first token."""
        return self.capacity + 1 + self.max_match

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> SuffixState:
        """Returns an empty text, and the past outputs of the earlier state."""
        past = jnp.full(self.capacity, _GAP, jnp.int32)
        if earlier is not None:
            self._check_state(earlier)
            past = jnp.asarray(earlier.past)
        return SuffixState(
            text=TextState.empty(batch, capacity),
            prompt_lengths=jnp.zeros(batch, jnp.int32),
            archived=jnp.zeros(batch, bool),
            past=past,
        )

    def prefill(self, params: PyTree, state: SuffixState, chunk: PromptChunk) -> SuffixState:
        """Returns the text with a chunk of the prompts; the past stays."""
        del params
        text = state.text.read(chunk)
        fresh = jnp.zeros_like(state.archived)
        return replace(state, text=text, prompt_lengths=text.lengths, archived=fresh)

    def draft(self, params: PyTree, state: SuffixState, frame: Frame) -> tuple[Tree, None]:
        """Drafts the tree by the five steps of the class's docstring."""
        self._check_state(state)
        _check_rollouts(params, len(frame.root))
        searched, match = self._search(state, params)
        text_start = searched.shape[1] - state.text.tokens.shape[1]
        match, place = self._select(match, self._same_position(state, params), text_start)
        tokens = self._continue(searched, place, state.text.lengths, text_start)
        valid = jax.lax.cummin((tokens != _GAP).astype(jnp.int32), axis=2) > 0
        weights = self._follow_probs(match)[..., None] * jnp.asarray(self.survival)[match]
        weights = jnp.where(valid, weights, 0.0)
        nodes = self.num_speculative_tokens
        return top_prefixes(frame.root, tokens, weights, nodes, self.threshold), None

    def update(
        self, params: PyTree, state: SuffixState, aux: None, feedback: Feedback
    ) -> SuffixState:
        """Returns the text with the emitted tokens; finished rows' outputs join the past."""
        del params, aux
        state = replace(state, text=state.text.extend(feedback))
        if not self.capacity:
            return state
        wrote = state.text.lengths > state.prompt_lengths
        ended = feedback.done & ~state.archived & wrote
        # Most rounds end no row: what the archive costs, they do not pay.
        past = jax.lax.cond(ended.any(), lambda: self._archive(state, ended), lambda: state.past)
        return replace(state, past=past, archived=feedback.done)

    def merged(self, states: Sequence[SuffixState]) -> SuffixState:
        """Returns the past of all replicas, of each as much of the newest as there is room for."""
        each = self.capacity // len(states)
        newest = jnp.stack([state.past for state in states])[:, self.capacity - each :]
        # What begins within an output does not follow what is before it.
        newest = newest.at[:, :1].set(_GAP).reshape(-1)
        past = jnp.pad(newest, (self.capacity - len(newest), 0), constant_values=_GAP)
        return replace(states[0], past=past)

    def _search(
        self, state: SuffixState, rollouts: Rollouts | None
    ) -> tuple[Int[Array, "B searched"], Int[Array, "B searched"]]:
        """Returns the searched tokens and the match at each place, 0 where none can be drafted."""
        text, lengths = state.text.tokens, state.text.lengths[:, None]
        batch, size = text.shape
        text = jnp.where(jnp.arange(size, dtype=jnp.int32)[None] < lengths, text, _GAP)
        past = jnp.broadcast_to(state.past[None], (batch, self.capacity))
        gap = jnp.full((batch, 1), _GAP, jnp.int32)
        earlier = () if rollouts is None else (self._rollouts(state, rollouts), gap)
        searched = jnp.concatenate([past, gap, *earlier, text], axis=1)

        width = searched.shape[1]
        padded = jnp.pad(searched, ((0, 0), (self.max_match - 1, 1)), constant_values=_GAP)
        alike = jnp.ones(searched.shape, bool)
        match = jnp.zeros(searched.shape, jnp.int32)
        for back in range(self.max_match):
            # Whether the token so far back from each place is the one so far back from the end.
            place = lengths - 1 - back
            token = jnp.take_along_axis(text, jnp.maximum(place, 0), axis=1)
            token = jnp.where(place >= 0, token, _NOTHING)
            first = self.max_match - 1 - back
            alike &= padded[:, first : first + width] == token
            match += alike.astype(jnp.int32)
        if rollouts is not None:
            lane = jnp.arange(width, dtype=jnp.int32)[None]
            same = lane == self._same_position(state, rollouts)
            match = jnp.where(same, jnp.minimum(match + 1, self.max_match), match)
        followed = padded[:, self.max_match :] != _GAP
        return searched, jnp.where(followed & (match >= self.min_match), match, 0)

    def _rollouts(self, state: SuffixState, rollouts: Rollouts) -> Int[Array, "B max_match+T"]:
        """Returns the last tokens of each row's prompt, and its rollout."""
        place = (
            jnp.arange(-self.max_match, 0, dtype=jnp.int32)[None] + state.prompt_lengths[:, None]
        )
        prompt = jnp.take_along_axis(state.text.tokens, jnp.maximum(place, 0), axis=1)
        lane = jnp.arange(rollouts.tokens.shape[1], dtype=jnp.int32)[None]
        inside = lane < rollouts.lengths[:, None]
        output = jnp.where(inside, rollouts.tokens.astype(jnp.int32), _GAP)
        return jnp.concatenate([jnp.where(place >= 0, prompt, _GAP), output], axis=1)

    def _same_position(
        self, state: SuffixState, rollouts: Rollouts | None
    ) -> Int[Array, "B 1"] | None:
        """Returns the place before the rollout's token for the drafted position."""
        if rollouts is None:
            return None
        count = state.text.lengths - state.prompt_lengths
        return (self._rollout + jnp.minimum(count, rollouts.tokens.shape[1]))[:, None] - 1

    def _select(
        self,
        match: Int[Array, "B searched"],
        same_position: Int[Array, "B 1"] | None,
        text_start: int,
    ) -> tuple[Int[Array, "B matches"], Int[Array, "B matches"]]:
        """Returns the (match, place) of the longest matches, the newest first among equals."""
        width = match.shape[1]
        # Backwards, since the first of equals is taken. As floats, since XLA sorts integers whole.
        count = min(self.num_matches, width)
        score = match.astype(jnp.float32)
        if same_position is not None:
            lane = jnp.arange(width, dtype=jnp.int32)[None]
            away = jnp.abs(lane - same_position).astype(jnp.float32)
            # Below 1, so that no match is passed; what is far away is like any other place.
            score += jnp.where((lane > self.capacity) & (lane < text_start), 1 / (2 + away), 0.0)
        best, back = largest(score[:, ::-1], count)
        return jnp.floor(best).astype(jnp.int32), width - 1 - back

    def _continue(
        self,
        searched: Int[Array, "B searched"],
        place: Int[Array, "B matches"],
        lengths: Int[Array, " B"],
        text_start: int,
    ) -> Int[Array, "B matches depth"]:
        """Returns the tokens that follow each place; from a gap on they mean nothing."""
        start = place[..., None] + 1
        step = jnp.arange(self.max_depth, dtype=jnp.int32)[None, None]
        # In the row's own text, the text between the place and the end repeats itself.
        period = jnp.maximum(text_start + lengths[:, None, None] - start, 1)
        ahead = start + jnp.where(start >= text_start, step % period, step)
        return jnp.take_along_axis(searched[:, None], ahead, axis=2, mode="fill", fill_value=_GAP)

    def _follow_probs(self, match: Int[Array, "B matches"]) -> Float[Array, "B matches"]:
        """Returns the probability that a place's continuation follows; at most 1 in all."""
        hit = jnp.asarray(self.hit_rate)[match]
        equal = (match[:, :, None] == match[:, None, :]).sum(-1).astype(jnp.float32)
        # In logarithms. Each of the n(l) places with a match of l has an equal part of 1 - h(l).
        missed = jnp.log1p(-hit) / equal
        longer = match[:, None, :] > match[:, :, None]
        return hit / equal * jnp.exp(jnp.where(longer, missed[:, None, :], 0.0).sum(-1))

    def _archive(self, state: SuffixState, ended: Bool[Array, " B"]) -> Int[Array, " capacity"]:
        """Returns the past with the outputs of rows that ended, for as many old tokens."""
        tokens, lengths = state.text.tokens, state.text.lengths
        first = jnp.maximum(state.prompt_lengths - self.max_match, 0)
        counts = jnp.where(ended, lengths - first, 0)
        sizes = counts + ended.astype(jnp.int32)
        total = sizes.sum(dtype=jnp.int32)
        older = jnp.arange(self.capacity, dtype=jnp.int32) + total
        past = jnp.take(state.past, older, mode="fill", fill_value=_GAP)
        starts = self.capacity - total + jnp.cumsum(sizes, dtype=jnp.int32) - counts
        lane = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - first[:, None]
        place = starts[:, None] + lane
        inside = (lane >= 0) & (lane < counts[:, None]) & (place >= 0)
        # What does not fit, or is not part of it, goes off the end.
        return past.at[jnp.where(inside, place, self.capacity)].set(tokens, mode="drop")

    def _check_state(self, state: PyTree) -> None:
        if not isinstance(state, SuffixState):
            fault = f"is a {type(state).__name__}"
        elif state.past.shape != (self.capacity,) or state.past.dtype != np.int32:
            fault = f"holds past outputs of shape {state.past.shape} and dtype {state.past.dtype}"
        else:
            return
        raise InputError(
            f"drafter_state {fault}, and this Suffix needs a SuffixState with past outputs of "
            f"{(self.capacity,)} and int32; pass the state of a Suffix with the same capacity"
        )


def _check_rollouts(params: PyTree, rows: int) -> None:
    if params is None:
        return
    if not isinstance(params, Rollouts):
        raise InputError(
            f"drafter_params is a {type(params).__name__}, and a Suffix takes None or "
            f"jspec.Rollouts(tokens [{rows}, T], lengths [{rows}])"
        )
    for name, array, layout in (
        ("tokens", params.tokens, f"[{rows}, T]"),
        ("lengths", params.lengths, f"[{rows}]"),
    ):
        shape: Any = getattr(array, "shape", ())
        fits = len(shape) == layout.count(",") + 1 and shape[0] == rows and 0 not in shape
        if not fits or not jnp.issubdtype(array.dtype, jnp.integer):
            kind = f"of shape {shape} and {array.dtype}" if shape else f"a {type(array).__name__}"
            raise InputError(
                f"the {name} of the rollouts are {kind}; pass integers {layout}, a row for each "
                "row of the batch"
            )
