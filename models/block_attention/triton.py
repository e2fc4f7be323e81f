"""The kernel on a GPU: a program for each tile loops over the blocks that the tile visits.

Several programs may share the blocks of a tile; their softmaxes are merged.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.models.block_attention import kernel
from jspec.models.block_attention.visits import Seen
from jspec.models.online_softmax import Softmax, merged


@dataclass(frozen=True)
class Triton:
    """The kernel on a CUDA GPU.

    JAX 0.11 announces that Triton will be taken out of Pallas.

    Raises:
        InputError: if a size is not as it says.

    Example:
        >>> Triton(tile=64, block=32).sized(queries=12, slots=100, dim=64, dtype="float32").tile
        16
    """

    tile: int = 64
    """A power of two, from 16 on."""
    block: int = 32
    """A power of two, from 32 on."""
    num_splits: int = 1
    """Programs that share the blocks of a tile."""
    num_warps: int = 4
    num_stages: int = 2
    interpret: bool = False
    """True to run it step by step on any device, for tests."""

    def __post_init__(self):
        for name, least in (("tile", 16), ("block", 32)):
            size = getattr(self, name)
            check_integer(name, size, least, None)
            if size & (size - 1):
                raise InputError(
                    f"{name} is {size}, no power of two; pass {2 ** size.bit_length()}"
                )
        for name in ("num_splits", "num_warps", "num_stages"):
            check_integer(name, getattr(self, name), 1, None)

    def sized(self, queries: int, slots: int, dim: int, dtype: Any) -> "Triton | None":
        """As in `Launch`. Triton wants powers of two."""
        if dim < 16 or dim & (dim - 1) or slots < self.block:
            return None
        return replace(self, tile=min(self.tile, max(16, pl.next_power_of_2(queries))))

    def __call__(self, work: kernel.AttentionWork, seen: Seen, soft_cap: float | None) -> Softmax:
        """As in `Launch`."""
        from jax.experimental.pallas import triton

        batch, heads, count, dim = work.queries.shape
        slots, layers = work.keys.shape[2], work.layers
        tiles, listed = work.visits.blocks.shape[1:]

        def run(layer, counts, blocks, queries, reach, keys, values, *out):
            split, held, tile = pl.program_id(1), layer[0], queries[...]
            share = pl.cdiv(counts[0], self.num_splits)
            first = split * share

            def column(place):
                return reach[:, pl.ds(place, 1)]

            def one(place, softmax):
                number = blocks[place]
                start = jnp.minimum(number * self.block, slots - self.block)
                part = pl.ds(start, self.block)
                both = keys[held, part, :], values[held, part, :]
                return kernel.visit(softmax, tile, both, column, number, start, seen, soft_cap)

            last = jnp.minimum(first + share, counts[0])
            found = jax.lax.fori_loop(first, last, one, kernel.nothing(self.tile, dim))
            for array, part in zip(out, found, strict=True):
                array[...] = part

        def of_row(*shape: int) -> pl.BlockSpec:
            return pl.BlockSpec((None, None, *shape), lambda t, p, z: (z // heads, t, 0))

        cache = pl.BlockSpec((None, layers, slots, dim), lambda t, p, z: (z, 0, 0, 0))
        found = pl.pallas_call(
            run,
            out_shape=kernel.outputs(batch * heads, self.num_splits, count, dim=dim),
            # Tiles go first: those that run side by side read the same keys.
            grid=(tiles, self.num_splits, batch * heads),
            in_specs=[
                pl.BlockSpec((1,), lambda t, p, z: (0,)),
                of_row(1),
                of_row(listed),
                pl.BlockSpec((None, self.tile, dim), lambda t, p, z: (z, t, 0)),
                pl.BlockSpec(
                    (None, self.tile, work.reach.shape[-1]), lambda t, p, z: (z // heads, t, 0)
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
            *(work.number, work.visits.counts[..., None], work.visits.blocks),
            *(work.queries.reshape(batch * heads, count, dim), work.reach),
            work.keys.reshape(batch * heads, layers, slots, dim),
            work.values.reshape(batch * heads, layers, slots, dim),
        )
        softmax = merged(Softmax(*found))
        return Softmax(*(part.reshape(batch, heads, count, -1) for part in softmax))
