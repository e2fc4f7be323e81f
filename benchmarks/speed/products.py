"""The products of `jspec.models.linear` by number of rows, by each way to compute them.

python -m benchmarks.speed.products                         # shapes of SmolLM2-135M and jspec-7m
python -m benchmarks.speed.products --shapes 8192x2048 --rows 1,8

The weights are held by outputs, and stand behind the states or before them; or, for one row, as two
products of half the outputs. Beside them, the same weights held by inputs. They come from memory,
not from the cache, as in a model.
"""

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Float
from rich.table import Table

from benchmarks.harness import command, console, headline, record
from jspec.models.linear import halves, product, states_first, weights_first

SMOLLM2 = "960x576,576x576,3072x576,576x1536,49152x576"
JSPEC_7M = "768x256,256x256,1376x256,256x688"
_WORKING_SET = 64 * 2**20
"""Bytes of weights per measurement, twice what the last cache of many CPUs holds."""

WAYS: dict[str, Callable[[Array, Array], Array]] = {
    "`product`": product,
    "states first": partial(states_first, dtype=jnp.float32),
    "weights first": partial(weights_first, dtype=jnp.float32),
    "halves": partial(halves, dtype=jnp.float32),
    "by inputs": jnp.matmul,
}


def main(
    shapes: Annotated[str, typer.Option(help="outputs x inputs")] = f"{SMOLLM2},{JSPEC_7M}",
    rows: Annotated[str, typer.Option(help="comma-separated")] = "1,2,3,4,6,8,16,32,64",
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Measures microseconds per product in float32 (median)."""
    headline("microseconds per product, float32 (median)")
    table = Table("outputs x inputs", "rows", *WAYS)
    counts = [int(count) for count in rows.split(",")]
    for shape in shapes.split(","):
        outputs, inputs = map(int, shape.split("x"))
        seconds = _measure(outputs, inputs, counts, repeats)
        for count in counts:
            found = {name: seconds[name, count] for name in WAYS if (name, count) in seconds}
            cells = (
                f"{1e6 * np.median(found[name]):.1f}" if name in found else "" for name in WAYS
            )
            table.add_row(shape, str(count), *cells)
            held = {name: values.tolist() for name, values in found.items()}
            record(out, {"bench": "products", "shape": shape, "rows": count, "seconds": held})
    console.print(table)


def _measure(
    outputs: int, inputs: int, counts: list[int], repeats: int
) -> dict[tuple[str, int], np.ndarray]:
    """Seconds per product by way and number of rows, taken in random order."""
    number = max(1, round(_WORKING_SET / (4 * outputs * inputs)))
    keys = jax.random.split(jax.random.key(0), number)
    by_outputs = [jax.random.normal(key, (outputs, inputs)) for key in keys]
    by_inputs = [weight.T for weight in by_outputs]
    runs = {}
    for count in counts:
        for name, way in WAYS.items():
            if way is WAYS["halves"] and (count > 1 or outputs % 2):
                continue
            weights = by_inputs if way is jnp.matmul else by_outputs
            run = partial(jax.jit(partial(_chain, way)), jnp.ones((count, inputs)), weights)
            runs[name, count] = run
            jax.block_until_ready(run())
    seconds = {key: np.zeros(repeats) for key in runs}
    order = list(runs)
    for repeat in range(repeats):
        random.Random(repeat).shuffle(order)
        for key in order:
            start = time.perf_counter()
            jax.block_until_ready(runs[key]())
            seconds[key][repeat] = (time.perf_counter() - start) / number
    return seconds


def _chain(way: Callable, x: Float[Array, "N I"], weights: list[Array]) -> Float[Array, "N I"]:
    """The products one after the other, as in a model: each waits for the one before."""
    for weight in weights:
        # Behind the barrier, so that no product is cut down to the column that is read.
        scores = jax.lax.optimization_barrier(way(x, weight))
        x = x + 1e-9 * scores[:, :1]
    return x


if __name__ == "__main__":
    command(main)
