"""Lyanna's re-sampling: the scores that verification left draft another tree.

The chain of states does not depend on tokens. So when a level fails, the scores of the levels below
it still hold, and the target's own token informs them better than the draft's did (section 5.3).
L: levels of the chain.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.kinds import COUNT, Integer
from jspec._validate.options import check_fields
from jspec._xla.manual_axes import vary
from jspec.drafters.growth.union import union
from jspec.types import NO_PARENT, Feedback, Tree


@struct.dataclass
class ChainCache:
    """The scores of the last chain, and how much of it is spent."""

    logits: Float[Array, "B L V"]
    num_decided: Int[Array, " B"]
    """The number of decided levels: the accepted ones', and the target's own token's."""
    resampled: Bool[Array, " B"]
    """True where the tree under verification is a second one, after which a chain is spent."""

    @staticmethod
    def init(batch: int, levels: int, vocab_size: int) -> "ChainCache":
        """Returns a spent chain: before the first round there is nothing to use again."""
        return ChainCache(
            logits=jnp.zeros((batch, levels, vocab_size), jnp.float32),
            num_decided=jnp.full(batch, levels, jnp.int32),
            resampled=jnp.zeros(batch, bool),
        )

    @property
    def num_reusable(self) -> Int[Array, " B"]:
        """The number of levels that still hold, N - a - 1."""
        return self.logits.shape[1] - self.num_decided

    def invalidate_where(self, read: Bool[Array, " B"]) -> "ChainCache":
        """Returns the cache of rows whose text changed: their chains are invalid."""
        return replace(
            self,
            num_decided=jnp.where(read, self.logits.shape[1], self.num_decided),
            resampled=self.resampled & ~read,
        )

    def decide(self, counts: Int[Array, " B"]) -> "ChainCache":
        """Returns the cache after a round in which `counts` levels were decided."""
        spent = jnp.where(self.resampled, self.logits.shape[1], counts)
        return replace(self, num_decided=spent, resampled=jnp.zeros_like(self.resampled))


DraftFresh = Callable[[int], tuple[Tree, Float[Array, "B L V"]]]
"""A function `fresh(more)`: a tree with more nodes, and its chain's scores."""
GrowTree = Callable[[Float[Array, "B L V"], Int[Array, " B"], int, int], Tree]
"""A function `grow(logits, first, depth, nodes)`: the tree of later levels."""


@dataclass(frozen=True)
class Resampling(ABC):
    """The way in which the undecided levels of a chain make a second tree (Algorithm 2)."""

    num_speculative_tokens: Annotated[int, COUNT] = 6
    threshold: Annotated[int, Integer(0)] = 0

    def __post_init__(self):
        check_fields(self)

    @abstractmethod
    def trees(
        self, cache: ChainCache, fresh: DraftFresh, grow: GrowTree, done: Bool[Array, " B"]
    ) -> tuple[Tree, ChainCache]:
        """Returns the tree to verify, and the cache that holds its chain."""

    def learn(self, cache: ChainCache, feedback: Feedback) -> ChainCache:
        """Returns the cache after a round."""
        return cache.decide(feedback.counts)

    def second(self, cache: ChainCache, grow: GrowTree) -> Tree:
        """Returns the tree of the levels that still hold; the root alone if too few do."""
        levels = cache.logits.shape[1]
        first = jnp.where(cache.num_reusable > self.threshold, cache.num_decided, levels)
        return grow(cache.logits, first, max(levels - 1, 1), self.num_speculative_tokens)


@dataclass(frozen=True)
class Merged(Resampling):
    """Verification fusion as published (section 6.2): the second tree's nodes on top of the
    fresh tree's, united at their root. Where there is no second tree the fresh one stands alone.
    """

    def trees(
        self, cache: ChainCache, fresh: DraftFresh, grow: GrowTree, done: Bool[Array, " B"]
    ) -> tuple[Tree, ChainCache]:
        del done
        first, logits = fresh(0)
        united, _ = union(first, self.second(cache, grow))
        return united, replace(cache, logits=logits)


@dataclass(frozen=True)
class Fused(Resampling):
    """Fusion that fills its budget: the nodes of both trees of largest joint probability."""

    def trees(
        self, cache: ChainCache, fresh: DraftFresh, grow: GrowTree, done: Bool[Array, " B"]
    ) -> tuple[Tree, ChainCache]:
        del done
        first, logits = fresh(self.num_speculative_tokens)
        united, _ = union(first, self.second(cache, grow))
        num_drafted = first.tokens.shape[1] - 1
        return trees.best(united, num_drafted), replace(cache, logits=logits)


@dataclass(frozen=True)
class Separate(Resampling):
    """The paper's ablation: the second tree has its own forward pass."""

    def trees(
        self, cache: ChainCache, fresh: DraftFresh, grow: GrowTree, done: Bool[Array, " B"]
    ) -> tuple[Tree, ChainCache]:
        reuses = cache.num_reusable > self.threshold
        second = self.second(cache, grow)
        shape = jax.eval_shape(lambda: fresh(0))
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        blank = vary(blank, done)
        first, logits = jax.lax.cond(
            (reuses | done).all(), lambda: blank, lambda: vary(fresh(0), done)
        )
        first = replace(  # a blank tree has a root too
            first,
            parents=first.parents.at[:, 0].set(NO_PARENT),
            valid=first.valid.at[:, 0].set(True),
        )
        size = max(first.tokens.shape[1], second.tokens.shape[1])
        new_cache = ChainCache(
            logits=jnp.where(reuses[:, None, None], cache.logits, logits),
            num_decided=cache.num_decided,
            resampled=reuses,
        )
        return _choose(reuses, _pad(second, size), _pad(first, size)), new_cache


FUSED = Fused()


def _pad(tree: Tree, size: int) -> Tree:
    """Returns the tree with absent nodes up to `size`."""

    def pad(array: Shaped[Array, "B N"], value: float = 0) -> Shaped[Array, "B size"]:
        missing = size - array.shape[1]
        return jnp.pad(array, ((0, 0), (0, missing)), constant_values=value)

    assert tree.value is not None, "trees of a chain have values"
    return replace(
        tree,
        tokens=pad(tree.tokens),
        parents=pad(tree.parents),
        valid=pad(tree.valid, False),
        value=pad(tree.value),
    )


def _choose(which: Bool[Array, " B"], a: Tree, b: Tree) -> Tree:
    """Returns the arrays of a in the rows of `which`, and of b in the others."""
    static = {"depth": max(a.depth, b.depth), "width": max(a.width, b.width)}
    a, b = replace(a, **static), replace(b, **static)
    return jax.tree.map(lambda x, y: jnp.where(which[:, None], x, y), a, b)
