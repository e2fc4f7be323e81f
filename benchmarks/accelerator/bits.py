"""What a row would have to be for its bits not to depend on the rows beside it, on a GPU.

XLA chooses how a product is cut by its number of rows, so a node of a tree has other bits than its
token in plain decoding. A kernel that cuts every product alike has no such choice: tiles of 64
outputs by 64 rows, and so many parts of the sum as the weights have, whose sums are added in their
order. It is here to be timed and compared, and is part of no model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale
from benchmarks.accelerator.timing import per_call
from jspec import testing
from jspec.models import LlamaConfig, linear

SECTION = "bits"
TILE = 64
"""Outputs, rows, and numbers of a sum, that are in shared memory at a time."""
STAGES = 4
"""Tiles that are on their way at once."""
PROGRAMS = 264
"""Two for each of an H100's multiprocessors: the parts of a sum are so many that there are more."""
ROWS = (1, 16, 64, 81)
TEXT_TOKENS = 24


def shapes_of(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """The (outputs, inputs) of the products of a layer, and of the head."""
    heads, wide = config.num_heads * config.head_dim, config.hidden_size
    kv = config.num_kv_heads * config.head_dim
    return {
        "queries, keys, values": (heads + 2 * kv, wide),
        "output": (wide, heads),
        "gate, up": (2 * config.intermediate_size, wide),
        "down": (wide, config.intermediate_size),
        "head": (config.vocab_size, wide),
    }


def parts_of(outputs: int, inputs: int) -> int:
    """The parts that a sum is cut into, by the weights alone: powers of two that divide it."""
    parts = 1
    tiles = inputs // TILE
    while outputs // TILE * parts < PROGRAMS and tiles % (2 * parts) == 0:
        parts *= 2
    return parts if tiles // parts >= STAGES else max(parts // 2, 1)


def fits(outputs: int, inputs: int) -> bool:
    """Whether tiles divide a product."""
    return outputs % TILE == 0 and inputs % TILE == 0 and inputs // TILE >= STAGES


def product(
    x: Float[Array, "N I"], weight: Float[Array, "O I"], dtype: Any = None, interpret: bool = False
) -> Float[Array, "N O"]:
    """x by the rows of the weights, in tiles that do not depend on N.

    Args:
        x: of 16 bits.
        weight: of the same kind; `fits` says which sizes.
        dtype: of the result; None: that of x.
        interpret: whether to run the kernel step by step on any device.
    """
    from jax.experimental.pallas import mosaic_gpu

    gpu: Any = mosaic_gpu  # of which every version of JAX exports something else
    (rows, inputs), outputs = x.shape, len(weight)
    parts = parts_of(outputs, inputs)
    steps = inputs // TILE // parts
    padded = jnp.pad(x, [(0, -rows % TILE), (0, 0)])
    ordered = (gpu.TilingTransform((8, TILE)), gpu.SwizzleTransform(128))

    def run(weights, states, sums):
        of_outputs, part, of_rows = (
            jax.lax.axis_index(name) for name in ("outputs", "part", "rows")
        )
        out, here = pl.ds(of_outputs * TILE, TILE), pl.ds(of_rows * TILE, TILE)

        def scoped(held, given, came, there, made):
            def fetch(step, slot):
                inner = pl.ds((part * steps + step) * TILE, TILE)
                gpu.copy_gmem_to_smem(weights.at[out, inner], held.at[slot], came.at[slot])
                gpu.copy_gmem_to_smem(states.at[here, inner], given.at[slot], there.at[slot])

            for step in range(STAGES - 1):
                fetch(jnp.int32(step), step)

            def summed(total):
                def one(step, _):
                    slot = jax.lax.rem(step, jnp.int32(STAGES))
                    gpu.barrier_wait(came.at[slot])
                    gpu.barrier_wait(there.at[slot])
                    gpu.wgmma(total, held.at[slot], given.at[slot].T)
                    # The product before this one is done, and its tiles are free.
                    gpu.wgmma_wait(1)
                    later = step + STAGES - 1
                    free = jax.lax.rem(later, jnp.int32(STAGES))
                    pl.when(later < steps)(lambda: fetch(later, free))

                jax.lax.fori_loop(0, steps, one, None)
                return total[...]

            made[...] = pl.run_scoped(summed, gpu.ACC((TILE, TILE), jnp.float32))
            gpu.commit_smem()
            gpu.copy_smem_to_gmem(made, sums.at[part, out, here])
            gpu.wait_smem_to_gmem(0)

        tiles = gpu.SMEM((STAGES, TILE, TILE), x.dtype, transforms=ordered)
        barriers = gpu.Barrier(num_barriers=STAGES)
        pl.run_scoped(scoped, tiles, tiles, barriers, barriers, gpu.SMEM((TILE, TILE), jnp.float32))

    made = gpu.kernel(
        run,
        out_type=jax.ShapeDtypeStruct((parts, outputs, len(padded)), jnp.float32),
        grid=(outputs // TILE, parts, len(padded) // TILE),
        grid_names=("outputs", "part", "rows"),
        **({"interpret": gpu.InterpretGPUParams()} if interpret else {}),
    )(weight, padded)
    # One after the other: a reduction has an order of its own.
    return reduce(add, made)[:, :rows].T.astype(dtype or x.dtype)


@contextmanager
def everywhere() -> Iterator[None]:
    """A context in which models are traced with these products, where tiles divide them."""
    known = linear.product

    def fixed(x: Array, weight: Array, dtype: Any = None) -> Array:
        if x.dtype != jnp.bfloat16 or not fits(*weight.shape):
            return known(x, weight, dtype)
        found = product(x.reshape(-1, x.shape[-1]), weight, dtype)
        return found.reshape(*x.shape[:-1], len(weight))

    linear.product = fixed
    try:
        yield
    finally:
        linear.product = known


def by_xla(x: Float[Array, "N I"], weight: Float[Array, "O I"]) -> Float[Array, "N O"]:
    """The same as XLA has it."""
    found = jnp.einsum("ni,oi->no", x, weight, preferred_element_type=jnp.float32)
    return found.astype(x.dtype)


def measure(cells: Cells, scale: Scale) -> None:
    """One row for the bits of whole forward passes, and one for each product of the shape."""
    cells.run(partial(_forwards, scale), what="forwards")
    if jax.default_backend() != "gpu":
        cells.skip("the kernel of products of one tile and split runs on a Hopper GPU")
        return
    for name, sizes in shapes_of(scale.config).items():
        if fits(*sizes):
            cells.run(partial(_product, scale, *sizes), what="product", of=name)


def _forwards(scale: Scale) -> dict:
    """How many numbers of a forward of trees differ from those of forward passes of a token."""
    from benchmarks.accelerator.methods import loaded

    target = loaded(scale.models[0])
    text = np.random.default_rng(0).integers(0, target.model.vocab_size, TEXT_TOKENS).tolist()
    found = testing.check_bits(target.model, target.params, [text], sizes=[2, 16, 64])
    return {"numbers": found.num_numbers, "different": found.num_different, "said": str(found)}


def _weights(outputs: int, inputs: int, dtype: str) -> tuple[Array, Array]:
    keys = jax.random.split(jax.random.key(0))
    weight = jax.random.normal(keys[0], (outputs, inputs), dtype) / 64
    return weight, jax.random.normal(keys[1], (max(ROWS), inputs), dtype)


def _product(scale: Scale, outputs: int, inputs: int) -> dict:
    """Seconds of both at each number of rows, and whether the first row keeps its bits."""
    weight, states = _weights(outputs, inputs, scale.dtype)
    found: dict[str, Any] = {"parts": parts_of(outputs, inputs), "bytes": weight.nbytes}
    for way, function in {"kernel": product, "XLA": by_xla}.items():
        run = jax.jit(function)
        runs = {str(count): partial(run, states[:count], weight) for count in ROWS}
        first = {count: _bits(call()[0]) for count, call in runs.items()}
        found[way] = {
            "seconds": per_call(runs, scale.repeats),
            "unlike one row": [count for count in runs if first[count] != first["1"]],
        }
    return found


def _bits(row: Array) -> bytes:
    return np.asarray(row).tobytes()
