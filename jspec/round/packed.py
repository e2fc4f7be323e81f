"""Packed trees: the scored nodes of a batch as a single row of tokens.

What the products with the weights cost, and with them nearly all of a round, goes by the number of
tokens. So where the rows of a batch have trees of different sizes, the model gets what is there of
all of them as one row, and no padding. Attention alone, in which each tree has a past of its own,
puts every node back into its tree.

Axes: T nodes that are scored, the rest as in `jspec.types`.
"""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from jspec import _struct as struct
from jspec.types import Output


@struct.dataclass
class PackedMask:
    """The mask of attention over the trees of a batch whose nodes come as one row.

    A model that `takes_packed` may get it in place of a mask [B, N, N]. Tokens and positions are
    then [1, T], and so are logits and hidden states; what is tentative is tree by tree.
    """

    seen: Bool[Array, "B N N"]
    """Node i of a tree sees node j; each sees itself."""
    nodes: Int[Array, " T"]
    """The node of each token: b * N + n, rising."""
    places: Int[Array, "B N"]
    """The token of each node; T where it is not scored."""

    def pack(self, x: Num[Array, "B N *S"]) -> Num[Array, "1 T *S"]:
        """Returns the scored nodes of all trees, as one row."""
        return x.reshape(-1, *x.shape[2:])[self.nodes][None]

    def unpack(self, x: Num[Array, "1 T *S"]) -> Num[Array, "B N *S"]:
        """Returns each node in its tree; 0 where it was not scored."""
        return x[0].at[self.places].get(mode="fill", fill_value=0)

    def unpacked(self, output: Output) -> Output:
        """Returns what a model gave for one row, tree by tree, as it gave what is tentative."""
        return replace(
            output,
            logits=self.unpack(output.logits),
            hidden=None if output.hidden is None else self.unpack(output.hidden),
        )


Mask = Bool[Array, "B N M+N"] | PackedMask
"""The mask for a model that `takes_packed`."""


def packed(seen: Bool[Array, "B N N"], scored: Bool[Array, "B N"], tokens: int) -> PackedMask:
    """Returns the mask of the nodes that are scored, of which there are at most so many.

    Args:
        seen: the mask of tree attention.
        scored: these nodes.
        tokens: T, static. If there are fewer nodes, others fill up.

    Example:
        >>> seen, scored = jnp.ones((2, 3, 3), bool), jnp.array([[1, 0, 0], [1, 1, 0]], bool)
        >>> packed(seen, scored, 3).nodes.tolist()
        [0, 3, 4]
    """
    nodes = jnp.sort(jnp.argsort(~scored.reshape(-1), stable=True)[:tokens]).astype(jnp.int32)
    places = jnp.full(scored.size, tokens, jnp.int32)
    places = places.at[nodes].set(jnp.arange(tokens, dtype=jnp.int32))
    return PackedMask(seen, nodes, places.reshape(scored.shape))


def largest_together(
    values: Float[Array, "B N"], there: Bool[Array, "B N"], count: Int[Array, ""]
) -> Bool[Array, "B N"]:
    """Returns which are the largest values of all rows together, of those that are there.

    A tie goes to the earlier row, and in it to the earlier place.

    Args:
        values: numbers.
        there: which of them count.
        count: how many are wanted, at most.

    Example:
        >>> values = jnp.array([[0.9, 0.2, 0.1], [0.8, 0.7, 0.7]])
        >>> largest_together(values, values > 0.1, jnp.int32(3)).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0]]
    """
    order = jnp.argsort(jnp.where(there, -values, jnp.inf), axis=None)
    first = jnp.arange(order.size, dtype=jnp.int32) < count
    return there & jnp.zeros(order.size, bool).at[order].set(first).reshape(there.shape)
