"""The kernel, and what a way to start it owes.

A tile of queries visits listed blocks of keys, one softmax over all.
"""

from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.models.block_attention.visits import Seen, Visits
from jspec.models.online_softmax import LOW, Softmax, joined, scores_of


class AttentionWork(NamedTuple):
    """What a kernel reads."""

    queries: Float[Array, "B H Q D"]
    """Scaled."""
    keys: Float[Array, "B H*L S D"]
    """Of L layers, those of a head side by side."""
    values: Float[Array, "B H*L S D"]
    reach: Int[Array, "B Q X"]
    """What tells for each query which keys of a block it sees."""
    visits: Visits
    """Blocks of the keys for each tile of queries."""
    layer: Int[Array, ""] | None = None
    """Which of the L layers is meant; None: there is one."""

    @property
    def layers(self) -> int:
        """L."""
        return self.keys.shape[1] // self.queries.shape[1]

    @property
    def number(self) -> Int[Array, " 1"]:
        """Which layer is meant, as a kernel takes it."""
        layer = self.layer
        return jnp.zeros(1, jnp.int32) if layer is None else layer.reshape(1).astype(jnp.int32)


class Launch(Protocol):
    """A way to start the kernel, and its sizes."""

    @property
    def tile(self) -> int:
        """Queries that share a visit."""
        ...

    @property
    def block(self) -> int:
        """Keys of a visit, a multiple of 32."""
        ...

    def sized(self, queries: int, slots: int, dim: int, dtype: Any) -> Self | None:
        """The same for arrays of such sizes; None: it cannot.

        Args:
            queries: of a head.
            slots: keys of a head; those of nodes are made a multiple of `block` afterwards.
            dim: of a head.
            dtype: of queries, keys and values.
        """
        ...

    def __call__(self, work: AttentionWork, seen: Seen, soft_cap: float | None) -> Softmax:
        """The softmax of all queries.

        Args:
            work: whose number of queries is a multiple of `tile`.
            seen: the mask inside of a block.
            soft_cap: of the scores.
        """
        ...


def visit(
    softmax: Softmax,
    queries: Float[Array, "Q D"],
    held: tuple[Float[Array, "K D"], Float[Array, "K D"]],
    reach: Any,
    number: Int[Array, ""],
    start: Int[Array, ""],
    seen: Seen,
    soft_cap: float | None,
) -> Softmax:
    """The kernel: a tile's softmax, joined by a block of keys and values.

    Args:
        softmax: of the blocks before.
        queries: of the tile.
        held: keys and values.
        reach: gives a column of what `seen` reads.
        number: of the block.
        start: its first slot.
        seen: the mask.
        soft_cap: of the scores.
    """
    keys, values = (part.astype(queries.dtype) for part in held)
    slots = start + jax.lax.broadcasted_iota(jnp.int32, (1, keys.shape[0]), 1)
    scores = scores_of(queries, keys, soft_cap)
    return joined(softmax, jnp.where(seen(reach, number, slots), scores, LOW), values)


def nothing(tile: int, dim: int) -> Softmax:
    """The softmax over no score."""
    return Softmax(
        jnp.full((tile, 1), LOW, jnp.float32),
        jnp.zeros((tile, 1), jnp.float32),
        jnp.zeros((tile, dim), jnp.float32),
    )


def outputs(*shape: int, dim: int) -> list[jax.ShapeDtypeStruct]:
    """The arrays of a softmax."""
    return [jax.ShapeDtypeStruct((*shape, last), jnp.float32) for last in (1, 1, dim)]
