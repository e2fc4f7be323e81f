"""Prompt lookup (Saxena 2023): what followed the last few tokens when they stood here before."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from jspec import tree as trees
from jspec.base import Feedback, Frame, Output, PyTree, Tree
from jspec.errors import InputError
from jspec.ragged import append


@struct.dataclass
class History:
    """All tokens of each row so far, prompt and output."""

    tokens: Int[Array, "B S"]
    """Entries at or beyond `lengths` are never read."""
    lengths: Int[Array, " B"]


@dataclass(frozen=True)
class PromptLookup:
    """Drafts a chain: the continuation of an earlier place that ends like the text does now.

    The longest n-gram that occurs earlier decides. The options are called as in the field.

    Args:
        prompt_lookup_max: longest n-gram to look for.
        prompt_lookup_min: shortest.
        num_speculative_tokens: drafted tokens.
        whole: only places with a full continuation count, as published; False also takes those
            near the end and drafts what there is (as `transformers` and vLLM do).
        latest: the last such place instead of the first.

    Raises:
        InputError: if an option is out of range.
    """

    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1
    num_speculative_tokens: int = 10
    whole: bool = True
    latest: bool = False

    def __post_init__(self):
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise InputError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max is "
                f"{self.prompt_lookup_max}; choose 1 <= min <= max"
            )
        if self.num_speculative_tokens < 1:
            raise InputError(
                f"num_speculative_tokens is {self.num_speculative_tokens}; draft at least 1"
            )

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> History:
        del earlier  # the memory is the row's own text
        # One more than the cache: the last emitted token needs no slot there.
        return History(
            tokens=jnp.zeros((batch, slots + 1), jnp.int32), lengths=jnp.zeros(batch, jnp.int32)
        )

    def prefill(
        self,
        params: PyTree,
        state: History,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> History:
        del params, output
        size = state.tokens.shape[1]
        known = prompt[:, :size]
        return History(tokens=jnp.pad(known, ((0, 0), (0, size - known.shape[1]))), lengths=lengths)

    def draft(self, params: PyTree, state: History, frame: Frame) -> tuple[Tree, History]:
        del params
        tokens, ends = state.tokens, state.lengths[:, None] - 1
        places = jnp.arange(tokens.shape[1])
        # run[b, e]: how many tokens up to e equal those up to the end of the text.
        alike = jnp.ones(tokens.shape, bool)
        run = jnp.zeros(tokens.shape, jnp.int32)
        for back in range(self.prompt_lookup_max):
            tail = jnp.take_along_axis(tokens, jnp.maximum(ends - back, 0), axis=1)
            alike &= (jnp.roll(tokens, back, axis=1) == tail) & (places >= back)
            run += alike
        follow = self.num_speculative_tokens if self.whole else 1
        known = (places + follow <= ends) & (run >= self.prompt_lookup_min)
        # Longest first, then the earliest (or latest) place.
        order = places if self.latest else tokens.shape[1] - 1 - places
        score = jnp.where(known, run * tokens.shape[1] + order, -1)
        best = score.argmax(-1)[:, None]
        steps = 1 + jnp.arange(self.num_speculative_tokens)
        chain = jnp.take_along_axis(tokens, best + steps, axis=1, mode="clip")
        valid = (best + steps <= ends) & known.any(-1, keepdims=True)
        tree = trees.chain(self.num_speculative_tokens).fill(
            jnp.concatenate([frame.root[:, None], chain], axis=1)
        )
        return replace(tree, valid=tree.valid.at[:, 1:].set(valid)), state

    def update(self, params: PyTree, state: History, feedback: Feedback) -> History:
        del params
        return History(
            tokens=append(state.tokens, state.lengths, feedback.emitted, feedback.counts),
            lengths=state.lengths + feedback.counts,
        )
