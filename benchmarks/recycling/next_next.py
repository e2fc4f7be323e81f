"""LogitSpec's drafts (Liu et al. 2025), a row beside Token Recycling.

Axes besides those of `jspec.types`: C, lanes of a tree; D, tokens of a lane.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from jspec.arrays.top_k import top_k
from jspec.drafters.growth.prefix_vote import top_prefixes
from jspec.drafters.retrieval.prompt_lookup import TextState
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree

MATCH, AHEAD = 3, 6
"""Tokens of the longest match, and of what is read behind it, as in the authors' code."""


@struct.dataclass
class LogitSpecState:
    """The text of each row, and the guesses at the token behind the root."""

    text: TextState
    guesses: Int[Array, "B k"]
    """The likeliest tokens at the root's own place, the first of which the root is in greedy
    decoding: what else was likely there often comes next."""


@dataclass(frozen=True)
class LogitSpec:
    """Drafts what the last logits say of the next token but one, and what followed both before.

    Liu et al. 2025, "LogitSpec: Accelerating Retrieval-based Speculative Decoding via Next Next
    Token Speculation", arXiv 2507.01449, section 3. The tree has a lane for what followed the
    text's last tokens earlier (the longest match of at most 3), and one for each of the likeliest
    tokens of the last logits: this token, and what followed the root and it. Likely ones have
    longer lanes: 4 tokens up to rank 8, 3 up to 32, 1 beyond. Of equally long matches the one with
    most tokens behind it counts, and of these the last.

    It differs from the authors' code in two points: equal paths are nodes once, and the root is
    part of the text that is searched.

    Args:
        vocab_size: V of the target.
        num_speculative_tokens: drafted nodes; 63 is published, 64 with the root.
    """

    vocab_size: int
    num_speculative_tokens: int = 63

    @property
    def num_guesses(self) -> int:
        """Guesses that are read, the root itself among them."""
        return min(self.num_speculative_tokens + 1, self.vocab_size)

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return AHEAD

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> LogitSpecState:
        """An empty text: the memory is the row's own."""
        del earlier
        guesses = jnp.zeros((batch, self.num_guesses), jnp.int32)
        return LogitSpecState(TextState.empty(batch, capacity), guesses)

    def prefill(self, params: PyTree, state: LogitSpecState, chunk: PromptChunk) -> LogitSpecState:
        """The text with a chunk of the prompt, and the guesses of its last logits."""
        del params
        last = jnp.maximum(chunk.counts - 1, 0)
        read = (chunk.counts > 0)[:, None]
        guesses = jnp.where(read, self._likeliest(chunk.output.logits, last), state.guesses)
        return LogitSpecState(state.text.read(chunk), guesses)

    def draft(self, params: PyTree, state: LogitSpecState, frame: Frame) -> tuple[Tree, None]:
        """The lanes' prefixes, lane by lane as far as the nodes go."""
        del params
        lanes, there = jax.vmap(self.lanes)(state.text.tokens, state.text.lengths, state.guesses)
        count = lanes.shape[1]
        # A lane goes before the next one whole: the fall along it is less than a lane's.
        weight = (count - jnp.arange(count, dtype=jnp.float32)) / count**2
        fall = 1 - jnp.arange(AHEAD, dtype=jnp.float32) / (2 * AHEAD * count)
        values = jnp.where(there, weight[None, :, None] * fall, 0.0)
        return top_prefixes(frame.root, lanes, values, self.num_speculative_tokens), None

    def lanes(
        self, text: Int[Array, " S"], length: Int[Array, ""], guesses: Int[Array, " k"]
    ) -> tuple[Int[Array, "C D"], Bool[Array, "C D"]]:
        """The tokens of each lane, and True at those that are drafted; of one row."""
        place, last = jnp.arange(text.shape[0], dtype=jnp.int32), length - 1
        alike, match = jnp.ones(text.shape, bool), jnp.zeros(text.shape, jnp.int32)
        for back in range(MATCH):
            wanted = text[jnp.maximum(last - back, 0)]
            alike &= (jnp.roll(text, back) == wanted) & (place >= back) & (last >= back)
            match += alike
        # Behind a guess: the guess itself, and before it what the root's match has.
        before = jnp.where(place > 0, jnp.roll(match, 1), 0)
        after = jnp.where(
            text[None] == guesses[:, None], 1 + jnp.minimum(before, MATCH - 1)[None], 0
        )
        matches = jnp.concatenate([match[None], after])
        left = jnp.clip(last - place, 0, AHEAD)
        score = (matches * (AHEAD + 1) + left) * text.shape[0] + place
        score = jnp.where((matches > 0) & (left > 0), score, -1)
        best, found = score.argmax(-1).astype(jnp.int32), score.max(-1) >= 0
        ahead = best[:, None] + 1 + jnp.arange(AHEAD, dtype=jnp.int32)
        behind = jnp.take(text, ahead, mode="clip")
        known = (ahead <= last) & found[:, None]
        rank = jnp.arange(len(guesses))
        longest = jnp.where(rank <= 8, 4, jnp.where(rank <= 32, 3, 1))
        guessed = jnp.concatenate([guesses[:, None], behind[1:, :-1]], axis=1)
        sure = jnp.concatenate([jnp.ones((len(guesses), 1), bool), known[1:, :-1]], axis=1)
        sure &= jnp.arange(AHEAD) < longest[:, None]
        # The root's own place in the guesses is no guess.
        sure &= (guesses != text[last])[:, None]
        tokens = jnp.concatenate([behind[:1], guessed])
        return tokens, jnp.concatenate([known[:1], sure])

    def update(
        self, params: PyTree, state: LogitSpecState, aux: None, feedback: Feedback
    ) -> LogitSpecState:
        """The text with what the round emitted, and the guesses of the logits that gave its end."""
        del params, aux
        path, counts = feedback.verdict.path, feedback.verdict.counts
        last = jnp.take_along_axis(path, counts[:, None] - 1, axis=1)[:, 0]
        guesses = self._likeliest(feedback.output.logits, last)
        goes_on = (feedback.counts > 0)[:, None]
        return replace(
            state,
            text=state.text.extend(feedback),
            guesses=jnp.where(goes_on, guesses, state.guesses),
        )

    def _likeliest(self, logits: Array, place: Int[Array, " B"]) -> Int[Array, "B k"]:
        rows = jnp.take_along_axis(logits, place[:, None, None], axis=1)[:, 0]
        return top_k(rows, self.num_guesses)[1].astype(jnp.int32)
