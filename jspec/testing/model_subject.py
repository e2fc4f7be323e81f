"""A model under test: some text, a tree behind it, and the ways to score them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec.protocols import CausalLM
from jspec.testing.promises import promise
from jspec.types import Output, PyTree

PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 3, 5, 8])
"""A tree with siblings at every level, children of the first and of later ones."""
LEVELS = ([0], [1, 2], [3, 4, 5], [6, 7, 8], [9])
PAST = np.array([5, 9, 1])
"""Committed tokens of the rows."""
SLOTS = 16


@dataclass
class ModelSubject:
    """A model, its params, some text, and the ways to score it."""

    model: CausalLM
    params: PyTree
    tokens: Int[np.ndarray, "B T"]
    tolerance: float | None
    widest: float = 1.0
    """The largest logit, to which the tolerance is relative."""

    def apply(
        self,
        tokens: Any,
        positions: Any,
        mask: Any,
        memory: PyTree,
        nodes: PyTree = None,
    ) -> Output:
        """Returns one forward pass, compiled: the model is static."""
        arrays = [jnp.asarray(x, jnp.int32) for x in (tokens, positions)]
        return _forward(self.model, self.params, *arrays, jnp.asarray(mask, bool), memory, nodes)

    def whole(self, tokens: Int[np.ndarray, "B T"]) -> Output:
        """Returns the forward pass over a whole text, after an empty memory."""
        return self.apply(
            tokens, *text_of(tokens.shape), self.model.init_memory(len(tokens), SLOTS)
        )

    def memory(self, stale: bool = False) -> PyTree:
        """Returns the memory of `PAST` tokens per row; if stale, with traces of other tokens."""
        tokens = self.tokens[:, : PAST.max()]
        live = np.arange(tokens.shape[1]) < PAST[:, None]
        if stale:
            tokens = np.where(live, tokens, (tokens + 1) % self.model.vocab_size)
        counts = np.full_like(PAST, tokens.shape[1]) if stale and self.can_cut else PAST
        path = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        empty = self.model.init_memory(len(tokens), SLOTS)
        memory = self.model.commit(empty, self.whole(tokens).tentative, path, jnp.asarray(counts))
        return self.until(memory) if stale and self.can_cut else memory

    def until(self, memory: PyTree) -> PyTree:
        """Returns the memory, cut back to `PAST` tokens of each row."""
        model: Any = self.model
        return model.until(memory, jnp.asarray(PAST))

    @property
    def can_cut(self) -> bool:
        """True if the model's memory can be cut back."""
        return hasattr(self.model, "until")

    def draft(self) -> Int[np.ndarray, "B N"]:
        """Returns the forward pass of the tree's tokens, which follow the committed ones."""
        return np.stack(
            [row[past : past + len(PARENTS)] for row, past in zip(self.tokens, PAST, strict=True)]
        )

    def same(self, actual: Any, reference: Any, sentence: str) -> None:
        """Raises AssertionError unless logits [.., V] are equal up to the tolerance."""
        actual, reference = (np.asarray(x, np.float64) for x in (actual, reference))
        allowed = self.bound()
        if not np.isfinite(actual).all():
            promise(False, f"{sentence}: the logits hold NaN or an infinity")
        far = np.abs(actual - reference).max()
        promise(
            far <= allowed,
            f"{sentence}: the logits should be equal up to {allowed:.2g} and differ by {far:.3g}",
        )

    def bound(self) -> float:
        tolerance = self.tolerance
        if tolerance is None:
            narrow = jnp.finfo(getattr(self.model, "dtype", jnp.float32)).bits < 32
            tolerance = 0.05 if narrow else 1e-4
        return tolerance * max(self.widest, 1e-3)


def _forward_of(
    model: CausalLM,
    params: PyTree,
    tokens: Int[Array, "B N"],
    positions: Int[Array, "B N"],
    mask: Bool[Array, "B N M+N"],
    memory: PyTree,
    nodes: PyTree,
) -> Output:
    earlier = () if nodes is None else (nodes,)
    return model.apply(params, tokens, positions, mask, memory, *earlier)


_forward = jax.jit(_forward_of, static_argnames=("model",))


def text_of(shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the (positions, mask) of rows of text."""
    batch, size = shape
    causal = np.tril(np.ones((size, size), bool))
    return np.tile(np.arange(size), (batch, 1)), np.tile(causal, (batch, 1, 1))


def above(parents: np.ndarray) -> Bool[np.ndarray, "N N"]:
    """Returns the mask whose entry `[i, j]` is True where node j is node i or above it."""
    mask = np.eye(len(parents), dtype=bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return mask
