"""A small language model that drafts: its trees, and its memory between rounds."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import _struct as struct
from jspec._validate.arguments import takes
from jspec._validate.errors import InputError
from jspec.arrays.ragged import sequence
from jspec.drafters.draft_model.model_drafter import ModelDrafter
from jspec.drafters.draft_model.model_scorer import NUM_FIRST, ModelScorer
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.types import Feedback, Frame, Output, PromptChunk, PyTree, Tree

_ARGUMENTS = ("params", "tokens", "positions", "mask", "memory", "nodes")
"""Of a draft model's `apply`."""


@struct.dataclass
class DraftModelState:
    """A draft model's memory.

    The model remembers the tokens at positions 0 .. root - 2. The last node of an accepted path may
    be a leaf, which the draft never scored. So every round reads two tokens first, whatever was
    accepted: the token before the root, and the root.
    """

    cache: PyTree
    """The model's own memory."""
    lengths: Int[Array, " B"]
    """Number of tokens that it holds, per row."""
    previous: Int[Array, " B"]
    """The token before the root; not read while there is none."""
    memory: PyTree
    """The method's own memory."""


@struct.dataclass
class Drafted:
    """A draft model's record of its draft, for its update."""

    kv: PyTree
    """The tentative record of the scored nodes."""
    kv_index: Int[Array, "B N"]
    """The index in `kv` of each node of the tree; not read for nodes without children."""
    grown: PyTree
    """The method's own record."""


@dataclass(frozen=True)
class DraftModel(ModelDrafter):
    """A draft model that scores the nodes of a tree level by level."""

    def __post_init__(self):
        super().__post_init__()
        if not takes(self.model.apply, len(_ARGUMENTS)):
            raise InputError(
                f"the draft model is {self.model!r:.80}, whose apply does not take "
                f"({', '.join(_ARGUMENTS)}); a draft model scores a tree by levels, see "
                "jspec.CausalLM"
            )

    @property
    @abstractmethod
    def num_scored(self) -> int:
        """The number of nodes below the root that the draft model scores in a round."""

    @abstractmethod
    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        """Returns the draft of a round, and what `learn` finds of it in `Drafted.grown`."""

    def init_memory(self, batch: int, earlier: PyTree | None) -> PyTree:
        """Returns the method's memory at the start of a call."""
        del batch, earlier
        return ()

    def learn(self, memory: PyTree, aux: Drafted, feedback: Feedback) -> PyTree:
        """Returns the method's memory after a round that was drafted for."""
        del aux, feedback
        return memory

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> DraftModelState:
        fresh = self.init_memory(batch, None)
        if earlier is not None:
            _check_state(earlier, fresh)
        return DraftModelState(
            cache=self.empty_cache(batch, capacity),
            lengths=jnp.zeros(batch, jnp.int32),
            previous=jnp.zeros(batch, jnp.int32),
            memory=fresh if earlier is None else self.init_memory(batch, earlier.memory),
        )

    def prefill(
        self, params: PyTree, state: DraftModelState, chunk: PromptChunk
    ) -> DraftModelState:
        self.check_models(params, chunk.output)
        read = self._read(params, state, chunk.tokens, chunk.positions)
        self.check_weights(read)
        order = jnp.broadcast_to(jnp.arange(chunk.read.shape[1]), chunk.read.shape)
        return _move_on(
            self.model,
            state,
            read.tentative,
            order,
            chunk.read,
            chunk.positions,
            chunk.read_lengths,
        )

    def draft(self, params: PyTree, state: DraftModelState, frame: Frame) -> tuple[Tree, Drafted]:
        size = NUM_FIRST + self.num_scored
        scorer = ModelScorer(self.model, params, state.cache, state.previous, frame, size)
        draft, grown = self.grow(scorer, state.memory)
        return draft.tree, Drafted(draft.kv, draft.kv_index, grown)

    def update(
        self, params: PyTree, state: DraftModelState, aux: Drafted | None, feedback: Feedback
    ) -> DraftModelState:
        # Of the token before the root, and of the accepted path but its last node, which the next
        # round reads again: what is tentative, and the place of each in it.
        root = feedback.tree.tokens[:, :1]
        tokens = jnp.concatenate([root, feedback.emitted], axis=1)
        if aux is None or feedback.others:
            # What this model never scored may have been emitted: it reads that as text.
            kv = self._read(params, state, tokens, feedback.positions).tentative
            order = jnp.arange(tokens.shape[1] - 1, dtype=jnp.int32)
            order = jnp.broadcast_to(order, feedback.emitted.shape)
        else:
            kv, path = aux.kv, jnp.take_along_axis(aux.kv_index, feedback.verdict.path, axis=1)
            order = jnp.concatenate([jnp.zeros_like(root), path], axis=1)[:, :-1]
        state = _move_on(self.model, state, kv, order, tokens, feedback.positions, feedback.counts)
        if aux is None:
            return state
        return replace(state, memory=self.learn(state.memory, aux, feedback))

    def _read(
        self,
        params: PyTree,
        state: DraftModelState,
        tokens: Int[Array, "B C+1"],
        first: Int[Array, " B"],
    ) -> Output:
        """Returns the forward pass over the token before a text, and the text's first part."""
        tokens = jnp.concatenate([state.previous[:, None], tokens], axis=1)[:, :-2]
        offsets, causal = sequence(*tokens.shape)
        # Nothing comes before the beginning of the text.
        cache = self.model.until(state.cache, first)  # pyright: ignore[reportAttributeAccessIssue]
        follows = (state.lengths < first)[:, None, None]
        mask = causal & (follows | (offsets > 0)[:, None] | (offsets == 0)[:, :, None])
        positions = jnp.maximum(first[:, None] - 1 + offsets, 0)
        return self.model.apply(params, tokens, positions, mask, cache)


def _move_on(
    model: Any,
    state: DraftModelState,
    kv: PyTree,
    order: Int[Array, "B P"],
    tokens: Int[Array, "B _"],
    first: Int[Array, " B"],
    counts: Int[Array, " B"],
) -> DraftModelState:
    """Returns the state after `counts` more committed tokens."""
    # Without a token before the first there is one fewer to commit, and index 0 is left out; so it
    # is behind a text that was cut, of which the model has that token already.
    cache, lengths = model.until(state.cache, first), jnp.minimum(state.lengths, first)
    missing = (lengths == first).astype(jnp.int32)
    index = jnp.minimum(jnp.arange(order.shape[1])[None] + missing[:, None], order.shape[1] - 1)
    order = jnp.take_along_axis(order, index, axis=1)
    before_root = jnp.maximum(counts - 1, 0)[:, None]
    previous = jnp.take_along_axis(tokens, before_root, axis=1)[:, 0]
    more = jnp.maximum(counts - missing, 0)
    return replace(
        state,
        cache=model.commit(cache, kv, order, more),
        lengths=lengths + more,
        previous=jnp.where(counts > 0, previous, state.previous),
    )


def _check_state(earlier: PyTree, fresh: PyTree) -> None:
    """Raises InputError unless this is the state of a call with a drafter of the same method."""
    if not isinstance(earlier, DraftModelState):
        raise InputError(
            f"drafter_state is a {type(earlier).__name__} and a draft model keeps a "
            "DraftModelState; pass the state of a call with the same drafter"
        )
    if jax.tree.structure(earlier.memory) != jax.tree.structure(fresh):
        raise InputError(
            f"drafter_state holds the memory of another method, a {type(earlier.memory).__name__}, "
            f"and this one keeps a {type(fresh).__name__}; pass the state of a call with the same "
            "drafter"
        )
