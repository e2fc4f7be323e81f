"""Layers in the host's memory: seconds of a forward by the number of nodes it verifies.

python -m benchmarks.speed.streaming --model M --weights int8
python -m benchmarks.speed.streaming --layers 80 --hidden-size 8192   # 70B, random weights

Where a device has its own memory, a forward from the host's takes as long as the copy of all layers
until its nodes take longer, so that large trees cost nothing. On a CPU both memories are one, and
the numbers say only that the program runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

from benchmarks.harness import command, console, headline, paired, record
from jspec import models
from jspec.models import precision, stacking, streaming, streaming_plan
from jspec.types import PyTree

_SLOTS, _PAST = 1024, 128
"""Of the cache, and tokens in it; a tree stands behind them and is not committed."""


def main(
    model: Annotated[str, typer.Option(help="folder, name or hub id; '' for random weights")] = "",
    layers: Annotated[int, typer.Option(min=2, help="of random weights")] = 8,
    hidden_size: Annotated[int, typer.Option(min=128, help="of random weights")] = 512,
    nodes: Annotated[str, typer.Option(help="comma-separated")] = "1,8,64,256,768",
    weights: Annotated[str | None, typer.Option(help="dtype of the weights")] = None,
    bandwidth: Annotated[float, typer.Option(help="GB a second to the device")] = 25,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Times forward passes with all weights on the device, where they fit, and with layers
    streamed.
    """
    headline("streamed layers")
    target, params = _loaded(model, weights) if model else _random(layers, hidden_size, weights)
    widths = [int(count) for count in nodes.split(",")]
    found = streaming_plan.plan(
        target, params, capacity=_SLOTS, nodes=max(widths), bandwidth=1e9 * bandwidth
    )
    console.print(
        f"layers {found.host_bytes / 1e9:.2f} GB in {streaming.HOST}, "
        f"{found.device_bytes / 1e9:.2f} GB on the device; "
        f"the copy takes {1e3 * found.seconds:.1f} ms at {bandwidth:g} GB/s"
    )
    ways = {"streamed": params, "on the device": _moved(params)}
    table = Table("nodes", *(f"{way}, ms" for way in ways), "streamed / on the device")
    for count in widths:
        runs = {way: _forward(target, held, count) for way, held in ways.items()}
        seconds = paired(runs, repeats)
        each = {way: 1e3 * float(np.median(found)) for way, found in seconds.items()}
        ratio = float(np.median(seconds["streamed"] / seconds["on the device"]))
        table.add_row(str(count), *(f"{each[way]:.1f}" for way in ways), f"{ratio:.2f}")
        record(out, dict(bench="streaming", model=model, nodes=count, milliseconds=each))
    console.print(table)


def _loaded(name: str, weights: str | None) -> tuple[Any, PyTree]:
    loaded = models.load(
        name, param_dtype=weights, with_tokenizer=False, scan_layers=True,
        layer_memory=streaming.HOST,
    )  # fmt: skip
    return loaded.model, loaded.params


def _random(layers: int, hidden_size: int, weights: str | None) -> tuple[Any, PyTree]:
    """Llama's proportions; the weights are made a layer at a time, all layers alike."""
    heads = hidden_size // 128
    config = models.LlamaConfig(
        vocab_size=32000, hidden_size=hidden_size, intermediate_size=hidden_size * 7 // 2,
        num_layers=layers, num_heads=heads, num_kv_heads=max(heads // 8, 1), head_dim=128,
        context=4096,
    )  # fmt: skip
    dtypes = precision.pair(None, weights)
    target = models.Llama(config, *dtypes, scan_layers=True)
    streaming_plan.check(target, streaming.HOST)
    single = models.Llama(config.__class__(**{**vars(config), "num_layers": 1}), *dtypes)
    one = jnp.zeros((1, 1), jnp.int32)
    params = single.init(jax.random.key(0), one, one, jnp.ones((1, 1, 1), bool))["params"]
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def alike(leaf):
        stack = np.broadcast_to(np.asarray(leaf), (layers, *leaf.shape))
        kind = streaming.HOST if streaming.streamed(stack.shape) else streaming.DEVICE
        return jax.device_put(stack, here.with_memory_kind(kind))

    name = stacking.name(range(layers))
    params[name] = jax.tree.map(alike, params.pop("layers_0"))
    return target, {"params": params}


def _moved(params: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.memory.Space.Device), params)


def _forward(model: Any, params: PyTree, nodes: int) -> Callable[[], Any]:
    """A forward over a tree of so many nodes, each the child of the root."""
    cache = model.init_memory(1, _SLOTS).replace(lengths=jnp.full(1, _PAST, jnp.int32))
    tokens = jnp.arange(nodes, dtype=jnp.int32)[None] % model.vocab_size
    positions = _PAST + jnp.minimum(jnp.arange(nodes), 1)[None]
    mask = (jnp.eye(nodes, dtype=bool) | (jnp.arange(nodes) == 0))[None]

    @jax.jit
    def run(params, cache):
        return model.apply(params, tokens, positions, mask, cache).logits.argmax(-1)

    return lambda: run(params, cache)


if __name__ == "__main__":
    command(main)
