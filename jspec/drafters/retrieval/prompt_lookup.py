"""Prompt lookup (Saxena 2023): the tokens after an earlier occurrence of the last few."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import Flag, Integer
from jspec._validate.options import check_fields
from jspec.arrays.ragged import append
from jspec.protocols import Drafter
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree


@struct.dataclass
class TextState:
    """The text of each row so far, prompt and output."""

    tokens: Int[Array, "B text"]
    """The tokens: one more than the cache has slots, as the last emitted needs none. Entries at
    or beyond `lengths` are never read."""
    lengths: Int[Array, " B"]

    @staticmethod
    def empty(batch: int, capacity: int) -> "TextState":
        """Returns an empty text, with room for what the cache can hold."""
        return TextState(
            tokens=jnp.zeros((batch, capacity + 1), jnp.int32), lengths=jnp.zeros(batch, jnp.int32)
        )

    def read(self, chunk: PromptChunk) -> "TextState":
        """Returns the text up to the end of a chunk of the prompt."""
        counts = chunk.read_lengths + 1
        return TextState(
            tokens=append(self.tokens, chunk.positions, chunk.tokens, counts),
            lengths=chunk.positions + counts,
        )

    def extend(self, feedback: Feedback) -> "TextState":
        """Returns the text and what a round emitted."""
        return TextState(
            tokens=append(self.tokens, self.lengths, feedback.emitted, feedback.counts),
            lengths=self.lengths + feedback.counts,
        )


@dataclass(frozen=True)
class PromptLookup(Drafter):
    """Drafts a chain of the tokens that followed the last ones earlier in the text.

    Saxena 2023, "Prompt Lookup Decoding". Among all earlier places, the one with the longest match
    decides; of equally long matches it is the first in the text.

    Args:
        num_speculative_tokens: tokens drafted after the match.
        max_match: longest n-gram to look for, in tokens (`prompt_lookup_max` in vLLM,
            `max_ngram_size` in the author's code).
        min_match: shortest n-gram to draft from (`prompt_lookup_min` in vLLM).
        whole: use only places followed by as many tokens as are drafted, as published; False also
            takes places near the end and drafts what there is (as `transformers` and vLLM do).
        latest: take the last of equally long matches in the text, not the first.

    Raises:
        InputError: if an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> drafter = jspec.PromptLookup(5, max_match=3)
        >>> drafter.init(batch=2, capacity=64, earlier=None).tokens.shape
        (2, 65)
    """

    num_speculative_tokens: Annotated[int, Integer(1)] = 10
    _: KW_ONLY
    max_match: Annotated[int, Integer(1)] = 3
    min_match: Annotated[int, Integer(1)] = 1
    whole: Annotated[bool, Flag()] = True
    latest: Annotated[bool, Flag()] = False

    follows_text: ClassVar = True

    def __post_init__(self):
        check_fields(self)
        check_match(self.min_match, self.max_match)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> TextState:
        """Returns an empty text. An earlier call's is ignored: the memory is the row's own text."""
        if earlier is not None:
            self._check_state(earlier)
        return TextState.empty(batch, capacity)

    def prefill(self, params: PyTree, state: TextState, chunk: PromptChunk) -> TextState:
        """Returns the text with a chunk of the prompt."""
        del params
        return state.read(chunk)

    def draft(self, params: PyTree, state: TextState, frame: Frame) -> tuple[Tree, None]:
        """Compares every place of the text with its end at once, without an index."""
        del params
        self._check_state(state)
        tokens, last = state.tokens, state.lengths[:, None] - 1
        place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        # match[b, i]: how many tokens up to place i equal those up to the end of the text.
        alike = jnp.ones(tokens.shape, bool)
        match = jnp.zeros(tokens.shape, jnp.int32)
        for back in range(self.max_match):
            token = jnp.take_along_axis(tokens, jnp.maximum(last - back, 0), axis=1)
            alike &= (jnp.roll(tokens, back, axis=1) == token) & (place >= back)
            match += alike.astype(jnp.int32)
        behind = self.num_speculative_tokens if self.whole else 1
        hits = (place + behind <= last) & (match >= self.min_match)
        # The longest match, and of equally long ones the first (or last) in the text.
        order = place if self.latest else tokens.shape[1] - 1 - place
        score = jnp.where(hits, match * tokens.shape[1] + order, -1)
        best = score.argmax(-1).astype(jnp.int32)[:, None]
        ahead = best + 1 + jnp.arange(self.num_speculative_tokens, dtype=jnp.int32)[None]
        chain = jnp.take_along_axis(tokens, ahead, axis=1, mode="clip")
        valid = (ahead <= last) & hits.any(-1, keepdims=True)
        tree = trees.chain(self.num_speculative_tokens).fill(
            jnp.concatenate([frame.root[:, None], chain], axis=1)
        )
        return replace(tree, valid=tree.valid.at[:, 1:].set(valid)), None

    def update(self, params: PyTree, state: TextState, aux: None, feedback: Feedback) -> TextState:
        """Returns the text with the round's emitted tokens added."""
        del params, aux
        return state.extend(feedback)

    def _check_state(self, state: PyTree) -> None:
        if not isinstance(state, TextState):
            raise InputError(
                f"drafter_state is a {type(state).__name__} and PromptLookup keeps a TextState; "
                "pass the state of a call with the same drafter"
            )


def check_match(min_match: int, max_match: int) -> None:
    """Raises InputError unless 1 <= min_match <= max_match."""
    check_integer("min_match", min_match, 1, max_match, "max_match")
