"""The kernel, and how it is started on a GPU and on a TPU.

A tile of queries visits listed blocks of keys, one softmax over all. Triton runs a program for each
tile, which loops over the blocks; several programs may share them, and their softmaxes are merged.
On a TPU each visit is a step of the grid, so that the next block is on its way meanwhile.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from jspec.models.block_attention.visits import Seen, Visits
from jspec.models.online_softmax import LOW, Softmax, joined, merged, scores_of


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

    def sized(self, queries: int, slots: int, dim: int) -> Self | None:
        """The same for arrays of such sizes; None: it cannot.

        Args:
            queries: of a head.
            slots: keys of a head; those of nodes are made a multiple of `block` afterwards.
            dim: of a head.
        """
        ...

    def __call__(
        self,
        queries: Float[Array, "B H Q D"],
        keys: Float[Array, "B H*L S D"],
        values: Float[Array, "B H*L S D"],
        reach: Int[Array, "B Q X"],
        visits: Visits,
        layer: Int[Array, ""] | None,
        seen: Seen,
        soft_cap: float | None,
    ) -> Softmax:
        """The softmax of queries, whose number is a multiple of `tile`.

        Args:
            queries: scaled.
            keys, values: of L layers, those of a head side by side.
            reach: what `seen` reads for each query.
            visits: blocks of the keys for each tile.
            layer: which of the L layers; None: there is one.
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


def _nothing(tile: int, dim: int) -> Softmax:
    """The softmax over no score."""
    return Softmax(
        jnp.full((tile, 1), LOW, jnp.float32),
        jnp.zeros((tile, 1), jnp.float32),
        jnp.zeros((tile, dim), jnp.float32),
    )


def _outputs(*shape: int, dim: int) -> list[jax.ShapeDtypeStruct]:
    """The arrays of a softmax."""
    return [jax.ShapeDtypeStruct((*shape, last), jnp.float32) for last in (1, 1, dim)]


def _ways(layer: Int[Array, ""] | None) -> Int[Array, " 1"]:
    return jnp.zeros(1, jnp.int32) if layer is None else layer.reshape(1).astype(jnp.int32)


