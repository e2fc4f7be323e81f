"""Records a drafter's rounds: drafted, verified and accepted nodes.

It drafts what its drafter drafts, and writes down what the engine tells every drafter. So a
recorded generation runs the engine's own rounds, and its tokens are those of the drafter alone.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import sampling as samplings
from jspec import tree as trees
from jspec.arrays.top_k import top_k
from jspec.drafters.wrapper import DrafterWrapper
from jspec.protocols import Drafter, WidthPolicy
from jspec.testing import origins
from jspec.tree.sanitize import sanitize
from jspec.types import (
    NO_PARENT,
    Feedback,
    Frame,
    PolicyFeedback,
    PromptChunk,
    PyTree,
    Sampling,
    Tree,
    WidthChoice,
)


@struct.dataclass
class RecordedTrees:
    """The drafter's part of a round."""

    tree: Tree
    """What could have been verified."""
    members: tuple[Tree, ...]
    """The tree of each of `origins.names`."""


@struct.dataclass
class RecordedOutcome:
    """The target's part of a round; k candidates for the token after each verified node."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    """True at the nodes that were verified; the arrays are as wide as the drafted tree."""
    path: Int[Array, "B P"]
    counts: Int[Array, " B"]
    bonus: Int[Array, " B"]
    emitted: Int[Array, "B P"]
    num_emitted: Int[Array, " B"]
    probs: Float[Array, "B N"]
    """The target's probability of each node's token after its parent; 1 at the root."""
    bonus_prob: Float[Array, " B"]
    candidates: Int[Array, "B N k"]
    """The likeliest tokens after each node. Under sampling one more: the token that the noise of
    the position makes the target's own draw."""
    candidate_probs: Float[Array, "B N k"]
    candidate_noise: Float[Array, "B N k"] | None
    """The position's Gumbel noise of each candidate; None if decoding is greedy."""


@struct.dataclass
class Recording:
    """The memory of the recorded drafter, and its last round."""

    inner: PyTree
    last: tuple[RecordedTrees, RecordedOutcome] | None


@struct.dataclass
class RecordedDraft:
    """A draft's record for `update`."""

    inner: PyTree
    """The drafter's own."""
    drafted: RecordedTrees


