"""Tokens per round as the papers count them: the round that passes the limit counts whole.

A limit that cuts the last round hides what it accepted, the more the deeper the drafts are. So a
text is decoded beyond its limit, and the drafter's rounds are counted up to the first that reaches
it. Decoding once more with exactly as many tokens then cuts no round, and can be timed.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

import jspec
from benchmarks.harness import few_programs
from benchmarks.texts import Prompts
from jspec import tree as trees
from jspec.drafters.wrapper import DrafterWrapper
from jspec.protocols import Drafter
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree

DEEPEST = 40
"""Tokens that a round may emit, and so go beyond a limit."""


@struct.dataclass
class Start:
    """The initial state of a counted drafter."""

    inner: PyTree
    """The drafter's own state of an earlier call; None: none."""
    wanted: Int[Array, " B"]
    """The tokens of each row; the round that reaches them is the last that counts."""


@struct.dataclass
class Tally:
    """The drafter's memory, and what its rounds gave so far."""

    inner: PyTree
    wanted: Int[Array, " B"]
    histogram: Int[Array, "B lanes"]
    """Rounds by the number of tokens that they emitted, from 1 on."""
    num_draft_tokens: Int[Array, " B"]
    num_levels: Int[Array, " B"]
    """Levels of the drafted trees, of all rounds together."""


@dataclass(frozen=True)
class Counting(DrafterWrapper):
    """Drafts what its drafter drafts, and counts its rounds up to a limit."""

    drafter: Drafter

    def init(self, batch: int, capacity: int, earlier: Start | None) -> Tally:
        if earlier is None:
            earlier = Start(None, jnp.zeros(batch, jnp.int32))
        return Tally(
            inner=self.drafter.init(batch, capacity, earlier.inner),
            wanted=earlier.wanted,
            histogram=jnp.zeros((batch, DEEPEST), jnp.int32),
            num_draft_tokens=jnp.zeros(batch, jnp.int32),
            num_levels=jnp.zeros(batch, jnp.int32),
        )

    def prefill(self, params: PyTree, state: Tally, chunk: PromptChunk) -> Tally:
        return replace(state, inner=self.drafter.prefill(params, state.inner, chunk))

    def draft(self, params: PyTree, state: Tally, frame: Frame) -> tuple[Tree, PyTree]:
        tree, aux = self.drafter.draft(params, state.inner, frame)
        if tree.depth >= DEEPEST:
            raise ValueError(f"a tree of {tree.depth} levels; at most {DEEPEST - 1} are counted")
        return tree, aux

    def update(self, params: PyTree, state: Tally, aux: PyTree, feedback: Feedback) -> Tally:
        lanes = jnp.arange(1, DEEPEST + 1, dtype=jnp.int32)
        goes_on = (state.histogram * lanes).sum(-1) < state.wanted
        counts = jnp.where(goes_on, feedback.counts, 0)
        tree = feedback.tree
        drafted = tree.valid.sum(-1, dtype=jnp.int32) - 1
        edges = jnp.where(tree.parents < 0, 0, 1)
        depths = trees.along(tree.parents, edges, jnp.add, tree.depth)
        levels = jnp.where(tree.valid, depths, 0).max(-1)
        return Tally(
            inner=self.drafter.update(params, state.inner, aux, feedback),
            wanted=state.wanted,
            histogram=state.histogram + (lanes == counts[:, None]).astype(jnp.int32),
            num_draft_tokens=state.num_draft_tokens + jnp.where(counts > 0, drafted, 0),
            num_levels=state.num_levels + jnp.where(counts > 0, levels, 0),
        )


@dataclass(frozen=True)
class Counted:
    """The whole rounds of each row, up to the one that reached the limit."""

    histogram: Int[np.ndarray, "B lanes"]
    """Rounds by the number of tokens that they emitted, from 1 on."""
    num_draft_tokens: Int[np.ndarray, " B"]
    num_levels: Int[np.ndarray, " B"]
    texts: Int[np.ndarray, "B T"]
    """The output, tokens of uncounted rounds included."""
    memory: PyTree
    """The drafter's state at the end, the `drafter_state` of a next batch."""

    @property
    def rounds(self) -> Int[np.ndarray, " B"]:
        return self.histogram.sum(-1)

    @property
    def tokens(self) -> Int[np.ndarray, " B"]:
        return self.histogram @ np.arange(1, DEEPEST + 1)


@dataclass(frozen=True, eq=False)
class Decoding:
    """One drafter for a target, counted and decoded by the same program.

    Args:
        model: the target.
        params: its weights.
        drafter: proposes the trees.
        drafter_params: its weights.
        new_tokens: most tokens of any row.
    """

    model: jspec.CausalLM
    params: PyTree
    drafter: Drafter
    drafter_params: PyTree
    new_tokens: int

    def run(
        self,
        prompts: Prompts,
        limits: Int[np.ndarray, " B"],
        wanted: Int[np.ndarray, " B"] | None = None,
        drafter_state: PyTree = None,
        eos: tuple[int, ...] | None = None,
        **request: Any,
    ) -> jspec.Result:
        """Decodes up to `limits`; its drafter state is a `Tally`."""
        wanted = limits if wanted is None else wanted
        return jspec.decode(
            self.model, self.params, prompts.tokens, prompts.lengths,
            drafter=Counting(self.drafter), drafter_params=self.drafter_params,
            drafter_state=Start(drafter_state, jnp.asarray(wanted, jnp.int32)),
            max_new_tokens=self.new_tokens + DEEPEST,
            stopping=jspec.Stopping(max_tokens=limits, eos=eos), **request,
        )  # fmt: skip

    def count(
        self,
        prompts: Prompts,
        wanted: Int[np.ndarray, " B"] | int | None = None,
        drafter_state: PyTree = None,
        **request: Any,
    ) -> Counted:
        """Returns each row's rounds, up to the one that reaches `wanted`; None: new_tokens."""
        few_programs()
        wanted = self.new_tokens if wanted is None else wanted
        asked = np.broadcast_to(wanted, prompts.count)
        # A round that starts before the limit emits at most the tree's levels and one token.
        beyond = getattr(self.drafter, "depth", DEEPEST)
        result = self.run(prompts, asked + beyond, asked, drafter_state, **request)
        memory = result.drafter_state.inner
        tally = replace(result.drafter_state, inner=None)
        tally, texts = jax.device_get((tally, result.tokens))
        return Counted(tally.histogram, tally.num_draft_tokens, tally.num_levels, texts, memory)