@dataclass(frozen=True)
class Triton:
    """The kernel on a CUDA GPU.

    JAX has announced that it will take Triton out of Pallas, from version 0.11 on.

    Example:
        >>> Triton(tile=64, block=32).sized(queries=12, slots=100, dim=64).tile
        16
    """

    tile: int = 64
    """A power of two, from 16 on."""
    block: int = 32
    """A power of two, from 32 on."""
    pieces: int = 1
    """Programs that share the blocks of a tile."""
    num_warps: int = 4
    num_stages: int = 2
    interpret: bool = False
    """True to run it step by step on any device, for tests."""

    def sized(self, queries: int, slots: int, dim: int) -> "Triton | None":
        """As in `Launch`. Triton wants powers of two."""
        if dim < 16 or dim & (dim - 1) or slots < self.block:
            return None
        return replace(self, tile=min(self.tile, max(16, pl.next_power_of_2(queries))))

    def __call__(
        self,
        queries: Float[Array, "B H Q D"],
        keys: Float[Array, "B H*L S D"],
        values: Float[Array, "B H*L S D"],
        reach: Int[Array, "B Q X"],
        visits: Visits,
        layer: Int[Array, ""] | None,
        seen: Seen,
        soft_cap: float | None,
    ) -> Softmax:
        """As in `Launch`."""
        from jax.experimental.pallas import triton

        batch, heads, count, dim = queries.shape
        slots, listed = keys.shape[2], visits.blocks.shape[-1]
        layers = keys.shape[1] // heads
        tiles = count // self.tile

        def kernel(layer, counts, blocks, queries, reach, keys, values, *out):
            piece, held, tile = pl.program_id(1), layer[0], queries[...]
            share = pl.cdiv(counts[0], self.pieces)
            first = piece * share

            def column(place):
                return reach[:, pl.ds(place, 1)]

            def one(place, softmax):
                number = blocks[place]
                start = jnp.minimum(number * self.block, slots - self.block)
                part = pl.ds(start, self.block)
                both = keys[held, part, :], values[held, part, :]
                return visit(softmax, tile, both, column, number, start, seen, soft_cap)

            last = jnp.minimum(first + share, counts[0])
            found = jax.lax.fori_loop(first, last, one, _nothing(self.tile, dim))
            for array, part in zip(out, found, strict=True):
                array[...] = part

        def of_row(*shape: int) -> pl.BlockSpec:
            return pl.BlockSpec((None, None, *shape), lambda t, p, z: (z // heads, t, 0))

        cache = pl.BlockSpec((None, layers, slots, dim), lambda t, p, z: (z, 0, 0, 0))
        found = pl.pallas_call(
            kernel,
            out_shape=_outputs(batch * heads, self.pieces, count, dim=dim),
            # Tiles go first: those that run side by side read the same keys.
            grid=(tiles, self.pieces, batch * heads),
            in_specs=[
                pl.BlockSpec((1,), lambda t, p, z: (0,)),
                of_row(1),
                of_row(listed),
                pl.BlockSpec((None, self.tile, dim), lambda t, p, z: (z, t, 0)),
                pl.BlockSpec(
                    (None, self.tile, reach.shape[-1]), lambda t, p, z: (z // heads, t, 0)
                ),
                cache,
                cache,
            ],
            out_specs=[
                pl.BlockSpec((None, None, self.tile, last), lambda t, p, z: (z, p, t, 0))
                for last in (1, 1, dim)
            ],
            interpret=self.interpret,
            compiler_params=triton.CompilerParams(
                num_warps=self.num_warps, num_stages=self.num_stages
            ),
            name="block_attention",
        )(
            *(_ways(layer), visits.counts[..., None], visits.blocks),
            *(queries.reshape(batch * heads, count, dim), reach),
            *(part.reshape(batch * heads, layers, slots, dim) for part in (keys, values)),
        )
        softmax = merged(Softmax(*found))
        return Softmax(*(part.reshape(batch, heads, count, -1) for part in softmax))


@dataclass(frozen=True)
class Mosaic:
    """The kernel on a TPU.

    Example:
        >>> Mosaic(tile=512, block=128).sized(queries=12, slots=100, dim=64).tile
        16
    """

    tile: int = 512
    """A multiple of 16."""
    block: int = 512
    """A multiple of 128."""
    interpret: bool = False
    """True to run it step by step on any device, for tests."""

    def sized(self, queries: int, slots: int, dim: int) -> "Mosaic | None":
        """As in `Launch`."""
        return replace(self, tile=min(self.tile, -(-queries // 16) * 16))

    def __call__(
        self,
        queries: Float[Array, "B H Q D"],
        keys: Float[Array, "B H*L S D"],
        values: Float[Array, "B H*L S D"],
        reach: Int[Array, "B Q X"],
        visits: Visits,
        layer: Int[Array, ""] | None,
        seen: Seen,
        soft_cap: float | None,
    ) -> Softmax:
        """As in `Launch`."""
        from jax.experimental.pallas import tpu

        batch, heads, count, dim = queries.shape
        slots, layers = keys.shape[2], keys.shape[1] // heads
        tiles, listed = visits.blocks.shape[1:]

        def kernel(layer, counts, blocks, queries, reach, keys, values, *out):
            del layer
            row, tile, place = (pl.program_id(axis) for axis in (0, 2, 3))

            @pl.when(place == 0)
            def _():
                for array, part in zip(out, _nothing(self.tile, dim), strict=True):
                    array[...] = part

            @pl.when(place < counts[row, tile])
            def _():
                number = blocks[row, tile, place]
                start = number * self.block
                held = keys[...], values[...]
                if slots % self.block:
                    # The last block goes beyond the end, where anything may stand.
                    live = jax.lax.broadcasted_iota(jnp.int32, (self.block, 1), 0) < slots - start
                    held = held[0], jnp.where(live, held[1], 0)
                softmax = Softmax(*(array[...] for array in out))
                column = partial(_column, reach[...])
                found = visit(softmax, queries[...], held, column, number, start, seen, soft_cap)
                for array, part in zip(out, found, strict=True):
                    array[...] = part

        def block_of(b, h, t, j, layer, counts, blocks):
            # Where nothing is left to visit, the last block stays, and nothing is fetched.
            place = jnp.minimum(j, jnp.maximum(counts[b, t] - 1, 0))
            return b, h * layers + layer[0], blocks[b, t, place], 0

        cache = pl.BlockSpec((None, None, self.block, dim), block_of)
        found = pl.pallas_call(
            kernel,
            out_shape=_outputs(batch, heads, count, dim=dim),
            grid_spec=tpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=(batch, heads, tiles, listed),
                in_specs=[
                    pl.BlockSpec((None, None, self.tile, dim), lambda b, h, t, j, *_: (b, h, t, 0)),
                    pl.BlockSpec(
                        (None, self.tile, reach.shape[-1]), lambda b, h, t, j, *_: (b, t, 0)
                    ),
                    cache,
                    cache,
                ],
                out_specs=[
                    pl.BlockSpec((None, None, self.tile, last), lambda b, h, t, j, *_: (b, h, t, 0))
                    for last in (1, 1, dim)
                ],
            ),
            interpret=self.interpret,
            compiler_params=tpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
            ),
            name="block_attention",
        )(_ways(layer), visits.counts, visits.blocks, queries, reach, keys, values)
        return Softmax(*found)


def _column(columns: Int[Array, "Q X"], place: Int[Array, ""] | int) -> Int[Array, "Q 1"]:
    """A column by its number, which may be known only when it runs."""
    if isinstance(place, int):
        return columns[:, place : place + 1]
    numbers = jax.lax.broadcasted_iota(jnp.int32, columns.shape, 1)
    return jnp.where(numbers == place, columns, 0).sum(-1, keepdims=True)
