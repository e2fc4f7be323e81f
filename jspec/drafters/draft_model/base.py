"""A small language model that drafts: its cache, its tree level by level, and what it keeps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec import cache as caches
from jspec.base import Cache, Feedback, Frame, Output, PyTree, Sampling, Tree, TreeKV
from jspec.drafters.growth.scorer import Draft, LevelOutput, Scorer, entered, visible
from jspec.errors import InputError
from jspec.protocols import CausalLM, Verifier
from jspec.ragged import sequence
from jspec.verify.schemes import COUPLED, Scheme

_FIRST = 2
"""Tokens of the draft's first forward in a round: the one before the root, and the root."""


@struct.dataclass
class DraftModelState:
    """A draft model's memory.

    The cache holds the tokens at positions 0 .. root - 2. The last node of an accepted path may be
    a leaf, whose keys the draft never computed; so the token before the root always is read again,
    together with the root: two tokens in every round, whatever was accepted.
    """

    cache: Cache
    previous: Int[Array, " B"]
    """The token before the root; not read while there is none."""
    nodes: TreeKV | None
    """Of the tree under verification; None between rounds."""
    places: Int[Array, "B N"] | None
    """Where in `nodes` a node of the tree stands; not read for nodes without children."""
    memory: PyTree
    """The method's own."""


@dataclass(frozen=True)
class ModelScorer:
    """The draft model in one round, with a place for each node that it is going to score.

    A node's lineage is the places of its ancestors; what stands there is keys and values.
    """

    model: CausalLM
    params: PyTree
    cache: Cache
    previous: Int[Array, " B"]
    frame: Frame
    places: int

    def root(self) -> LevelOutput:
        """Scores the root, at place 1; the token before it takes place 0."""
        frame = self.frame
        tokens = jnp.stack([self.previous, frame.root], axis=1)
        positions = jnp.maximum(frame.positions[:, None] + jnp.array([-1, 0]), 0)
        follows = frame.positions > 0
        mask = jnp.array([[True, False], [True, True]]) & (
            follows[:, None, None] | jnp.eye(2, dtype=bool)
        )
        output = self.model.apply(self.params, tokens, positions, mask, self.cache)

        def room(new: Float[Array, "B H 2 D"]) -> Float[Array, "B H C D"]:
            return jnp.pad(new, ((0, 0), (0, 0), (0, self.places - _FIRST), (0, 0)))

        return LevelOutput(
            logits=output.logits[:, 1:],
            lineage=jnp.pad(mask[:, 1:], ((0, 0), (0, 0), (0, self.places - _FIRST))),
            nodes=TreeKV(*jax.tree.map(room, (output.keys, output.values))),
        )

    def below(
        self,
        level: Int[Array, ""] | int,
        place: Int[Array, ""] | int,
        tokens: Int[Array, "B M"],
        lineage: Bool[Array, "B M C"],
        nodes: TreeKV,
    ) -> LevelOutput:
        """As in `jspec.drafters.growth.scorer.Scorer`."""
        positions = jnp.broadcast_to((self.frame.positions + level)[:, None], tokens.shape)
        output = self.model.apply(
            self.params, tokens, positions, visible(lineage), self.cache, nodes
        )
        return LevelOutput(output.logits, *entered(lineage, nodes, output, place))


