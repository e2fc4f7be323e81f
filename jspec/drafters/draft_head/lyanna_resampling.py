"""Lyanna's second use of a chain: what verification left of its scores makes another tree.

The chain of states does not depend on tokens. So when a level fails, the scores of the levels below
it still hold, and the target's own token informs them better than the draft's did (section 5.3).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec import tree as trees
from jspec.base import NO_PARENT, Feedback, PyTree, Tree
from jspec.drafters.growth.union import union
from jspec.errors import InputError


@struct.dataclass
class ChainCache:
    """The chain of the last round, of N levels."""

    logits: Float[Array, "B N V"]
    used: Int[Array, " B"]
    """Levels that are decided: the accepted ones, and the one that the target's token took."""
    again: Bool[Array, " B"]
    """Whether the tree under verification was a second one, after which a chain is spent."""

    def reusable(self) -> Int[Array, " B"]:
        """N - a - 1, levels that still hold."""
        return self.logits.shape[1] - self.used

    def decided(self, feedback: Feedback) -> "ChainCache":
        """After a round in which `feedback.counts` levels were decided."""
        spent = jnp.where(self.again, self.logits.shape[1], feedback.counts)
        return replace(self, used=spent, again=jnp.zeros_like(self.again))


def nothing(batch: int, levels: int, vocabulary: int) -> ChainCache:
    """Before the first round."""
    return ChainCache(
        logits=jnp.zeros((batch, levels, vocabulary), jnp.float32),
        used=jnp.full(batch, levels, jnp.int32),
        again=jnp.zeros(batch, bool),
    )


Fresh = Callable[[int], tuple[Tree, Float[Array, "B N V"]]]
"""`fresh(more)` drafts anew: a tree of so many nodes above its budget, and the chain's scores."""
Grown = Callable[[Float[Array, "B N V"], Int[Array, " B"], int, int], Tree]
"""`grown(logits, first, depth, nodes)`: the tree of a chain's levels from `first` on."""


@dataclass(frozen=True)
class Resampling(ABC):
    """Whether a chain is used a second time, and how that tree is verified."""

    @abstractmethod
    def remember(self, batch: int, levels: int, vocabulary: int) -> PyTree:
        """What is left before the first round."""

    @abstractmethod
    def trees(
        self, leftover: PyTree, fresh: Fresh, grown: Grown, done: Bool[Array, " B"]
    ) -> tuple[Tree, PyTree]:
        """The tree to verify, and what to remember of it."""

    @abstractmethod
    def learn(self, leftover: PyTree, feedback: Feedback) -> PyTree:
        """What is left after a round."""


@dataclass(frozen=True)
class Never(Resampling):
    """A chain is used once."""

    def remember(self, batch: int, levels: int, vocabulary: int) -> tuple[()]:
        del batch, levels, vocabulary
        return ()

    def trees(
        self, leftover: tuple[()], fresh: Fresh, grown: Grown, done: Bool[Array, " B"]
    ) -> tuple[Tree, tuple[()]]:
        del grown, done
        tree, _ = fresh(0)
        return tree, leftover

    def learn(self, leftover: tuple[()], feedback: Feedback) -> tuple[()]:
        del feedback
        return leftover


@dataclass(frozen=True)
class Reusing(Resampling):
    """A chain whose levels are not all decided makes a second tree (Algorithm 2).

    Args:
        num_speculative_tokens: of the second tree, without the root, if its levels offer as many.
            Deep nodes fail sooner than in a fresh one, so it wants fewer.
        threshold: r of Algorithm 2: only more than r levels make a second tree.

    Raises:
        InputError: if an argument is out of range.
    """

    num_speculative_tokens: int = 6
    threshold: int = 0

    def __post_init__(self):
        if self.num_speculative_tokens < 1:
            raise InputError(
                f"the re-sampled tree has {self.num_speculative_tokens} nodes; give it at least 1"
            )
        if self.threshold < 0:
            raise InputError(f"the re-sampling threshold is {self.threshold}; choose one >= 0")

    def remember(self, batch: int, levels: int, vocabulary: int) -> ChainCache:
        return nothing(batch, levels, vocabulary)

    def learn(self, leftover: ChainCache, feedback: Feedback) -> ChainCache:
        return leftover.decided(feedback)

    def second(self, leftover: ChainCache, grown: Grown) -> Tree:
        """Algorithm 2: the tree of what is left, the root alone where that is too little."""
        levels = leftover.logits.shape[1]
        first = jnp.where(leftover.reusable() > self.threshold, leftover.used, levels)
        return grown(leftover.logits, first, max(levels - 1, 1), self.num_speculative_tokens)


@dataclass(frozen=True)
class Fused(Reusing):
    """Verification fusion (section 6.2): both trees in one forward, united at their root."""

    def trees(
        self, leftover: ChainCache, fresh: Fresh, grown: Grown, done: Bool[Array, " B"]
    ) -> tuple[Tree, ChainCache]:
        del done
        first, logits = fresh(self.num_speculative_tokens)
        united, _ = union(first, self.second(leftover, grown))
        drafted = first.tokens.shape[1] - 1
        return trees.best(united, drafted), replace(leftover, logits=logits)


FUSED = Fused()
NEVER = Never()


@dataclass(frozen=True)
class Separate(Reusing):
    """The slower way that the paper's ablation needs: the second tree has a forward of its own.

    A row drafts anew once nothing is left. If that is so in no row, nothing is drafted.
    """

    def trees(
        self, leftover: ChainCache, fresh: Fresh, grown: Grown, done: Bool[Array, " B"]
    ) -> tuple[Tree, ChainCache]:
        reuses = leftover.reusable() > self.threshold
        second = self.second(leftover, grown)
        shape = jax.eval_shape(lambda: fresh(0))
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        first, logits = jax.lax.cond((reuses | done).all(), lambda: blank, lambda: fresh(0))
        first = replace(  # a blank tree has a root too
            first,
            parents=first.parents.at[:, 0].set(NO_PARENT),
            valid=first.valid.at[:, 0].set(True),
        )
        size = max(first.tokens.shape[1], second.tokens.shape[1])
        kept = ChainCache(
            logits=jnp.where(reuses[:, None, None], leftover.logits, logits),
            used=leftover.used,
            again=reuses,
        )
        return _choose(reuses, _padded(second, size), _padded(first, size)), kept


def _padded(tree: Tree, size: int) -> Tree:
    """With absent nodes up to `size`."""

    def pad(array, value=0):
        missing = size - array.shape[1]
        return jnp.pad(array, ((0, 0), (0, missing)), constant_values=value)

    return replace(
        tree,
        tokens=pad(tree.tokens),
        parents=pad(tree.parents),
        valid=pad(tree.valid, False),
        value=pad(tree.value),
    )


def _choose(which: Bool[Array, " B"], a: Tree, b: Tree) -> Tree:
    """Row by row, a where `which`, else b."""
    static = {"depth": max(a.depth, b.depth), "width": max(a.width, b.width)}
    a, b = replace(a, **static), replace(b, **static)
    return jax.tree.map(lambda x, y: jnp.where(which[:, None], x, y), a, b)
