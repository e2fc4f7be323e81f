"""The kernel on a Hopper GPU, by Pallas' Mosaic: a warpgroup for each tile and split of its blocks.

Where JAX takes Triton out of Pallas, this stays. Keys and values of the next block are on their way
while the matrix units of the warpgroup (`wgmma`) work on this one. As FlashAttention-3 (Shah et al.
2024, section 3) but for the overlap of two warpgroups, which few queries have no tiles for.
"""

from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.models.block_attention import kernel
from jspec.models.block_attention.visits import Seen
from jspec.models.online_softmax import LOW, Softmax, capped, merged

_TILE = 64
"""The rows of a product of a warpgroup."""
_WIDTH = 64
"""Numbers of 16 bits that stand side by side in shared memory, in the order that products want."""
_SHARED = 224 << 10
"""Bytes of shared memory that a program has, but for a few of its own."""


@dataclass(frozen=True)
class Hopper:
    """The kernel on a GPU of compute capability 9.0, for bfloat16 and float16.

    Raises:
        InputError: if a size is not as it says.

    Example:
        >>> import jax.numpy as jnp
        >>> Hopper(block=64).sized(queries=12, slots=256, dim=128, dtype=jnp.bfloat16).tile
        64
        >>> Hopper().sized(queries=12, slots=256, dim=128, dtype=jnp.float32) is None
        True
    """

    block: int = 64
    """A multiple of 64, at most 256."""
    num_splits: int = 8
    """Programs that share the blocks of a tile."""
    interpret: bool = False
    """True to run it step by step on any device, for tests."""

    def __post_init__(self):
        check_integer("block", self.block, _WIDTH, 256)
        if self.block % _WIDTH:
            raise InputError(
                f"block is {self.block}, no multiple of {_WIDTH}; pass "
                f"{self.block // _WIDTH * _WIDTH}"
            )
        check_integer("num_splits", self.num_splits, 1, None)

    @property
    def tile(self) -> int:
        """Queries that share a visit."""
        return _TILE

    def sized(self, queries: int, slots: int, dim: int, dtype: Any) -> "Hopper | None":
        """As in `Launch`."""
        half = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
        # The queries, two blocks of keys and of values, and the result.
        shared = dim * (2 * _TILE + 8 * self.block + 4 * _TILE)
        fits = dim % _WIDTH == 0 and shared < _SHARED
        return self if half and fits and slots >= self.block and slots % 8 == 0 else None

    def __call__(self, work: kernel.AttentionWork, seen: Seen, soft_cap: float | None) -> Softmax:
        """As in `Launch`."""
        batch, heads, count, _ = work.queries.shape
        softmax = merged(self.parts(work, seen, soft_cap))
        return Softmax(*(part.reshape(batch, heads, count, -1) for part in softmax))

    def parts(self, work: kernel.AttentionWork, seen: Seen, soft_cap: float | None) -> Softmax:
        """The softmax of each row and head, [B*H, P, Q, ..], in as many splits as there are.

        The visits of a tile are cut into equal runs; with as many splits as blocks each split is
        the block of its number.
        """
        from jax.experimental.pallas import mosaic_gpu

        gpu: Any = mosaic_gpu  # of which every version of JAX exports something else
        batch, heads, count, dim = work.queries.shape
        slots, layers, dtype = work.keys.shape[2], work.layers, work.queries.dtype
        tiles = work.visits.blocks.shape[1]
        ordered = (gpu.TilingTransform((8, _WIDTH)), gpu.SwizzleTransform(128))
        of_rows, of_tile = gpu.Layout.WGMMA.reduce(1), gpu.Layout.WGMMA
        shape = _TILE, self.block

        def product(left, right, shape):
            def multiplied(sums):
                gpu.wgmma(sums, left, right)
                return sums[...]

            return pl.run_scoped(multiplied, gpu.ACC(shape, jnp.float32))

        def run(layer, counts, blocks, queries, reach, keys, values, tops, totals, mixes):
            tile, split, head = (jax.lax.axis_index(name) for name in ("tile", "split", "head"))
            row = head // heads
            number = counts[row, tile]
            share = pl.cdiv(number, self.num_splits)
            first = split * share
            last = jnp.minimum(first + share, number)
            here = pl.ds(tile * _TILE, _TILE)
            of_layer = head * layers + layer[0]

            def begin_of(place):
                return jnp.minimum(blocks[row, tile, place] * self.block, slots - self.block)

            def scoped(tile_queries, held_keys, held_values, came, key_came, value_came, *others):
                out, held_weights = others[:3], others[-1]

                gpu.copy_gmem_to_smem(queries.at[head, here], tile_queries, came)

                def fetch(place, slot):
                    part = of_layer, pl.ds(begin_of(place), self.block)
                    gpu.copy_gmem_to_smem(keys.at[part], held_keys.at[slot], key_came.at[slot])
                    gpu.copy_gmem_to_smem(
                        values.at[part], held_values.at[slot], value_came.at[slot]
                    )

                pl.when(first < last)(lambda: fetch(first, 0))
                gpu.barrier_wait(came)

                def column(place):
                    # Older versions of JAX want an index beside.
                    index = [()] if "idx" in signature(gpu.load).parameters else []
                    told = gpu.load(
                        reach.at[row, place, here], *index, layout=of_rows, optimized=False
                    )
                    return jax.lax.broadcast_in_dim(told, shape, (0,))

                def one(place, softmax):
                    top, total, mixed = softmax
                    slot = jax.lax.rem(place - first, jnp.int32(2))
                    pl.when(place + 1 < last)(lambda: fetch(place + 1, 1 - slot))
                    gpu.barrier_wait(key_came.at[slot])

                    turned = held_keys.at[slot].T
                    scores = product(tile_queries, turned, shape)
                    number, begin = blocks[row, tile, place], begin_of(place)
                    numbers = gpu.broadcasted_iota(jnp.int32, shape, 1, layout=of_tile)
                    mask = seen(column, number, begin + numbers)
                    scores = jnp.where(mask, capped(scores, soft_cap), LOW)
                    higher = jnp.maximum(top, scores.max(axis=1))
                    before = jnp.exp(top - higher)
                    weights = jnp.exp(scores - jax.lax.broadcast_in_dim(higher, shape, (0,)))
                    gpu.barrier_wait(value_came.at[slot])
                    left = weights.astype(dtype)
                    if self.interpret:  # which multiplies what stands in shared memory alone
                        held_weights[...] = left
                        left = held_weights
                    more = product(left, held_values.at[slot], mixed.shape)
                    total = before * total + weights.sum(axis=1)
                    mixed = mixed * jax.lax.broadcast_in_dim(before, mixed.shape, (0,)) + more
                    return higher, total, mixed

                nothing = (
                    gpu.layout_cast(jnp.full((_TILE,), LOW, jnp.float32), of_rows),
                    gpu.layout_cast(jnp.zeros((_TILE,), jnp.float32), of_rows),
                    gpu.layout_cast(jnp.zeros((_TILE, dim), jnp.float32), of_tile),
                )
                found = jax.lax.fori_loop(first, last, one, nothing)
                for part, made in zip(found, out, strict=True):
                    made[...] = part
                gpu.commit_smem()
                for made, array in zip(out, (tops, totals, mixes), strict=True):
                    gpu.copy_smem_to_gmem(made, array.at[head, split, here])
                gpu.wait_smem_to_gmem(0)

            two_blocks = gpu.SMEM((2, self.block, dim), dtype, transforms=ordered)
            pl.run_scoped(
                scoped,
                gpu.SMEM((_TILE, dim), dtype, transforms=ordered),
                two_blocks,
                two_blocks,
                gpu.Barrier(),
                gpu.Barrier(num_barriers=2),
                gpu.Barrier(num_barriers=2),
                gpu.SMEM((_TILE,), jnp.float32),
                gpu.SMEM((_TILE,), jnp.float32),
                gpu.SMEM((_TILE, dim), jnp.float32),
                *([gpu.SMEM(shape, dtype, transforms=ordered)] if self.interpret else []),
            )

        found = (batch * heads, self.num_splits, count)
        of_queries = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        made = gpu.kernel(
            run,
            out_type=(of_queries(found), of_queries(found), of_queries((*found, dim))),
            # Tiles go first: those that run side by side read the same keys.
            grid=(tiles, self.num_splits, batch * heads),
            grid_names=("tile", "split", "head"),
            **({"interpret": gpu.InterpretGPUParams()} if self.interpret else {}),
        )
        top, total, mixed = made(
            *(work.number, work.visits.counts, work.visits.blocks),
            work.queries.reshape(batch * heads, count, dim),
            # A column of it lies in one split.
            work.reach.swapaxes(1, 2),
            work.keys.reshape(batch * heads * layers, slots, dim),
            work.values.reshape(batch * heads * layers, slots, dim),
        )
        return Softmax(top[..., None], total[..., None], mixed)
