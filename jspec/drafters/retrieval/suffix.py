"""Suffix decoding: what followed the longest endings of the text when they stood somewhere before.

Of the family of SAM-Decoding (Hu et al. 2024) and SuffixDecoding (Oliaro et al. 2024).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Feedback, Frame, Output, PyTree, Tree
from jspec.drafters.growth.prefix_vote import top_prefixes
from jspec.drafters.retrieval.prompt_lookup import History
from jspec.errors import InputError
from jspec.ragged import append

_GAP = -1
"""Where no text is: between past outputs, and before the first."""
_MOST = 128
"""Tokens of a match, places, levels: each costs steps that are compiled one by one."""
_NOTHING = -2
"""What the text ends with before its first token; equal to nothing."""


@struct.dataclass
class SuffixState:
    """What was said: by each row in this call, and by all rows that ended."""

    history: History
    openings: Int[Array, " B"]
    """Where each row's output begins."""
    kept: Bool[Array, " B"]
    """Rows whose output is among the past ones already."""
    past: Int[Array, " M"]
    """Past outputs, the newest at the end, each behind a gap."""


@dataclass(frozen=True)
class Suffix:
    """Drafts a tree of the continuations of all places whose text ends like the row's does now.

    Places are found in the row's prompt and output and in the outputs of rows that ended, of this
    call and, with `drafter_state`, of earlier ones. The `places` of longest match vote, at equal
    length the newest: those of the longest match share the chance that such a match is right, the
    next ones that of theirs where the longer are wrong, and so on. As a match that proves right
    has grown, a long one is trusted far; at most `offset + factor * match` tokens. A
    continuation that reaches the end of the row's own text goes on with itself, as in LZ77, so
    that a loop is drafted to any depth.

    The search compares every place with the last `max_match` tokens: exact and without an index,
    which would cost more at these sizes. Memory: 4 bytes for each token of `capacity`, which all
    rows share, and of the rows' own texts.

    Args:
        num_speculative_tokens: drafted nodes.
        max_depth: longest path.
        min_match: shortest match that is drafted from.
        max_match: longest match that is told from longer ones.
        factor: how fast the longest path grows with the match; SAM-Decoding has 4, and Arctic's
            SuffixDecoding 1.
        offset: and where it starts; SAM-Decoding has 1, Arctic 0.
        threshold: nodes of no more worth are not drafted. Arctic has 0.1; a node left out saves
            nothing but its share in a mixture.
        capacity: tokens of past outputs, all rows together, the oldest forgotten first; 0: only
            the row's own text is searched.
        num_matches: most places that vote.

    Raises:
        InputError: if an option is out of range.
    """

    num_speculative_tokens: int = 16
    max_depth: int = 24
    min_match: int = 1
    max_match: int = 16
    factor: float = 4.0
    offset: float = 1.0
    threshold: float = 0.0
    capacity: int = 8192
    num_matches: int = 16

    def __post_init__(self):
        for name in ("num_speculative_tokens", "max_depth", "num_matches"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"{name} is {value}; choose at least 1")
        for name in ("max_depth", "max_match", "num_matches"):
            if (value := getattr(self, name)) > _MOST:
                raise InputError(f"{name} is {value}; choose at most {_MOST}")
        if not 1 <= self.min_match <= self.max_match:
            raise InputError(
                f"min_match is {self.min_match} and max_match is {self.max_match}; "
                "choose 1 <= min <= max"
            )
        if not self.offset + self.factor * self.min_match >= 1 or not self.factor >= 0:
            raise InputError(
                f"factor is {self.factor} and offset is {self.offset}, which drafts nothing after "
                f"a match of {self.min_match}; choose factor >= 0 and "
                f"offset + factor * {self.min_match} >= 1"
            )
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold is {self.threshold}; choose 0 <= threshold < 1")
        if self.capacity < 0:
            raise InputError(f"capacity is {self.capacity}; keep 0 tokens or more")

    @cached_property
    def right(self) -> np.ndarray:
        """[match], 0 .. max_match: how often what followed a match of that length follows again."""
        # Fitted to greedy texts of the bundled model: 0.33, 0.51, 0.56, 0.65, 0.79, .., 0.92 at 16.
        match = np.arange(1, self.max_match + 1)
        return np.append(0, 1 - 0.7 / match**0.65).astype(np.float32)

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> SuffixState:
        if earlier is None:
            past = jnp.full(self.capacity, _GAP, jnp.int32)
        else:
            past = getattr(earlier, "past", None)
            shape, dtype = getattr(past, "shape", None), getattr(past, "dtype", None)
            if shape != (self.capacity,) or dtype != np.int32:
                raise InputError(
                    f"drafter_state holds past outputs of shape {shape} and dtype {dtype}, and "
                    f"this drafter's have {(self.capacity,)} of int32; pass the state of a "
                    "Suffix drafter with the same capacity"
                )
        return SuffixState(
            # One more than the cache: the last emitted token needs no slot there.
            history=History(
                tokens=jnp.zeros((batch, slots + 1), jnp.int32),
                lengths=jnp.zeros(batch, jnp.int32),
            ),
            openings=jnp.zeros(batch, jnp.int32),
            kept=jnp.zeros(batch, bool),
            past=jnp.asarray(past),
        )

    def prefill(
        self,
        params: PyTree,
        state: SuffixState,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> SuffixState:
        del params, output
        size = state.history.tokens.shape[1]
        known = prompt[:, :size]
        tokens = jnp.pad(known, ((0, 0), (0, size - known.shape[1])))
        return replace(state, history=History(tokens=tokens, lengths=lengths), openings=lengths)

    def draft(self, params: PyTree, state: SuffixState, frame: Frame) -> tuple[Tree, SuffixState]:
        del params
        texts, matches = self._matches(state)
        count = min(self.num_matches, texts.shape[1])
        # Newest first: among equals the first is taken.
        match, back = jax.lax.top_k(matches[:, ::-1].astype(jnp.float32), count)
        match, place = match.astype(jnp.int32), texts.shape[1] - 1 - back

        end = self.capacity + state.history.lengths[:, None, None]
        steps = jnp.arange(self.max_depth)
        start = place[..., None] + 1
        own = start > self.capacity
        ahead = start + jnp.where(own, steps % jnp.maximum(end + 1 - start, 1), steps)
        tokens = jnp.take_along_axis(texts[:, None], ahead, axis=2, mode="fill", fill_value=_GAP)
        there = jax.lax.cummin((tokens != _GAP).astype(jnp.int32), axis=2) > 0
        weights = self._shares(match)[..., None] * jnp.asarray(self._lasting)[match]
        weights = jnp.where(there, weights, 0)
        nodes = self.num_speculative_tokens
        return top_prefixes(frame.root, tokens, weights, nodes, self.threshold), state

    def update(self, params: PyTree, state: SuffixState, feedback: Feedback) -> SuffixState:
        del params
        texts = state.history
        state = replace(
            state,
            history=History(
                tokens=append(texts.tokens, texts.lengths, feedback.emitted, feedback.counts),
                lengths=texts.lengths + feedback.counts,
            ),
        )
        if not self.capacity:
            return state
        wrote = state.history.lengths > state.openings
        ended = feedback.done & ~state.kept & wrote
        past = jax.lax.cond(ended.any(), lambda: self._remember(state, ended), lambda: state.past)
        return replace(state, past=past, kept=feedback.done)

    def _matches(self, state: SuffixState) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
        """All text that a row may draft from, and how far it agrees up to each place with the
        row's end: 0 .. max_match, and 0 where nothing is to be drafted.
        """
        own, lengths = state.history.tokens, state.history.lengths[:, None]
        batch, size = own.shape
        past = jnp.broadcast_to(state.past, (batch, self.capacity))
        # The row's own text is the newest, and nothing is newer than its end.
        own = jnp.where(jnp.arange(size) < lengths, own, _GAP)
        texts = jnp.pad(past, ((0, 0), (0, 1)), constant_values=_GAP)
        texts = jnp.concatenate([texts, own], axis=1)
        width = texts.shape[1]
        padded = jnp.pad(texts, ((0, 0), (self.max_match - 1, 1)), constant_values=_GAP)
        alike = jnp.ones(texts.shape, bool)
        match = jnp.zeros(texts.shape, jnp.int32)
        for back in range(self.max_match):
            at = lengths - 1 - back
            tail = jnp.take_along_axis(own, jnp.maximum(at, 0), axis=1)
            tail = jnp.where(at >= 0, tail, _NOTHING)
            offset = self.max_match - 1 - back
            alike &= padded[:, offset : offset + width] == tail
            match += alike
        followed = padded[:, self.max_match :] != _GAP
        return texts, jnp.where(followed & (match >= self.min_match), match, 0)

    def _shares(self, match: Int[Array, "B C"]) -> Float[Array, "B C"]:
        """The chance that each place is the one to follow; at most 1 together."""
        right = jnp.asarray(self.right)[match]
        equal = (match[:, :, None] == match[:, None, :]).sum(-1)
        # The logarithm of "all longer matches are wrong"; each of equal ones has a part of it.
        wrong = jnp.log1p(-right) / equal
        longer = match[:, None, :] > match[:, :, None]
        return right / equal * jnp.exp(jnp.where(longer, wrong[:, None, :], 0).sum(-1))

    @cached_property
    def _lasting(self) -> np.ndarray:
        """[match, d]: the chance that a continuation whose first token was right is right for d
        more; 0 beyond the length that the match allows.
        """
        match = np.arange(self.max_match + 1)[:, None]
        steps = np.arange(self.max_depth)
        grown = np.minimum(match + steps, self.max_match)
        lasting = np.cumprod(np.where(steps > 0, self.right[grown], 1), axis=1)
        allowed = (match > 0) & (steps < np.floor(self.offset + self.factor * match))
        return np.where(allowed, lasting, 0).astype(np.float32)

    def _remember(self, state: SuffixState, ended: Bool[Array, " B"]) -> Int[Array, " M"]:
        """The past with the outputs of rows that ended, each behind a gap and a little of its
        prompt, by which the output's beginning is found.
        """
        tokens, lengths = state.history.tokens, state.history.lengths
        first = jnp.maximum(state.openings - self.max_match, 0)
        counts = jnp.where(ended, lengths - first, 0)
        taken = counts + ended
        total = taken.sum()
        older = jnp.arange(self.capacity) + total
        past = jnp.take(state.past, older, mode="fill", fill_value=_GAP)
        starts = self.capacity - total + jnp.cumsum(taken) - counts
        lanes = jnp.arange(tokens.shape[1]) - first[:, None]
        places = starts[:, None] + lanes
        inside = (lanes >= 0) & (lanes < counts[:, None]) & (places >= 0)
        return past.at[jnp.where(inside, places, self.capacity)].set(tokens, mode="drop")
