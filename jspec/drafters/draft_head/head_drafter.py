"""A draft head over the target's hidden states: its cache of pairs, and its predictions."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.kinds import Number
from jspec._validate.options import check_fields
from jspec.arrays.ragged import sequence
from jspec.drafters.draft_head.draft_head import DraftHead
from jspec.memory import KVCache, numbers
from jspec.protocols import Drafter, Verifier
from jspec.types import (
    Feedback,
    Frame,
    Output,
    PromptChunk,
    PyTree,
    Sampling,
    Tree,
)
from jspec.verify import proposals
from jspec.verify.proposals import ChildDraws
from jspec.verify.schemes import COUPLED


@struct.dataclass
class HeadState:
    """A head's memory, for a root at position t."""

    cache: KVCache
    """Keys and values of the true pairs at 0 .. t - 1, each a target's state and the next token."""
    hidden: Float[Array, "B E"]
    """The target's state at the root as the head predicts it; 0 where there is no pair yet."""
    memory: PyTree
    """The method's own memory."""


@dataclass(frozen=True)
class HeadDrafter(Drafter):
    """A drafter whose proposals come from a head that continues the target's hidden states."""

    head: DraftHead

    follows_text: ClassVar = True

    def __post_init__(self):
        check_is_head(self.head, DraftHead, "a jspec.DraftHead")
        check_fields(self)

    @property
    def verifier(self) -> Verifier:
        """The coupled rule: children are chosen by the noise that decides the target's token."""
        return COUPLED.verifier

    @property
    def context(self) -> int | None:
        """The longest row that the head can read, in tokens; None if it has no bound."""
        return self.head.context

    @property
    @abstractmethod
    def depth(self) -> int:
        """The largest number of levels below the root."""

    @abstractmethod
    def draft(self, params: PyTree, state: HeadState, frame: Frame) -> tuple[Tree, PyTree]:
        """Returns the tree of a round, and what `learn` gets of it."""

    def init_memory(self, batch: int) -> PyTree:
        """Returns the method's own memory at the beginning of a call."""
        del batch
        return ()

    def after_reading(self, memory: PyTree, read: Bool[Array, " B"]) -> PyTree:
        """Returns the method's own memory for rows that read more text than they emitted."""
        del read
        return memory

    def learn(self, memory: PyTree, aux: PyTree | None, feedback: Feedback) -> PyTree:
        """Returns the method's own memory after a round; `aux` is None in a back-off."""
        del aux, feedback
        return memory

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> HeadState:
        """Returns the empty memory: nothing outlives a call, so an earlier state is not read."""
        del earlier
        head = self.head
        check_depth(self.depth, capacity, self.context)
        cache = head.init_memory(batch, capacity)
        return HeadState(
            cache=cache,
            hidden=jnp.zeros((batch, head.hidden_size), numbers(cache.keys[0]).dtype),
            memory=self.init_memory(batch),
        )

    def prefill(self, params: PyTree, state: HeadState, chunk: PromptChunk) -> HeadState:
        check_head(self.head, params, chunk.output)
        assert chunk.output.hidden is not None, "the head reads it"
        state = replace(state, memory=self.after_reading(state.memory, chunk.read_lengths > 0))
        return self._read(
            params, state, chunk.output.hidden, chunk.following, chunk.positions, chunk.read_lengths
        )

    def update(
        self, params: PyTree, state: HeadState, aux: PyTree | None, feedback: Feedback
    ) -> HeadState:
        # The accepted path, whoever drafted it.
        scored, counts = feedback.scored, feedback.counts
        path, hidden = scored.verdict.path, scored.output.hidden
        assert hidden is not None, "it was there when the call began"
        hidden = jnp.take_along_axis(hidden, path[..., None], axis=1)
        # The verified tree may have shorter paths than this drafter's own.
        emitted = feedback.emitted[:, : path.shape[1]]
        state = self._read(params, state, hidden, emitted, feedback.positions, counts)
        return replace(state, memory=self.learn(state.memory, aux, feedback))

    def _read(
        self,
        params: PyTree,
        state: HeadState,
        hidden: Float[Array, "B C F"],
        following: Int[Array, "B C"],
        first: Int[Array, " B"],
        counts: Int[Array, " B"],
    ) -> HeadState:
        """Returns the state after `counts` more true pairs from position `first` on."""
        offsets, causal = sequence(*following.shape)
        positions = first[:, None] + offsets
        cache = self.head.until(state.cache, first)
        output = self.head.apply(params, hidden, following, positions, causal, cache)
        return replace(
            state,
            cache=self.head.commit(cache, output.tentative, offsets, counts),
            hidden=_last(output, counts, state.hidden),
        )


