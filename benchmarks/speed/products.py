"""The products of `jspec.models.linear` by number of rows, each against its other formulation.

python -m benchmarks.speed.products                         # shapes of SmolLM2-135M and jspec-7m
python -m benchmarks.speed.products --shapes 2048x8192 --rows 1,8

A product with weights is one dot, or two dots of half the inputs each. Unembedding has the states
or the table on the left. Weights come from memory, not from the cache, as in a model.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Float
from rich.table import Table

from benchmarks.harness import console, headline, record
from jspec.models.linear import halves, product, states_first, table_first

SMOLLM2 = "576x960,576x576,576x3072,1536x576"
JSPEC_7M = "256x768,256x256,256x1376,688x256"
_WORKING_SET = 64 * 2**20
"""Bytes of weights per measurement, twice what the last cache of many CPUs holds."""


def main(
    shapes: Annotated[str, typer.Option(help="inputs x outputs")] = f"{SMOLLM2},{JSPEC_7M}",
    tables: Annotated[str, typer.Option(help="vocabulary x states, to unembed")] = "49152x576",
    rows: Annotated[str, typer.Option(help="comma-separated")] = "1,2,3,4,6,8,16,32,64",
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Measures microseconds per product in float32 (median)."""
    headline("microseconds per product, float32 (median)")
    table = Table(
        "inputs x outputs", "rows", "dot", "halves", "`product`", "states first", "table first"
    )
    counts = [int(count) for count in rows.split(",")]
    for shape in filter(None, shapes.split(",")):
        inputs, outputs = map(int, shape.split("x"))
        ways = {"dot": jnp.matmul, "halves": halves, "product": product}
        seconds = _measure(ways, (inputs, outputs), inputs, counts, repeats)
        _report(table, out, shape, counts, seconds, before=0, after=2)
    for shape in filter(None, tables.split(",")):
        vocab, states = map(int, shape.split("x"))
        ways = {"states first": states_first, "table first": table_first}
        seconds = _measure(ways, (vocab, states), states, counts, repeats)
        _report(table, out, shape, counts, seconds, before=3, after=0)
    console.print(table)


def _report(table, out, shape, counts, seconds, before, after) -> None:
    """Adds a row to the table, and to the file, for each number of rows."""
    for count in counts:
        found = {name: values.tolist() for (name, at), values in seconds.items() if at == count}
        cells = (f"{1e6 * np.median(values):.1f}" for values in found.values())
        table.add_row(shape, str(count), *[""] * before, *cells, *[""] * after)
        record(out, {"bench": "products", "shape": shape, "rows": count, "seconds": found})


def _measure(
    ways: dict[str, Callable],
    shape: tuple[int, int],
    inputs: int,
    counts: list[int],
    repeats: int,
) -> dict[tuple[str, int], np.ndarray]:
    """Seconds per product by formulation and number of rows, taken in random order."""
    number = max(1, round(_WORKING_SET / (4 * shape[0] * shape[1])))
    keys = jax.random.split(jax.random.key(0), number)
    weights = [jax.random.normal(key, shape) for key in keys]
    runs = {}
    for count in counts:
        for name, way in ways.items():
            run = jax.jit(lambda x, weights, way=way: _chain(way, x, weights))
            runs[name, count] = lambda run=run, x=jnp.ones((count, inputs)): run(x, weights)
            jax.block_until_ready(runs[name, count]())
    seconds = {key: np.zeros(repeats) for key in runs}
    order = list(runs)
    for repeat in range(repeats):
        random.Random(repeat).shuffle(order)
        for key in order:
            start = time.perf_counter()
            jax.block_until_ready(runs[key]())
            seconds[key][repeat] = (time.perf_counter() - start) / number
    return {key: seconds[key] for key in runs}


def _chain(way: Callable, x: Float[Array, "N I"], weights: list[Array]) -> Float[Array, "N I"]:
    """The products one after the other, as in a model: each waits for the one before."""
    for weight in weights:
        # Behind the barrier, so that no product is cut down to the column that is read.
        scores = jax.lax.optimization_barrier(way(x, weight))
        x = x + 1e-9 * scores[:, :1]
    return x


if __name__ == "__main__":
    typer.run(main)
