"""The blocks of keys that a tile of queries has to visit, and what it sees inside of them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

WORD = 32
"""Keys whose bits share an integer; a block has a multiple of them."""

Column = Callable[[Int[Array, ""] | int], Int[Array, "Q #K"]]
"""A column of what tells the reach of a tile's queries, which may be repeated for each key."""
Seen = Callable[[Column, Int[Array, ""], Int[Array, "#Q K"]], Bool[Array, "Q K"]]
"""Visible keys of a block for a tile's queries, from their reach and the block's slots."""


class Visits(NamedTuple):
    """Numbers of blocks for each tile of queries. T: tiles; C: blocks of keys."""

    blocks: Int[Array, "B T C"]
    """Block numbers, those to visit first."""
    counts: Int[Array, "B T"]
    """The number of blocks to visit."""


def list_blocks(wanted: Bool[Array, "B T C"]) -> Visits:
    """Returns the blocks that are wanted, in rising order."""
    numbers = jnp.arange(wanted.shape[-1], dtype=jnp.int32)
    place = jnp.cumsum(wanted, axis=-1, dtype=jnp.int32) - 1
    # A comparison and not a scatter: it is small, and fuses into one kernel.
    here = wanted[..., None, :] & (place[..., None, :] == numbers[:, None])
    return Visits(
        jnp.where(here, numbers, 0).sum(-1, dtype=jnp.int32), wanted.sum(-1, dtype=jnp.int32)
    )


def pack_bits(seen: Bool[Array, "B N K"]) -> Int[Array, "B N W"]:
    """Returns a mask as bits, `WORD` keys to an integer; K is a multiple of `WORD`."""
    bits = seen.reshape(*seen.shape[:-1], -1, WORD).astype(jnp.uint32)
    words = (bits << jnp.arange(WORD, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.int32)


def of_bits(words: Int[Array, "B Q W"], tile: int, block: int) -> Visits:
    """Returns the blocks in which some query of a tile sees some key."""
    batch, queries, _ = words.shape
    tiles = words.reshape(batch, queries // tile, tile, -1, block // WORD)
    return list_blocks((tiles != 0).any((2, 4)))


def of_range(limits: Int[Array, "B Q 2"], tile: int, block: int, slots: int) -> Visits:
    """Returns the blocks between a tile's oldest visible slot and the row's end."""
    tiles = limits.reshape(len(limits), -1, tile, 2)
    first = jnp.maximum(tiles[..., 0].min(-1), 0) // block
    end = (tiles[..., 1].max(-1) + block - 1) // block
    numbers = jnp.arange(-(-slots // block), dtype=jnp.int32)
    # The last block, where there is none: what is not visited may yet be fetched.
    blocks = jnp.minimum(first[..., None] + numbers, len(numbers) - 1)
    return Visits(blocks, jnp.maximum(end - first, 0))


def in_bits(
    column: Column, number: Int[Array, ""], slots: Int[Array, "#Q K"]
) -> Bool[Array, "Q K"]:
    """Returns what the bits of a mask say of a block."""
    size = slots.shape[1]
    lanes = slots - number * size
    first = number * (size // WORD)
    words = column(first)
    for place in range(1, size // WORD):
        words = jnp.where(lanes >= place * WORD, column(first + place), words)
    return jnp.right_shift(words, lanes % WORD) & 1 != 0


def in_range(
    column: Column, number: Int[Array, ""], slots: Int[Array, "#Q K"]
) -> Bool[Array, "Q K"]:
    """Returns the slots of a block from a query's oldest up to the end of its row."""
    # A block may begin before its place, where blocks do not divide the slots.
    own = slots >= number * slots.shape[1]
    return own & (slots >= column(0)) & (slots < column(1))
