"""Has a node of a tree the bits of its token in plain decoding? Counted over models and drafters.

python -m benchmarks.bits --model jspec-7m --model smollm2-135m --nodes 50000
python -m benchmarks.bits --model tests/models/fixtures/qwen3      # any folder, hub id or GGUF file
JSPEC_NATIVE=0 python -m benchmarks.bits                           # XLA's products, which do differ

Random texts are fed as paths of random trees (`jspec.testing.check_bits`). Then every method that
needs no training continues them, and keys and values of what it committed are compared with those
of plain decoding: they follow from the hidden states of every layer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import registry
from benchmarks.harness import command, console, headline, record
from jspec import models
from jspec._xla import native
from jspec.decoding import decode_rounds
from jspec.drafters.autoregressive import Autoregressive
from jspec.methods import Built
from jspec.testing import check_bits

_SIZES = (1, 2, 5, 8, 16)
"""Tokens of a forward."""
_ROWS = 8
"""Of a forward: with 16 tokens each, as many rows as the kernels take."""
_DRAFTED = 4
"""Of a drafter: its rounds may be wider, and XLA multiplies more than 128 rows."""
_PROMPT, _MOST = 12, 60
"""Tokens of a prompt, and of a text. The families' small checkpoints place 64."""


def main(
    model: Annotated[
        list[str] | None, typer.Option(help="Folder, GGUF file, name or hub id; may be repeated.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Comma-separated.")] = "float32,bfloat16,int8",
    nodes: Annotated[int, typer.Option(min=1, help="Of trees, at least; for each dtype.")] = 10_000,
    texts: Annotated[int, typer.Option(min=1, help="Random ones.")] = 16,
    methods: Annotated[bool, typer.Option(help="Compare what drafters commit, too.")] = True,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Compares, and exits with 1 if some bit differs."""
    headline(f"bit by bit, {native.described()}")
    table = Table("model", "dtype", "how", "nodes", "numbers", "different")
    total = np.zeros(3, int)
    for name in model or ["jspec-800k"]:
        for kind in dtype.split(","):
            target = models.load(name, dtype=kind, with_tokenizer=False)
            draw = np.random.default_rng(0)
            size = (texts, min(_MOST, target.model.context or _MOST))
            drawn = draw.integers(0, target.model.vocab_size, size)
            ways: dict[str, Callable[[], tuple[int, int, int]]] = {
                "trees": lambda target=target, drawn=drawn: _trees(target, drawn, nodes)
            }
            if methods:
                built = registry.build_those_there(registry.standalone(), target)
                for method, one in built.items():
                    ways[method] = lambda target=target, drawn=drawn, one=one: _committed(
                        target, one, drawn[:_DRAFTED, :_PROMPT]
                    )
            for way, count in ways.items():
                with console.status(f"{name}, {kind}, {way}"):
                    found = count()
                total += found
                table.add_row(Path(name).name, kind, way, *(f"{number:,}" for number in found))
                held = {"bench": "bits", "model": name, "dtype": kind, "way": way}
                record(out, held | dict(zip(("nodes", "numbers", "different"), found, strict=True)))
    console.print(table)
    console.print("{:,} nodes, {:,} numbers, {:,} different".format(*total))
    if total[2]:
        raise typer.Exit(1)


def _trees(target: models.Loaded, texts: np.ndarray, nodes: int) -> tuple[int, int, int]:
    """Nodes, numbers and different ones of random trees."""
    turns = -(-nodes // (texts.size * len(_SIZES)))
    found = check_bits(
        target.model, target.params, texts.tolist(), sizes=_SIZES * turns, batch_size=_ROWS
    )
    return found.num_nodes, found.num_numbers, found.num_different


def _committed(target: models.Loaded, built: Built, prompts: np.ndarray) -> tuple[int, int, int]:
    """Tokens that a drafter committed, their keys and values, and those of plain decoding's that
    differ. A token that differs counts as one number.
    """
    plain = _written(target.model, target.params, Autoregressive(), None, prompts)
    drafted = _written(built.model, target.params, built.drafter, built.drafter_params, prompts)
    tokens = numbers = different = 0
    for row in range(len(prompts)):
        # The last of a row is of no cache, and in plain decoding another one is the last.
        count = min(int(state.positions[row]) for state in (plain, drafted))
        written = count - prompts.shape[1] + 1
        tokens += written
        different += int((plain.out[row, :written] != drafted.out[row, :written]).sum())
        for one, other in zip(_held(plain), _held(drafted), strict=True):
            ours, theirs = (
                np.ascontiguousarray(leaf[row, :, :count]).view(np.uint8) for leaf in (one, other)
            )
            width = one.dtype.itemsize
            numbers += ours.size // width
            same = (ours == theirs).reshape(-1, width).all(-1)
            different += int((~same).sum())
    return tokens, numbers, different


def _held(state: jspec.State) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in (*state.memory.keys, *state.memory.values)]


def _written(model: Any, params: Any, drafter: Any, weights: Any, prompts: np.ndarray) -> Any:
    """The state in which a generation ends, sampled with one key."""
    state = jspec.prefill(
        model, params, prompts, drafter=drafter, drafter_params=weights, key=0,
        max_new_tokens=_MOST - _PROMPT, sampling=jspec.Sampling(temperature=0.8),
    )  # fmt: skip
    return jax.device_get(decode_rounds(model, params, state, drafter, weights, _MOST))


if __name__ == "__main__":
    command(main)
