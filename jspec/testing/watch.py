"""Wrappers between the engine and the code under test that write down what passes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.drafters.wrapper import DrafterWrapper
from jspec.protocols import CausalLM, Drafter
from jspec.testing.promises import promise
from jspec.types import Feedback, Frame, Output, PromptChunk, PyTree, Tree

NEVER = 2**31 - 1
"""The `Poisoned.start` of a row that stays as it is."""


@struct.dataclass
class Poisoned:
    """The params of a `WatchedModel`: the rows that it spoils, as data that compiles nothing."""

    params: PyTree
    start: Int[Array, " B"]
    """The position from which the model gives only NaN for a row."""


@dataclass(frozen=True)
class WatchedModel:
    """A model that counts how often it is traced, and that can give NaN on demand."""

    inner: CausalLM
    traces: list = field(default_factory=list, compare=False)

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def context(self) -> int | None:
        return self.inner.context

    def init_memory(self, batch: int, capacity: int) -> PyTree:
        return self.inner.init_memory(batch, capacity)

    @property
    def commit(self) -> Any:
        return self.inner.commit

    @property
    def until(self) -> Any:
        return self.inner.until  # pyright: ignore[reportAttributeAccessIssue]

    def apply(
        self,
        params: Poisoned,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: PyTree,
        nodes: PyTree = None,
    ) -> Output:
        self.traces.append(tokens.shape)
        earlier = () if nodes is None else (nodes,)
        output = self.inner.apply(params.params, tokens, positions, mask, memory, *earlier)
        bad = positions >= params.start[:, None]

        def spoil(array: Array) -> Array:
            # [B, N, _] of logits and states, [B, H, N, D] of keys and values.
            here = bad[:, :, None] if array.ndim == 3 else bad[:, None, :, None]
            return jnp.where(here, jnp.nan, array)

        return jax.tree.map(spoil, output)


@struct.dataclass
class Log:
    """The trees of a run as they were drafted, before the engine looked at them."""

    tokens: Int[Array, "R B N"]
    parents: Int[Array, "R B N"]
    valid: Bool[Array, "R B N"]
    value: Float[Array, "R B N"] | None
    root: Int[Array, "R B"]
    positions: Int[Array, "R B"]
    done: Bool[Array, "R B"]
    counts: Int[Array, "R B"]
    """The number of tokens that each round emitted."""
    rounds: Int[Array, ""]


@struct.dataclass
class Watched:
    """The state of a `WatchedDrafter`."""

    inner: PyTree
    log: Log


@dataclass(frozen=True)
class WatchedDrafter(DrafterWrapper):
    """A drafter that writes down its trees, in a state that the engine carries anyway."""

    drafter: Drafter
    tree: Any = field(compare=False)
    rounds: int

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> Watched:
        def room(like: Any) -> Array:
            return jnp.zeros((self.rounds, batch, like.shape[1]), like.dtype)

        def rows(dtype: Any = jnp.int32) -> Array:
            return jnp.zeros((self.rounds, batch), dtype)

        tree = self.tree
        log = Log(
            tokens=room(tree.tokens),
            parents=room(tree.parents),
            valid=room(tree.valid),
            value=None if tree.value is None else room(tree.value),
            root=rows(),
            positions=rows(),
            done=rows(bool),
            counts=rows(),
            rounds=jnp.int32(0),
        )
        inner = None if earlier is None else earlier.inner
        return Watched(self.drafter.init(batch, capacity, inner), log)

    def prefill(self, params: PyTree, state: Watched, chunk: PromptChunk) -> Watched:
        return replace(state, inner=self.drafter.prefill(params, state.inner, chunk))

    def draft(
        self, params: PyTree, state: Watched, frame: Frame
    ) -> tuple[Tree, tuple[PyTree, Tree, Frame]]:
        tree, aux = self.drafter.draft(params, state.inner, frame)
        return tree, (aux, tree, frame)

    def update(
        self, params: PyTree, state: Watched, aux: PyTree | None, feedback: Feedback
    ) -> Watched:
        if aux is None:
            alone = self.drafter.update(params, state.inner, None, feedback)
            promise(
                shapes(alone) == shapes(state.inner),
                "an update without an aux keeps the structure, shapes and dtypes of the memory: "
                f"{type(self.drafter).__name__} should give {shapes(state.inner)} and "
                f"gives {shapes(alone)}",
            )
            return replace(state, inner=alone)
        inner_aux, tree, frame = aux
        log, turn = state.log, state.log.rounds

        def note(buffer: Array, new: Array) -> Array:
            return buffer.at[turn].set(new.astype(buffer.dtype), mode="drop")

        log = replace(
            log,
            tokens=note(log.tokens, tree.tokens),
            parents=note(log.parents, tree.parents),
            valid=note(log.valid, tree.valid),
            value=None if tree.value is None or log.value is None else note(log.value, tree.value),
            root=note(log.root, frame.root),
            positions=note(log.positions, frame.positions),
            done=note(log.done, frame.done),
            counts=note(log.counts, feedback.counts),
            rounds=turn + 1,
        )
        return Watched(self.drafter.update(params, state.inner, inner_aux, feedback), log)


def shapes(state: PyTree) -> Any:
    """Returns the shapes and dtypes of a memory's leaves, and its structure."""
    leaves, structure = jax.tree.flatten(state)
    return [(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves], structure


def read_log(state: Watched) -> Log:
    """Returns the log of a run on the host, cut to the rounds that there were."""
    log = jax.device_get(state.log)
    rounds = int(log.rounds)
    return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) == 0 else leaf[:rounds], log)


def count_traces(model: WatchedModel, call: Callable[[], Any]) -> tuple[Any, int]:
    """Returns the result of a call, and the number of programs it traced the model for."""
    before = len(model.traces)
    result = call()
    return result, len(model.traces) - before
