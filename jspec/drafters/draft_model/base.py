"""A small language model that drafts: its trees, and its memory between rounds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from jspec._validate.arguments import check_integer, takes
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec._validate.options import check_fields
from jspec._xla.ragged import sequence
from jspec.drafters.draft_model.scorer import NUM_FIRST, ModelScorer
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.protocols import CausalLM, Verifier
from jspec.types import (
    Feedback,
    Frame,
    Output,
    PromptChunk,
    PyTree,
    Sampling,
    Tree,
)
from jspec.verify.schemes import COUPLED, Scheme

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
    """How many tokens of each row that holds."""
    previous: Int[Array, " B"]
    """The token before the root; not read while there is none."""
    memory: PyTree
    """The method's own memory."""


@struct.dataclass
class Drafted:
    """What a draft model needs of a round's draft in its update."""

    kv: PyTree
    """What is tentative of the scored nodes."""
    kv_index: Int[Array, "B N"]
    """The index in `kv` of each node of the tree; not read for nodes without children."""
    grown: PyTree
    """What the method itself keeps of it."""


@dataclass(frozen=True)
class DraftModel(ABC):
    """A drafter whose proposals come from a language model of the target's vocabulary.

    The model's weights are the `drafter_params` of a call. A subclass says how the tree grows.

    Args:
        model: the draft model; static, as the target is.
        scheme: how children are drawn and verified, one of `jspec.schemes`. The default is the
            coupled scheme, under which the tokens are those of plain decoding with the same key.
        sampling: the draft's own temperature and filters, in plain numbers; None: those of the
            target.

    Raises:
        InputError: if the model is no language model, or an argument is out of range.
    """

    model: CausalLM
    scheme: Scheme = field(default=COUPLED, kw_only=True)
    sampling: Sampling | None = field(default=None, kw_only=True)

    follows_text: ClassVar = True
    paper_settings: ClassVar[Mapping[str, Any] | None] = None
    """The arguments that make the method the published one; None: it is jspec's own."""

    @classmethod
    def published(cls, model: CausalLM, **options: Any) -> Self:
        """The method as its paper has it: with the paper's verification scheme and settings.

        Args:
            model: the draft model.
            options: further arguments of the constructor; they win over the paper's.

        Raises:
            InputError: if the method is in no paper, or an argument is out of range.
        """
        if cls.paper_settings is None:
            raise InputError(
                f"{cls.__name__} is jspec's own and has no published settings; call "
                f"jspec.{cls.__name__}(model, ...)"
            )
        return cls(model, **{**cls.paper_settings, **options})

    def __post_init__(self):
        if isinstance(self.model, type) or not all(
            hasattr(self.model, name)
            for name in ("vocab_size", "context", "init_memory", "apply", "commit")
        ):
            raise InputError(
                f"the draft model is {self.model!r:.80}; pass a jspec.CausalLM, such as the model "
                "of what jspec.models.load returns"
            )
        if not takes(self.model.apply, len(_ARGUMENTS)):
            raise InputError(
                f"the draft model is {self.model!r:.80}, whose apply does not take "
                f"({', '.join(_ARGUMENTS)}); a draft model scores a tree by levels, see "
                "jspec.CausalLM"
            )
        if not hasattr(self.model, "until"):
            raise InputError(
                f"the draft model is {self.model!r:.80}, which has no method until; a "
                "draft model's memory is cut back where a text is, see jspec.CausalLM"
            )
        if not isinstance(self.scheme, Scheme):
            raise InputError(
                f"scheme is {self.scheme!r:.80}; pass a draw with its verifier, such as "
                "jspec.schemes.RECURSIVE"
            )
        _check_sampling(self.sampling)
        check_fields(self)

    @property
    def verifier(self) -> Verifier:
        """The verifier that makes the drafter's draws lossless: the scheme's."""
        return self.scheme.verifier

    @property
    def context(self) -> int | None:
        """The longest row that the draft model can read, in tokens; None if it has no bound."""
        return self.model.context

    @property
    @abstractmethod
    def depth(self) -> int:
        """The largest number of levels below the root."""

    @property
    @abstractmethod
    def num_scored(self) -> int:
        """The number of nodes below the root that the draft model scores in a round."""

    @abstractmethod
    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        """The draft of a round, and what `learn` finds of it in `Drafted.grown`."""

    def init_memory(self, batch: int, earlier: PyTree | None) -> PyTree:
        """The method's memory at the start of a call.

        Args:
            batch: rows.
            earlier: its memory after an earlier call, of any number of rows; or None.
        """
        del batch, earlier
        return ()

    def learn(self, memory: PyTree, aux: Drafted, feedback: Feedback) -> PyTree:
        """The method's memory after a round that was drafted for.

        Args:
            memory: before the round.
            aux: of its draft.
            feedback: of the round.
        """
        del aux, feedback
        return memory

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> DraftModelState:
        # The engine refuses texts beyond the context; the slots that it rounds up to hold no text.
        capacity = capacity if self.context is None else min(capacity, self.context)
        fresh = self.init_memory(batch, None)
        if earlier is not None:
            _check_state(earlier, fresh)
        return DraftModelState(
            cache=self.model.init_memory(batch, capacity),
            lengths=jnp.zeros(batch, jnp.int32),
            previous=jnp.zeros(batch, jnp.int32),
            memory=fresh if earlier is None else self.init_memory(batch, earlier.memory),
        )

    def prefill(
        self, params: PyTree, state: DraftModelState, chunk: PromptChunk
    ) -> DraftModelState:
        _check_vocabulary(self.model.vocab_size, chunk.output.logits.shape[-1])
        if params is None:
            raise InputError(
                "drafter_params is None and a draft model needs its weights; pass "
                "drafter_params=weights, beside the drafter"
            )
        read = self._read(params, state, chunk.tokens, chunk.positions)
        _check_weights(read.logits.shape[-1], self.model.vocab_size)
        order = jnp.broadcast_to(jnp.arange(chunk.read.shape[1]), chunk.read.shape)
        return _moved_on(
            self.model, state, read.tentative, order, chunk.read, chunk.positions, chunk.counts
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
        state = _moved_on(self.model, state, kv, order, tokens, feedback.positions, feedback.counts)
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
        """The forward over the token before some text, and the text but its last two tokens.

        Args:
            params: the model's weights.
            state: before the text.
            tokens: the text.
            first: position of its first token.
        """
        tokens = jnp.concatenate([state.previous[:, None], tokens], axis=1)[:, :-2]
        lanes, causal = sequence(*tokens.shape)
        # Where the text begins, nothing stands before it.
        known = self.model.until(state.cache, first)  # pyright: ignore[reportAttributeAccessIssue]
        follows = (state.lengths < first)[:, None, None]
        mask = causal & (follows | (lanes > 0)[:, None] | (lanes == 0)[:, :, None])
        positions = jnp.maximum(first[:, None] - 1 + lanes, 0)
        return self.model.apply(params, tokens, positions, mask, known)


def _moved_on(
    model: Any,
    state: DraftModelState,
    kv: PyTree,
    order: Int[Array, "B P"],
    tokens: Int[Array, "B _"],
    first: Int[Array, " B"],
    counts: Int[Array, " B"],
) -> DraftModelState:
    """The state after `counts` more committed tokens.

    Args:
        model: the draft model.
        state: before them.
        kv: what is tentative of the token before the first, and of the tokens but the last.
        order: their places in it.
        tokens: the tokens, and maybe some more.
        first: position of the first.
        counts: how many there are.
    """
    # Without a token before the first there is one fewer to commit, and index 0 is left out; so it
    # is behind a text that was cut, of which the model has that token already.
    known, lengths = model.until(state.cache, first), jnp.minimum(state.lengths, first)
    missing = (lengths == first).astype(jnp.int32)
    lanes = jnp.minimum(jnp.arange(order.shape[1]) + missing[:, None], order.shape[1] - 1)
    order = jnp.take_along_axis(order, lanes, axis=1)
    before_root = jnp.maximum(counts - 1, 0)[:, None]
    previous = jnp.take_along_axis(tokens, before_root, axis=1)[:, 0]
    more = jnp.maximum(counts - missing, 0)
    return replace(
        state,
        cache=model.commit(known, kv, order, more),
        lengths=lengths + more,
        previous=jnp.where(counts > 0, previous, state.previous),
    )


def _check_sampling(sampling: Any) -> None:
    """Raises InputError unless this is None, or a Sampling that `decode` would take."""
    if sampling is None:
        return
    if not isinstance(sampling, Sampling):
        raise InputError(
            f"the drafter's sampling is {sampling!r:.80}; pass jspec.Sampling of plain numbers, or "
            "None for the target's"
        )
    of = "the drafter's sampling:"
    check_number(f"{of} temperature", sampling.temperature, 0, 1e6, "0 is greedy")
    check_integer(f"{of} top_k", sampling.top_k, 0, 2**31 - 1, "0 switches it off")
    check_number(f"{of} top_p", sampling.top_p, 1e-6, 1, "1 switches it off")
    check_number(f"{of} min_p", sampling.min_p, 0, 1, "0 switches it off")


def _check_weights(scored: int, vocab_size: int) -> None:
    """Raises InputError if the weights score fewer tokens than the draft model has."""
    if scored < vocab_size:
        raise InputError(
            f"drafter_params score {scored} tokens and the draft model has {vocab_size}; pass the "
            "weights of the drafter's own model"
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


def _check_vocabulary(draft: int, target: int) -> None:
    """Raises InputError unless both models have the same tokens."""
    if draft == target:
        return
    small, large = sorted((draft, target))
    message = (
        f"the draft model has {draft} tokens and the target {target}, {large - small} apart; take "
        "two models of one tokenizer"
    )
    if large % 64 == 0 and small > 64 and large - small < 1024:
        message += (
            f" ({large} is a multiple of 64: if the two have one tokenizer and the last tokens are "
            f"padding, pass jspec.PaddedVocabulary(draft, {target}) as the draft model)"
        )
    raise InputError(message)
