"""Forward passes of few tokens, with and without a CPU's kernels, in one process in turn.

python -m benchmarks.speed.forwards --model smollm2-135m
python -m benchmarks.speed.forwards --dtype bfloat16 --live 2000 --capacity 2304
python -m benchmarks.speed.forwards --model smollm2-135m --weights q8_0,q8_0a8 --ways kernels
python -m benchmarks.speed.forwards --model smollm2-135m --ways XLA,order --tokens 16

The floor is shown too: the time in which the weights are read once. `order` is XLA with attention
in the order of positions (`jspec.models.BatchInvariant`).
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array
from rich.table import Table

from benchmarks.harness import command, console, headline, paired, record
from jspec import models
from jspec._xla import native
from jspec.models import BatchInvariant
from jspec.types import PyTree

_TOGETHER = 4
"""Forward passes of a program, one behind the other."""


def main(
    name: Annotated[
        str, typer.Option("--model", help="folder, GGUF file, name or hub id")
    ] = "jspec-7m",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or int8")] = None,
    weights: Annotated[str, typer.Option(help="their dtypes or formats, comma-separated")] = "",
    ways: Annotated[
        str, typer.Option(help="kernels, XLA and order, comma-separated")
    ] = "kernels,XLA",
    tokens: Annotated[str, typer.Option(help="of a pass, comma-separated")] = "1,2,4,8,16,32",
    live: Annotated[int, typer.Option(help="committed tokens")] = 100,
    capacity: Annotated[int, typer.Option(help="of the cache")] = 512,
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Measures milliseconds per forward pass: the least, and the median ratio to one token's."""
    headline(
        f"milliseconds per forward pass, {name}, {live} of {capacity} slots, {native.describe()}"
    )
    contexts = {"kernels": nullcontext, "XLA": native.disable, "order": native.disable}
    counts = [int(count) for count in tokens.split(",")]
    table = Table("weights", "read once", "by", *map(str, counts))
    for kind in weights.split(","):
        target = models.load(name, dtype, kind or None, with_tokenizer=False)
        runs: dict[str, Callable[[], object]] = {"weights read once": _reading(target.params)}
        for way in ways.split(","):
            for count in counts:
                model: Any = target.model
                if way == "order":
                    model = model.clone(attention_impl=BatchInvariant(max(count, 2)))
                with contexts[way]():
                    run = _forwards(model, target.params, count, live, capacity)
                runs[f"{way} {count}"] = run
        seconds = paired(runs, repeats)
        floor = 1e3 * seconds.pop("weights read once").min()
        for way in ways.split(","):
            cells, one = list[str](), seconds[f"{way} {counts[0]}"]
            for count in counts:
                found = seconds[f"{way} {count}"]
                ratio = np.median(found / one)
                cell = f"{1e3 * found.min() / _TOGETHER:.1f} ({ratio:.2f})"
                if way == "order" and (base := seconds.get(f"XLA {count}")) is not None:
                    cell += f", {np.median(found / base):.2f} of XLA's"
                cells.append(cell)
                held = {"bench": "forwards", "model": name, "dtype": dtype, "way": way}
                held |= {"weights": kind, "tokens": count, "live": live, "capacity": capacity}
                record(out, held | {"seconds": (found / _TOGETHER).tolist()})
            table.add_row(kind or dtype, f"{floor:.1f}", way, *cells)
    console.print(table)


def _reading(params: dict) -> Callable[[], Array]:
    """Returns the maximum of each leaf, which takes every byte once."""
    leaves = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    run = jax.jit(lambda leaves: [leaf.max() for leaf in leaves]).lower(leaves).compile()
    return lambda: run(leaves)


def _forwards(
    model: Any, params: PyTree, count: int, live: int, capacity: int
) -> Callable[[], Array]:
    """Returns a compiled program of passes over a chain: each reads what the one before wrote."""
    cache = model.init_memory(1, capacity).replace(lengths=jnp.full(1, live, jnp.int32))
    positions = live + jnp.arange(count)[None]
    mask = jnp.tril(jnp.ones((count, count), bool))[None]
    first = jnp.zeros((1, 1), jnp.int32)

    def run(params, read, cache):
        def body(_, carry):
            read, cache = carry
            output = model.apply(params, read, positions, mask, cache)
            # The first few logits say what comes next: a whole argmax would be timed too.
            read = output.logits[..., :8].argmax(-1).astype(jnp.int32)
            held = model.commit(cache, output.tentative, first, jnp.ones(1, jnp.int32))
            return read, held.replace(lengths=cache.lengths)

        return jax.lax.fori_loop(0, _TOGETHER, body, (read, cache))[0]

    given = params, jnp.ones((1, count), jnp.int32), cache
    compiled = jax.jit(run).lower(*given).compile()
    return lambda: compiled(*given)


if __name__ == "__main__":
    command(main)