def check_depth(depth: int, capacity: int, context: int | None) -> None:
    """Raises InputError if a call's rows are too short for trees of a depth."""
    # The engine refuses texts beyond the context; the slots that it rounds up to hold no text.
    capacity = capacity if context is None else min(capacity, context)
    if depth >= capacity:
        raise InputError(
            f"the drafter's trees are {depth} deep and the call's cache holds "
            f"{capacity} tokens per row; draft at most {capacity - 1} levels"
        )


def check_head(head: DraftHead, params: PyTree, output: Output) -> None:
    """Raises InputError unless the head can read what the target gives."""
    if params is None:
        raise InputError(
            "drafter_params is None and a draft head needs its weights; "
            "pass drafter_params=variables along with the drafter"
        )
    if output.hidden is None:
        raise InputError(
            "the target's forward pass gives no hidden states and a draft head reads them; take a "
            "model whose Output.hidden is set"
        )
    if (vocab_size := output.logits.shape[-1]) != head.vocab_size:
        raise InputError(
            f"the draft head has {head.vocab_size} tokens and the target {vocab_size}; take the "
            "head that was trained for this target"
        )
    if (features := output.hidden.shape[-1]) != head.features:
        raise InputError(
            f"the draft head reads states {head.features} wide and the target's are {features}; "
            "take the head that was trained for this target, and the target with the taps it needs"
        )


def top_k_draw(
    logits: Float[Array, "B M V"],
    sampling: Sampling | None,
    frame: Frame,
    level: Int[Array, ""] | int,
    size: int,
) -> ChildDraws:
    """Takes the top k children of each node, as a `jspec.proposals.ChildSampler`."""
    del sampling
    return proposals.coupled(logits, Sampling(), frame, level, size)


def child_probability(drawn: ChildDraws, sharpness: float = 1.0) -> Float[Array, "B M K"]:
    """Estimates how probable it is that the target takes each child: q, moved by known noise."""
    # All exponents less the largest: at a high temperature the noise alone would overflow.
    top = jnp.maximum(drawn.scores.max(-1, keepdims=True), 0.0)
    weight = jnp.exp(sharpness * (drawn.scores - top))
    rest = jnp.maximum(1.0 - drawn.child_probs.sum(-1, keepdims=True), 0.0)
    total = weight.sum(-1, keepdims=True) + (rest * jnp.exp(-top)) ** sharpness
    # Where filters left no token with a weight, none is probable.
    return weight / jnp.where(total > 0, total, 1.0)


SHARPNESS = Number(0, 100, above_low=True)
"""The powers to which `child_probability` can raise weights."""


def check_is_head(head: Any, protocol: type, description: str) -> None:
    """Raises InputError unless a drafter's head is an instance of a protocol."""
    if isinstance(head, type) or not isinstance(head, protocol):
        text = " ".join(repr(head).split())  # a Flax module's representation takes many lines
        raise InputError(
            f"head is {text:.80}; pass {description}, such as the first that "
            "jspec.models.heads.load gives"
        )


def _last(
    output: Output, counts: Int[Array, " B"], before: Float[Array, "B E"]
) -> Float[Array, "B E"]:
    """Returns the prediction after the last of `counts` pairs, or the earlier one."""
    assert output.hidden is not None, "a head predicts states"
    last = jnp.maximum(counts - 1, 0)[:, None, None]
    hidden = jnp.take_along_axis(output.hidden, last, axis=1)[:, 0].astype(before.dtype)
    return jnp.where(counts[:, None] > 0, hidden, before)
