"""The kernel on a TPU: a visit is a step of the grid, the next block on its way meanwhile."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.models.block_attention import kernel
from jspec.models.block_attention.visits import WORD, Seen
from jspec.models.online_softmax import Softmax


@dataclass(frozen=True)
class Mosaic:
    """The kernel on a TPU.

    Raises:
        InputError: if a size is not as it says.

    Example:
        >>> Mosaic(tile=512, block=128).sized(queries=12, slots=100, dim=64, dtype="float32").tile
        16
    """

    tile: int = 512
    """A multiple of 16."""
    block: int = 512
    """A multiple of 128; step by step, of 32."""
    interpret: bool = False
    """True to run it step by step on any device, for tests."""

    def __post_init__(self):
        for name, unit in (("tile", 16), ("block", WORD if self.interpret else 128)):
            size = getattr(self, name)
            check_integer(name, size, unit, None)
            if size % unit:
                raise InputError(
                    f"{name} is {size}, no multiple of {unit}; pass {size - size % unit}"
                )

    def sized(self, queries: int, slots: int, dim: int, dtype: Any) -> "Mosaic | None":
        """As in `Launch`."""
        return replace(self, tile=min(self.tile, -(-queries // 16) * 16))

    def __call__(self, work: kernel.AttentionWork, seen: Seen, soft_cap: float | None) -> Softmax:
        """As in `Launch`."""
        from jax.experimental.pallas import tpu

        batch, heads, count, dim = work.queries.shape
        slots, layers = work.keys.shape[2], work.layers
        tiles, listed = work.visits.blocks.shape[1:]

        def run(layer, counts, blocks, queries, reach, keys, values, *out):
            del layer
            row, tile, place = (pl.program_id(axis) for axis in (0, 2, 3))

            @pl.when(place == 0)
            def _():
                for array, part in zip(out, kernel.nothing(self.tile, dim), strict=True):
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
                found = kernel.visit(
                    softmax, queries[...], held, column, number, start, seen, soft_cap
                )
                for array, part in zip(out, found, strict=True):
                    array[...] = part

        def block_of(b, h, t, j, layer, counts, blocks):
            # Where nothing is left to visit, the last block stays, and nothing is fetched.
            place = jnp.minimum(j, jnp.maximum(counts[b, t] - 1, 0))
            return b, h * layers + layer[0], blocks[b, t, place], 0

        cache = pl.BlockSpec((None, None, self.block, dim), block_of)
        found = pl.pallas_call(
            run,
            out_shape=kernel.outputs(batch, heads, count, dim=dim),
            grid_spec=tpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=(batch, heads, tiles, listed),
                in_specs=[
                    pl.BlockSpec((None, None, self.tile, dim), lambda b, h, t, j, *_: (b, h, t, 0)),
                    pl.BlockSpec(
                        (None, self.tile, work.reach.shape[-1]), lambda b, h, t, j, *_: (b, t, 0)
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
        )(
            *(work.number, work.visits.counts, work.visits.blocks),
            *(work.queries, work.reach, work.keys, work.values),
        )
        return Softmax(*found)


def _column(columns: Int[Array, "Q X"], place: Int[Array, ""] | int) -> Int[Array, "Q 1"]:
    """A column by its number, which may be known only when it runs."""
    if isinstance(place, int):
        return columns[:, place : place + 1]
    numbers = jax.lax.broadcasted_iota(jnp.int32, columns.shape, 1)
    return jnp.where(numbers == place, columns, 0).sum(-1, keepdims=True)
