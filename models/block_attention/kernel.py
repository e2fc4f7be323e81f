"""The kernel on a GPU: each tile of queries loops over its visible blocks, then over single keys.

One softmax runs over all. Several programs may share a tile's blocks and merge softmaxes.
"""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.models.block_attention.visits import Seen, Visits
from jspec.models.online_softmax import LOW, Softmax, cap, join, merge, scores_of

_TRITON = "jax.experimental.pallas.triton"


class Tail(NamedTuple):
    """Keys that each query adds one by one, behind those of its blocks. T: how many."""

    places: Int[Array, "B Q T"]
    """Slots, in the order in which they are added; from S on nodes, and -1 for nothing."""
    keys: Float[Array, "B H K D"]
    """Of the nodes."""
    values: Float[Array, "B H K D"]


class AttentionWork(NamedTuple):
    """The inputs of a kernel."""

    queries: Float[Array, "B H Q D"]
    """Scaled."""
    keys: Float[Array, "B H*L S D"]
    """Of L layers, a head's layers are adjacent."""
    values: Float[Array, "B H*L S D"]
    reach: Int[Array, "B Q X"]
    """Data from which each query's visible keys of a block follow."""
    visits: Visits
    """Blocks of the keys for each tile of queries."""
    layer: Int[Array, ""] | None = None
    """Index of the layer among L; None: there is one."""
    tail: Tail | None = None
    """What follows. Then a query's sums depend on nothing but its own keys: a split has the same
    slots whatever the tile's other queries see."""

    @property
    def layers(self) -> int:
        """L."""
        return self.keys.shape[1] // self.queries.shape[1]

    @property
    def number(self) -> Int[Array, " 1"]:
        """The layer's index, as a kernel takes it."""
        layer = self.layer
        return jnp.zeros(1, jnp.int32) if layer is None else layer.reshape(1).astype(jnp.int32)


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
    """Returns the kernel: a tile's softmax, joined by a block of keys and values."""
    keys, values = (part.astype(queries.dtype) for part in held)
    slots = start + jax.lax.broadcasted_iota(jnp.int32, (1, keys.shape[0]), 1)
    scores = scores_of(queries, keys, soft_cap)
    return join(softmax, jnp.where(seen(reach, number, slots), scores, LOW), values)


def follow(
    softmax: Softmax,
    queries: Float[Array, "Q D"],
    key: Float[Array, "Q D"],
    value: Float[Array, "Q D"],
    there: Bool[Array, "Q 1"],
    soft_cap: float | None,
) -> Softmax:
    """Returns a tile's softmax, joined by a key and a value for each query."""
    key, value, rows = (x.astype(jnp.float32) for x in (key, value, queries))
    score = jnp.where(there, cap((rows * key).sum(-1, keepdims=True), soft_cap), LOW)
    top = jnp.maximum(softmax.top, score)
    before, weight = jnp.exp(softmax.top - top), jnp.exp(score - top)
    return Softmax(top, before * softmax.total + weight, before * softmax.mixed + weight * value)


def nothing(tile: int, dim: int) -> Softmax:
    """Returns the softmax over no score."""
    return Softmax(
        jnp.full((tile, 1), LOW, jnp.float32),
        jnp.zeros((tile, 1), jnp.float32),
        jnp.zeros((tile, dim), jnp.float32),
    )