@dataclass(frozen=True)
class Recorded(DrafterWrapper):
    """Drafts the trees of its drafter, and remembers the last round. `jspec.trace` makes it."""

    drafter: Drafter
    vocab_size: int
    num_candidates: int
    shapes: tuple[tuple[tuple[int, ...], Any], ...] | None = None
    structure: Any = None

    def sized(self, params: PyTree, state: PyTree, frame: Frame) -> "Recorded":
        """Returns the recorder with room for a round."""

        def first(params, state, frame):
            tree, aux = self._draft(params, state, frame)
            return aux.drafted, self._room(tree, frame)

        leaves, structure = jax.tree.flatten(jax.eval_shape(first, params, state, frame))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        return replace(self, shapes=shapes, structure=structure)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> Recording:
        return self.around(self.drafter.init(batch, capacity, earlier))

    def around(self, inner: PyTree) -> Recording:
        """Returns the state before the first round, from the drafter's own."""
        if self.shapes is None:
            return Recording(inner, None)
        empty = [jnp.zeros(shape, dtype) for shape, dtype in self.shapes]
        return Recording(inner, jax.tree.unflatten(self.structure, empty))

    def prefill(self, params: PyTree, state: Recording, chunk: PromptChunk) -> Recording:
        inner = self.drafter.prefill(params, state.inner, chunk)
        return replace(state, inner=inner)

    def draft(self, params: PyTree, state: Recording, frame: Frame) -> tuple[Tree, RecordedDraft]:
        return self._draft(params, state.inner, frame)

    def _draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, RecordedDraft]:
        tree, inner = self.drafter.draft(params, state, frame)
        drafted = _with_estimates(sanitize(tree, frame.root, self.vocab_size, frame.grammar))
        records = RecordedTrees(
            tree=drafted,
            members=tuple(
                _bare(member) for member in origins.member_trees(self.drafter, drafted, inner)
            ),
        )
        return tree, RecordedDraft(inner, records)

    def tells_rest(self, aux: RecordedDraft) -> bool:
        """Records a round without a draft."""
        return True

    def update(
        self, params: PyTree, state: Recording, aux: RecordedDraft | None, feedback: Feedback
    ) -> Recording:
        inner_aux = None if aux is None else aux.inner
        inner = self.drafter.update(params, state.inner, inner_aux, feedback)
        if self.shapes is None:
            return replace(state, inner=inner)
        last = self.around(inner).last
        assert last is not None, "there is room"
        drafted = last[0] if aux is None else aux.drafted
        return Recording(inner, (drafted, self._scored(drafted.tree, feedback)))

    def _scored(self, drafted: Tree, feedback: Feedback) -> RecordedOutcome:
        """Returns the outcome, as wide as the drafted tree, however many nodes were verified."""
        tree, verdict = feedback.tree, feedback.verdict
        batch, size = tree.tokens.shape
        # Greedy decoding has no distribution of its own: the model's is shown.
        keys, sampling = feedback.keys, feedback.sampling
        sampled = sampling is not None and keys is not None
        if sampling is None or keys is None:
            sampling = Sampling()
        logits = feedback.output.logits if feedback.processed is None else feedback.processed
        probs = samplings.node_probabilities(logits, sampling)
        best, candidates = top_k(probs, min(self.num_candidates, self.vocab_size))
        noise = None
        if keys is not None and sampled:
            steps = [
                samplings.gumbel(keys, feedback.positions + depth, self.vocab_size)
                for depth in range(tree.depth + 1)
            ]
            depths = jnp.minimum(trees.depths(tree), tree.depth)
            here = jnp.take_along_axis(jnp.stack(steps, axis=1), depths[..., None], axis=1)
            drawn = samplings.argmax(jnp.log(probs) + here)
            candidates = jnp.concatenate([candidates, drawn[..., None]], axis=-1)
            best = jnp.take_along_axis(probs, candidates, axis=-1)
            noise = jnp.take_along_axis(here, candidates, axis=-1)
        rows = jnp.arange(batch)[:, None]
        last = jnp.take_along_axis(verdict.path, verdict.path_lengths[:, None] - 1, axis=1)
        node_probs = probs[rows, jnp.maximum(tree.parents, 0), tree.tokens].at[:, 0].set(1.0)
        outcome = RecordedOutcome(
            tokens=tree.tokens,
            parents=tree.parents,
            valid=tree.valid,
            path=verdict.path,
            counts=verdict.path_lengths,
            bonus=verdict.bonus,
            emitted=feedback.emitted,
            num_emitted=feedback.counts,
            probs=node_probs,
            bonus_prob=probs[rows, last, verdict.bonus[:, None]][:, 0],
            candidates=candidates,
            candidate_probs=best,
            candidate_noise=noise,
        )
        return _padded(outcome, drafted.tokens.shape[1] - size, drafted.depth - tree.depth)

    def _room(self, tree: Tree, frame: Frame) -> RecordedOutcome:
        """Returns a round's `RecordedOutcome` with nothing in it."""
        batch, size = tree.tokens.shape
        sampled = frame.sampling is not None and frame.keys is not None
        count = min(self.num_candidates, self.vocab_size) + sampled
        row, path = jnp.zeros(batch, jnp.int32), jnp.zeros((batch, tree.depth + 1), jnp.int32)
        nodes, each = jnp.zeros((batch, size)), jnp.zeros((batch, size, count))
        return RecordedOutcome(
            tokens=nodes.astype(jnp.int32),
            parents=nodes.astype(jnp.int32),
            valid=nodes > 0,
            path=path,
            counts=row,
            bonus=row,
            emitted=path,
            num_emitted=row,
            probs=nodes,
            bonus_prob=nodes[:, 0],
            candidates=each.astype(jnp.int32),
            candidate_probs=each,
            candidate_noise=each if sampled else None,
        )


@struct.dataclass
class RecordedChoice:
    """A policy's last choice among R rounds, and its memory."""

    inner: PyTree
    index: Int[Array, ""]
    expected_tokens: Float[Array, " R"]
    """NaN where the policy expects nothing, as in a round without a draft."""
    seconds: Float[Array, " R"]


