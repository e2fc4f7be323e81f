"""A model under test: some text, a tree behind it, and the ways to score them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec import memory as caches
from jspec.protocols import CausalLM
from jspec.testing.promises import promise
from jspec.types import Cache, Output, PyTree, TreeKV

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
        cache: Cache | None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """One forward, compiled: the model is static."""
        arrays = [jnp.asarray(x, jnp.int32) for x in (tokens, positions)]
        return _forward(self.model, self.params, *arrays, jnp.asarray(mask, bool), cache, nodes)

    def whole(self, tokens: Int[np.ndarray, "B T"]) -> Output:
        """The forward of a whole text, each token after all before it, without a cache."""
        return self.apply(tokens, *text_of(tokens.shape), None)

    def cache(self, fill: float = 0.0) -> Cache:
        """A cache with `PAST` tokens of each row, and `fill` in all other slots."""
        kept = self.tokens[:, : PAST.max()]
        output = self.whole(kept)
        empty = self.model.init_cache(len(kept), SLOTS)
        stale = [
            tuple(jnp.full_like(layer, fill) for layer in part)
            for part in (empty.keys, empty.values)
        ]
        empty = replace(empty, keys=stale[0], values=stale[1])
        path = jnp.broadcast_to(jnp.arange(kept.shape[1]), kept.shape)
        return caches.commit(empty, output, path, jnp.asarray(PAST))

    def drafted(self) -> Int[np.ndarray, "B N"]:
        """The forward of the tree's tokens, which follow the committed ones."""
        return np.stack(
            [row[past : past + len(PARENTS)] for row, past in zip(self.tokens, PAST, strict=True)]
        )

    def same(self, found: Any, wanted: Any, sentence: str) -> None:
        """Raises AssertionError unless logits [.., V] are equal up to the tolerance."""
        found, wanted = (np.asarray(x, np.float64) for x in (found, wanted))
        allowed = self.bound()
        if not np.isfinite(found).all():
            promise(False, f"{sentence}: the logits hold NaN or an infinity")
        far = np.abs(found - wanted).max()
        promise(
            far <= allowed,
            f"{sentence}: the logits should be equal up to {allowed:.2g} and differ by {far:.3g}",
        )

    def bound(self) -> float:
        tolerance = self.tolerance
        if tolerance is None:
            narrow = jnp.finfo(self.dtype).bits < 32
            tolerance = 0.05 if narrow else 1e-4
        return tolerance * max(self.widest, 1e-3)

    @property
    def dtype(self) -> Any:
        """The type of the cache, in which the model computes."""
        return self.model.init_cache(1, 1).keys[0].dtype


def _forward_of(
    model: CausalLM,
    params: PyTree,
    tokens: Int[Array, "B N"],
    positions: Int[Array, "B N"],
    mask: Bool[Array, "B N M+N"],
    cache: Cache | None,
    nodes: TreeKV | None,
) -> Output:
    earlier = () if nodes is None else (nodes,)
    return model.apply(params, tokens, positions, mask, cache, *earlier)


_forward = jax.jit(_forward_of, static_argnames=("model",))


def text_of(shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The (positions, mask) of rows of text."""
    batch, size = shape
    causal = np.tril(np.ones((size, size), bool))
    return np.tile(np.arange(size), (batch, 1)), np.tile(causal, (batch, 1, 1))


def above(parents: np.ndarray) -> Bool[np.ndarray, "N N"]:
    """The mask whose entry `[i, j]` is True where node j is node i or above it."""
    mask = np.eye(len(parents), dtype=bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return mask