@dataclass(frozen=True)
class DraftModel(ABC):
    """A drafter whose proposals come from a language model of the target's vocabulary.

    Its weights are the `drafter_params` of the call. A method says how the tree grows.

    Args:
        model: the draft model; static, as the target is.
        scheme: how children are drawn and verified, see `jspec.schemes`.
        sampling: the draft's own temperature and filters, numbers; None: those of the target.
    """

    model: CausalLM
    scheme: Scheme = field(default=COUPLED, kw_only=True)
    sampling: Sampling | None = field(default=None, kw_only=True)

    def _check(self) -> None:
        """Raises InputError unless scheme and sampling are what they should be."""
        if not isinstance(self.scheme, Scheme):
            raise InputError(
                f"scheme is {self.scheme!r:.80}; pass a draw with its verifier, such as "
                "jspec.schemes.RECURSIVE"
            )
        known = self.sampling
        if known is not None and not (
            isinstance(known, Sampling)
            and all(isinstance(value, int | float) for value in jax.tree.leaves(known))
            and known.temperature >= 0
        ):
            raise InputError(
                f"the drafter's sampling is {known!r:.120}; pass jspec.Sampling of plain numbers, "
                "with a temperature of at least 0, or None for the target's"
            )

    @property
    def verifier(self) -> Verifier:
        """What makes the draws of the scheme lossless."""
        return self.scheme.verifier

    @property
    @abstractmethod
    def depth(self) -> int:
        """Most levels below the root."""

    @property
    @abstractmethod
    def scored(self) -> int:
        """Nodes below the root that the draft model scores in a round."""

    @abstractmethod
    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        """The draft of a round, and what `learn` is to know of it."""

    def remember(self, batch: int, earlier: PyTree | None) -> PyTree:
        """The method's own memory at the start of a call."""
        del batch, earlier
        return ()

    def learn(self, memory: PyTree, feedback: Feedback) -> PyTree:
        """The method's own memory after a round."""
        del feedback
        return memory

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> DraftModelState:
        self._check()
        context = self.model.context
        if context is not None and context < slots:
            raise InputError(
                f"the draft model's context is {context} and the call holds {slots} tokens a row; "
                "shorten the prompt or max_new_tokens, or take a draft model of longer context"
            )
        if self.depth >= slots:
            raise InputError(
                f"the drafter's trees are {self.depth} deep and the call's cache holds {slots} "
                f"tokens a row; draft at most {slots - 1} levels"
            )
        fresh = self.remember(batch, None)
        if earlier is not None:
            _check_state(earlier, fresh)
        return DraftModelState(
            cache=self.model.init_cache(batch, slots),
            previous=jnp.zeros(batch, jnp.int32),
            nodes=None,
            places=None,
            memory=fresh if earlier is None else self.remember(batch, earlier.memory),
        )

    def prefill(
        self,
        params: PyTree,
        state: DraftModelState,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> DraftModelState:
        _check_vocabulary(self.model.vocab_size, output.logits.shape[-1])
        if params is None:
            raise InputError(
                "drafter_params is None and a draft model needs its weights; pass "
                "drafter_params=weights, beside the drafter"
            )
        batch, width = prompt.shape
        places, causal = sequence(batch, width)
        own = self.model.apply(params, prompt, places, causal, None)
        before = jnp.maximum(lengths - 2, 0)
        return replace(
            state,
            cache=caches.commit(state.cache, own, places, before),
            previous=jnp.take_along_axis(prompt, before[:, None], axis=1)[:, 0],
        )

    def draft(
        self, params: PyTree, state: DraftModelState, frame: Frame
    ) -> tuple[Tree, DraftModelState]:
        scorer = ModelScorer(
            self.model, params, state.cache, state.previous, frame, _FIRST + self.scored
        )
        draft, memory = self.grow(scorer, state.memory)
        state = replace(state, nodes=draft.nodes, places=draft.places, memory=memory)
        return draft.tree, state

    def update(self, params: PyTree, state: DraftModelState, feedback: Feedback) -> DraftModelState:
        assert state.nodes is not None, "what is updated was drafted"
        assert state.places is not None, "what is updated was drafted"
        counts, path = feedback.counts, feedback.verdict.path
        root = feedback.tree.tokens[:, :1]
        if feedback.merged is None:
            nodes, places = state.nodes, jnp.take_along_axis(state.places, path, axis=1)
            places = jnp.concatenate([jnp.zeros_like(root), places], axis=1)[:, :-1]
        else:
            # The tree was united with another drafter's, so the path may hold nodes that were
            # never scored here: read what was emitted as text.
            nodes, places = self._read(params, state, root, feedback)
        # Without a token before the root there is one fewer to commit, and place 0 is left out.
        missing = (feedback.positions == 0).astype(jnp.int32)
        lanes = jnp.minimum(jnp.arange(path.shape[1]) + missing[:, None], path.shape[1] - 1)
        last = jnp.concatenate([root, feedback.emitted], axis=1)
        last = jnp.take_along_axis(last, jnp.maximum(counts - 1, 0)[:, None], axis=1)[:, 0]
        return DraftModelState(
            cache=caches.commit(
                state.cache,
                nodes,
                jnp.take_along_axis(places, lanes, axis=1),
                jnp.maximum(counts - missing, 0),
            ),
            previous=jnp.where(counts > 0, last, state.previous),
            nodes=None,
            places=None,
            memory=self.learn(state.memory, feedback),
        )

    def _read(
        self, params: PyTree, state: DraftModelState, root: Int[Array, "B 1"], feedback: Feedback
    ) -> tuple[TreeKV, Int[Array, "B P"]]:
        """Keys and values of the token before the root, the root, and the tokens emitted."""
        tokens = jnp.concatenate([state.previous[:, None], root, feedback.emitted], axis=1)[:, :-2]
        batch, count = tokens.shape
        lanes = jnp.arange(count, dtype=jnp.int32)
        follows = (feedback.positions > 0)[:, None, None]
        mask = jnp.tril(jnp.ones((count, count), bool)) & (
            follows | (lanes > 0) | (lanes[:, None] == 0)
        )
        positions = jnp.maximum(feedback.positions[:, None] - 1 + lanes, 0)
        output = self.model.apply(params, tokens, positions, mask, state.cache)
        return TreeKV(output.keys, output.values), jnp.broadcast_to(lanes, (batch, count))


def _check_state(earlier: PyTree, fresh: PyTree) -> None:
    """Raises InputError unless this is the state of a call with a drafter of the same method."""
    if not isinstance(earlier, DraftModelState):
        raise InputError(
            f"drafter_state is a {type(earlier).__name__} and a draft model keeps a "
            "DraftModelState; "
            "pass the state of a call with the same drafter"
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
            f" ({large} is a multiple of 64: if its last tokens are padding, pad the other model's "
            "embedding and head to as many)"
        )
    raise InputError(message)