@dataclass(frozen=True)
class RecordedPolicy(WidthPolicy):
    """Decides what its policy decides, and remembers the last choice. `jspec.trace` makes it."""

    policy: WidthPolicy
    num_rounds: int

    @property
    def widths(self) -> tuple[int, ...]:
        return self.policy.widths

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> RecordedChoice:
        return self.around(self.policy.init(batch, capacity, earlier))

    def around(self, inner: PyTree) -> RecordedChoice:
        """Returns the state before the first round, from the policy's own."""
        # Arrays of their own: a state is donated.
        expected, seconds = jnp.full((2, self.num_rounds), jnp.nan, jnp.float32)
        return RecordedChoice(inner, jnp.int32(0), expected, seconds)

    def should_draft(self, params: PyTree, state: RecordedChoice) -> bool | Bool[Array, ""]:
        return self.policy.should_draft(params, state.inner)

    def choose(
        self, params: PyTree, state: RecordedChoice, tree: Tree, frame: Frame
    ) -> WidthChoice:
        return self.policy.choose(params, state.inner, tree, frame)

    def skip_expensive_updates(
        self, params: PyTree, state: RecordedChoice
    ) -> Bool[Array, ""] | None:
        return self.policy.skip_expensive_updates(params, state.inner)

    def update(
        self, params: PyTree, state: RecordedChoice, feedback: PolicyFeedback
    ) -> RecordedChoice:
        after = self.around(self.policy.update(params, state.inner, feedback))
        choice, drafts = feedback.choice, self.should_draft(params, state)
        if choice is None or choice.seconds is None or choice.expected_tokens is None:
            return after if choice is None else replace(after, index=choice.index)
        return replace(
            after,
            index=choice.index,
            expected_tokens=jnp.where(drafts, choice.expected_tokens, jnp.nan),
            seconds=jnp.where(drafts, choice.seconds, jnp.nan),
        )


def _bare(tree: Tree) -> Tree:
    """Returns the nodes alone, and what they were estimated at."""
    return Tree(
        tokens=tree.tokens.astype(jnp.int32),
        parents=tree.parents.astype(jnp.int32),
        valid=tree.valid,
        depth=tree.depth,
        width=tree.width,
        value=tree.value,
    )


def _with_estimates(tree: Tree) -> Tree:
    """Returns the bare tree, with the probabilities of q if it has no estimates."""
    bare = _bare(tree)
    if tree.value is not None or tree.q is None:
        return bare
    row = jnp.arange(tree.tokens.shape[1])[None] if tree.q_row is None else tree.q_row
    above = jnp.maximum(tree.parents, 0)
    q_index = jnp.take_along_axis(jnp.broadcast_to(row, tree.tokens.shape), above, axis=1)
    batch = jnp.arange(tree.tokens.shape[0])[:, None]
    probs = tree.q[batch, q_index, tree.tokens].astype(jnp.float32).at[:, 0].set(1.0)
    return replace(bare, value=trees.path_probabilities(tree.parents, probs, tree.depth))


def _padded(outcome: RecordedOutcome, nodes: int, steps: int) -> RecordedOutcome:
    """Returns the outcome with absent nodes and steps added, none where nothing is missing."""

    def wider(array, by, fill=0):
        padding = [(0, 0), (0, by)] + [(0, 0)] * (array.ndim - 2)
        return jnp.pad(array, padding, constant_values=fill)

    return replace(
        outcome,
        tokens=wider(outcome.tokens, nodes),
        parents=wider(outcome.parents, nodes, NO_PARENT),
        valid=wider(outcome.valid, nodes),
        path=wider(outcome.path, steps),
        emitted=wider(outcome.emitted, steps),
        probs=wider(outcome.probs, nodes),
        candidates=wider(outcome.candidates, nodes),
        candidate_probs=wider(outcome.candidate_probs, nodes),
        candidate_noise=jax.tree.map(lambda noise: wider(noise, nodes), outcome.candidate_noise),
    )