def outputs(*shape: int, dim: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the arrays of a softmax."""
    return [jax.ShapeDtypeStruct((*shape, last), jnp.float32) for last in (1, 1, dim)]


@dataclass(frozen=True)
class Triton:
    """The kernel on a CUDA GPU.

    JAX 0.11 announces that Triton will be taken out of Pallas; XLA's attention is used then.

    Raises:
        InputError: if a size is not as it says.

    Example:
        >>> Triton(tile=64, block=32).with_sizes(queries=12, slots=100, dim=64).tile
        16
    """

    tile: int = 64
    """Queries that share a visit: a power of two, from 16 on."""
    block: int = 32
    """Keys of a visit: a power of two, from 32 on."""
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

    def with_sizes(self, queries: int, slots: int, dim: int) -> "Triton | None":
        """Returns the same for arrays of such sizes; None: it cannot. Triton wants powers of two,
        and a JAX that still has it.

        Args:
            queries: of a head.
            slots: keys of a head; nodes are padded to a multiple of `block` afterwards.
            dim: of a head.
        """
        if dim < 16 or dim & (dim - 1) or slots < self.block or find_spec(_TRITON) is None:
            return None
        return replace(self, tile=min(self.tile, max(16, pl.next_power_of_2(queries))))

    def __call__(self, work: AttentionWork, seen: Seen, soft_cap: float | None) -> Softmax:
        """Returns the softmax of all queries."""
        from jax.experimental.pallas import triton

        batch, heads, count, dim = work.queries.shape
        slots, layers = work.keys.shape[2], work.layers
        tiles, listed = work.visits.blocks.shape[1:]
        tail = () if work.tail is None else work.tail

        def run(layer, counts, blocks, queries, reach, keys, values, *more):
            split, held, tile = pl.program_id(1), layer[0], queries[...]
            out = more[len(tail) :]
            share = pl.cdiv(listed if tail else counts[0], self.num_splits)
            first = split * share - (blocks[0] if tail else 0)

            def column(place):
                return reach[:, pl.ds(place, 1)]

            def one(place, softmax):
                number = blocks[place]
                start = jnp.minimum(number * self.block, slots - self.block)
                part = pl.ds(start, self.block)
                both = keys[held, part, :], values[held, part, :]
                return visit(softmax, tile, both, column, number, start, seen, soft_cap)

            def follower(step, softmax):
                places, *near = more[: len(tail)]
                place = places[:, step]
                slot, node = jnp.clip(place, 0, slots - 1), jnp.maximum(place - slots, 0)
                key, value = (
                    jnp.where(place[:, None] < slots, far[held, slot, :], own[node, :])
                    for far, own in zip((keys, values), near, strict=True)
                )
                return follow(softmax, tile, key, value, place[:, None] >= 0, soft_cap)

            last = jnp.minimum(first + share, counts[0])
            found = jax.lax.fori_loop(jnp.maximum(first, 0), last, one, nothing(self.tile, dim))
            if tail:  # the last split has it
                steps = jnp.maximum(split + 2 - self.num_splits, 0) * tail[0].shape[-1]
                found = jax.lax.fori_loop(0, steps, follower, found)
            for array, part in zip(out, found, strict=True):
                array[...] = part

        def of_row(*shape: int) -> pl.BlockSpec:
            return pl.BlockSpec((None, None, *shape), lambda t, p, z: (z // heads, t, 0))

        def of_queries(array: Array) -> pl.BlockSpec:
            return pl.BlockSpec(
                (None, self.tile, array.shape[-1]), lambda t, p, z: (z // heads, t, 0)
            )

        cache = pl.BlockSpec((None, layers, slots, dim), lambda t, p, z: (z, 0, 0, 0))
        found = pl.pallas_call(
            run,
            out_shape=outputs(batch * heads, self.num_splits, count, dim=dim),
            # Tiles go first: those that run side by side read the same keys.
            grid=(tiles, self.num_splits, batch * heads),
            in_specs=[
                pl.BlockSpec((1,), lambda t, p, z: (0,)),
                of_row(1),
                of_row(listed),
                pl.BlockSpec((None, self.tile, dim), lambda t, p, z: (z, t, 0)),
                of_queries(work.reach),
                cache,
                cache,
                *(of_queries(x) for x in tail[:1]),
                *(pl.BlockSpec((None, *x.shape[2:]), lambda t, p, z: (z, 0, 0)) for x in tail[1:]),
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
            *tail[:1],
            *(x.reshape(batch * heads, -1, dim) for x in tail[1:]),
        )
        softmax = merge(Softmax(*found))
        return Softmax(*(part.reshape(batch, heads, count, -1) for part in softmax))
