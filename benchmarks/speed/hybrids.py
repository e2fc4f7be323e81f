"""What a tree costs a decoder with recurrent layers, beside one of attention of the same size.

python -m benchmarks.speed.hybrids
python -m benchmarks.speed.hybrids --hidden-size 1024 --layers 12 --live 4000

The models are random: four layers of attention, or one and three recurrent ones, time and again,
each with an MLP that makes the layers equally large. A forward and its commit are timed together.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

from benchmarks.harness import command, console, headline, paired, record
from jspec import models
from jspec import tree as trees
from jspec._xla import native
from jspec.models import checkpoint
from jspec.round import score
from jspec.types import Frame, PyTree, Tree

TREE = trees.branching([3, 2, 1])
"""15 nodes and the root."""
_TOGETHER = 4
"""Forwards of a program, one behind the other."""
_HEAD_DIM = 64


def main(
    hidden_size: Annotated[int, typer.Option(min=128, help="a multiple of 128")] = 512,
    layers: Annotated[int, typer.Option(min=4, help="a multiple of 4")] = 8,
    live: Annotated[int, typer.Option(min=0, help="committed tokens")] = 500,
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Measures milliseconds of one token and of a tree, in turn, and bytes by their shapes."""
    headline(f"trees of recurrent layers, {native.described()}")
    targets = _targets(hidden_size, layers, 2 * live + 256)
    runs = {
        f"{name} {nodes}": _forwards(model, _random(model), nodes, live)
        for name, model in targets.items()
        for nodes in (1, 16)
    }
    seconds = paired(runs, repeats)
    table = Table(
        *("model", "weights", "memory of a row", "kept of a tree", "1 token", "tree"),
        *("tree / token", "to attention"),
    )
    costs = {name: seconds[f"{name} 16"] / seconds[f"{name} 1"] for name in targets}
    for name, model in targets.items():
        sizes = [_bytes(tree) for tree in _held(model, live)]
        each = [float(seconds[f"{name} {nodes}"].min()) / _TOGETHER for nodes in (1, 16)]
        cost = float(np.median(costs[name]))
        beside = float(np.median(seconds[f"{name} 16"] / seconds["attention 16"]))
        table.add_row(
            *(name, *(f"{size / 1e6:.2f} MB" for size in sizes)),
            *(f"{1e3 * second:.2f} ms" for second in each),
            *(f"{cost:.2f}", f"{beside:.2f}"),
        )
        held = dict(zip(("weights", "memory", "kept"), sizes, strict=True))
        numbers = dict(bench="hybrids", model=name, token=each[0], tree=each[1], beside=beside)
        record(out, numbers | held)
    console.print(table)


def _targets(width: int, layers: int, context: int) -> dict[str, Any]:
    """A decoder of attention, and two hybrids of as many weights."""
    heads = width // _HEAD_DIM
    attention = models.Layer(models.Rope())
    config = models.LlamaConfig(
        vocab_size=1000, hidden_size=width, intermediate_size=3 * width, num_layers=layers,
        num_heads=heads, num_kv_heads=heads, head_dim=_HEAD_DIM, context=context, tied=True,
    )  # fmt: skip
    mixers = {
        "delta net": models.DeltaNet(heads // 2, heads, _HEAD_DIM, _HEAD_DIM),
        "Mamba-2": models.Mamba2(2 * heads, _HEAD_DIM, 1, 2 * _HEAD_DIM),
    }
    found: dict[str, Any] = {"attention": models.Llama(config)}
    wanted = _count(found["attention"])
    for name, mixer in mixers.items():
        own = (*[models.Layer(None, mixer=mixer)] * 3, attention) * (layers // 4)
        first = models.Hybrid(replace(config, layers=own))
        lanes = round((wanted - _count(first)) / (3 * width * layers))
        size = config.intermediate_size + lanes
        found[name] = models.Hybrid(replace(first.config, intermediate_size=size))
    return found


def _count(model: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(checkpoint.shapes(model)))


def _random(model: Any) -> PyTree:
    draw = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.05, leaf.shape), leaf.dtype),
        checkpoint.shapes(model),
    )


def _held(model: Any, live: int) -> tuple[PyTree, PyTree, PyTree]:
    """The shapes of the weights, of a row's memory, and of what is tentative of a tree."""
    params = checkpoint.shapes(model)
    memory = jax.eval_shape(lambda: model.init_memory(1, live + 16))
    tokens = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, 16, 16), jnp.bool_)
    output = jax.eval_shape(model.apply, params, tokens, tokens, mask, memory)
    return params, memory, output.tentative


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _forwards(model: Any, params: PyTree, nodes: int, live: int) -> Callable[[], Any]:
    """A compiled program of forward passes over a tree, each of what the one before wrote.

    Half of a tree's first path is committed each time: the root and two nodes.
    """
    memory, kept = model.init_memory(1, live + 64), min(nodes, 3)
    last = trees.ancestors(TREE.fill(jnp.zeros((1, 16), jnp.int32)))[0, -1]
    path = jnp.flatnonzero(last)[None, :kept]
    positions = jnp.full(1, live, jnp.int32)

    def filled(memory: PyTree) -> PyTree:
        """With so many slots live, whatever they hold."""
        if hasattr(memory, "lengths"):
            return memory.replace(lengths=positions)
        return memory.replace(attention=filled(memory.attention))

    def drafted(root: jax.Array) -> Tree:
        if nodes == 1:
            return trees.root_only(root)
        return TREE.fill(jnp.broadcast_to(root[:, None], (1, nodes)))

    def run(params, root, memory):
        def body(_, carry):
            root, memory = carry
            now = Frame(
                root=root, positions=positions, keys=None, sampling=None, done=jnp.zeros(1, bool)
            )
            output = score(model, params, drafted(root), now, memory)
            after = model.commit(memory, output.tentative, path, jnp.full(1, kept))
            # The first few logits say what comes next: a whole argmax would be timed too.
            return output.logits[:, -1, :8].argmax(-1).astype(jnp.int32), filled(after)

        return jax.lax.fori_loop(0, _TOGETHER, body, (root, filled(memory)))[0]

    given = params, jnp.ones(1, jnp.int32), memory
    compiled = jax.jit(run).lower(*given).compile()
    return lambda: compiled(*given)


if __name__ == "__main__":
    command(main)
