"""Layers scanned and unrolled: seconds to compile, memory beside the cache, time of a round.

python -m benchmarks.speed.deep                              # 32 and 80 narrow layers
python -m benchmarks.speed.deep --model smollm2-135m --depths '' --weights float32,int8
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, paired, record
from jspec import models
from jspec.decoding import decode_rounds
from jspec.drafters.autoregressive import Autoregressive
from jspec.models import checkpoint

WAYS = {"unrolled": False, "scanned": True}
_SLOTS = 2048
"""Of the cache that the programs are compiled for; large beside all else of a narrow model."""
_ROUNDS = 8
"""Rounds that are timed together."""


def main(
    model: Annotated[str, typer.Option(help="folder, name or hub id, to time; '' for none")] = "",
    depths: Annotated[str, typer.Option(help="comma-separated numbers of layers")] = "32,80",
    hidden_size: Annotated[int, typer.Option(min=16, help="of the layers compiled")] = 64,
    nodes: Annotated[str, typer.Option(help="comma-separated numbers of drafted nodes")] = "0,7",
    repeats: Annotated[int, typer.Option(min=1)] = 9,
    weights: Annotated[str, typer.Option(help="comma-separated dtypes of its weights")] = "float32",
    dtype: Annotated[str | None, typer.Option(help="of its activations")] = None,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Compiles whole generations of random narrow models, and times rounds of a model."""
    headline("scanned layers")
    jax.config.update("jax_enable_compilation_cache", False)
    widths = [int(count) for count in nodes.split(",")]
    if depths:
        console.print(_compiled([int(x) for x in depths.split(",")], hidden_size, widths, out))
    if model:
        console.print(_timed(model, dtype, weights.split(","), widths, repeats, out))


def _compiled(depths: list[int], hidden_size: int, nodes: list[int], out: Path | None) -> Table:
    table = Table("layers", "nodes", "way", "lowered", "compiled", "beside the cache", "of a cache")
    for depth in depths:
        config = models.LlamaConfig(
            vocab_size=1000, hidden_size=hidden_size, intermediate_size=4 * hidden_size,
            num_layers=depth, num_heads=8, num_kv_heads=4, head_dim=hidden_size // 8,
            context=2 * _SLOTS,
        )  # fmt: skip
        for count in nodes:
            for way, scanned in WAYS.items():
                target = models.Llama(config, scan_layers=scanned)
                row = _compile(target, _drafter(count))
                table.add_row(
                    *(str(depth), str(count), way, f"{row['lowered']:.1f} s"),
                    *(f"{row['compiled']:.1f} s", f"{row['beside'] / 1e6:.1f} MB"),
                    f"{row['cache'] / 1e6:.1f} MB",
                )
                record(out, dict(bench="deep", layers=depth, nodes=count, way=way) | row)
    return table


def _compile(model: Any, drafter: jspec.Drafter) -> dict[str, float]:
    """Seconds and bytes of a generation: prefill and rounds in one program."""

    def generate(params, prompt):
        return jspec.decode(
            model, params, prompt, drafter=drafter, max_new_tokens=_SLOTS - 200
        ).tokens

    began = time.perf_counter()
    prompt = jax.ShapeDtypeStruct((1, 128), jnp.int32)
    lowered = jax.jit(generate).lower(checkpoint.shapes(model), prompt)
    traced = time.perf_counter()
    program = lowered.compile()
    done = time.perf_counter()
    cache = jax.eval_shape(lambda: model.init_memory(1, _SLOTS - 200 + 128))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    temporary = program.memory_analysis().temp_size_in_bytes
    return dict(lowered=traced - began, compiled=done - traced, beside=temporary - held, cache=held)


def _timed(
    name: str,
    dtype: str | None,
    weights: list[str],
    nodes: list[int],
    repeats: int,
    out: Path | None,
) -> Table:
    table = Table("model", "nodes", "weights", "bytes", "way", "ms a round", "to the first")
    targets = {
        (held, way): models.load(name, dtype, held, with_tokenizer=False, scan_layers=scanned)
        for held in weights
        for way, scanned in WAYS.items()
    }
    for count in nodes:
        runs = {
            " ".join(key): _rounds(target.model, target.params, _drafter(count))
            for key, target in targets.items()
        }
        seconds = paired(runs, repeats)
        first = next(iter(seconds.values()))
        for (held, way), target in targets.items():
            found = seconds[f"{held} {way}"]
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(target.params))
            ratio, each = float(np.median(found / first)), float(np.median(found)) / _ROUNDS
            table.add_row(
                *(Path(name).name, str(count), held, f"{size / 1e6:.0f} MB", way),
                *(f"{1e3 * each:.1f}", f"{ratio:.3f}"),
            )
            record(
                out,
                dict(
                    bench="deep", model=name, nodes=count, weights=held, way=way, bytes=size,
                    seconds=each, ratio=ratio,
                ),
            )  # fmt: skip
    return table


def _rounds(model: Any, params: Any, drafter: jspec.Drafter) -> Callable[[], Any]:
    """Runs some rounds behind a prompt, always the same ones."""
    prompt = np.random.default_rng(0).integers(0, model.vocab_size, (1, 128))
    state = jspec.prefill(model, params, prompt, drafter=drafter, max_new_tokens=256)

    def run():
        begun = jax.tree.map(jnp.copy, state)
        return decode_rounds(model, params, begun, drafter, None, _ROUNDS).root

    return run


def _drafter(nodes: int) -> jspec.Drafter:
    return jspec.PromptLookup(nodes) if nodes else Autoregressive()


if __name__ == "__main__":
    command(main)
