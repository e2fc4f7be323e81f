"""What a draft costs: heads of all kinds at the same depth and number of nodes.

python -m benchmarks.block.latency --model smollm2-135m --head runs/block --head runs/eagle
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich import box
from rich.table import Table

import jspec
from benchmarks import options
from benchmarks.block.side_by_side import ALONE
from benchmarks.harness import command, console, headline, paired, record
from jspec.methods import BUNDLED
from jspec.models import Loaded, heads, load
from jspec.models.heads.eagle import EAGLEHead
from jspec.types import Frame, Output, PromptChunk, PyTree

SLOTS = 512


def main(
    head: Annotated[list[str], typer.Option(metavar="DIR|NAME", help="Each trained head.")],
    model: options.Model = None,
    nodes: Annotated[int, typer.Option(min=1, help="Drafted nodes.")] = 15,
    depth: Annotated[int, typer.Option(min=1, help="Levels, of heads that choose theirs.")] = 8,
    context: Annotated[int, typer.Option(min=2, help="Tokens before the draft.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is timed.")] = 20,
    out: options.Out = None,
) -> None:
    """Times the drafts of one row in turn, after as many random states; prints medians."""
    target = load(model or BUNDLED)
    runs, first = {}, ""
    for named in head:
        for name, drafter, params, features in contenders(target, named, nodes, depth):
            runs[name] = draft(drafter, params, features, target.model.vocab_size, context)
            first = first or name
    headline(f"One draft of {nodes} nodes after {context} tokens, one row")
    times = {name: 1e3 * float(np.median(found)) for name, found in paired(runs, repeats).items()}
    shown = Table("draft", "ms", f"of {first}", box=box.MARKDOWN)
    for name, time in times.items():
        shown.add_row(name, f"{time:.2f}", f"{time / times[first]:.2f}")
    console.print(shown)
    record(out, {"bench": "head_latency", "nodes": nodes, "depth": depth, "ms": times})


def contenders(
    target: Loaded, named: str, nodes: int, depth: int
) -> Iterator[tuple[str, Any, PyTree, int]]:
    """Name, drafter, its variables and the width of the states that it reads.

    An EAGLE head of hot tokens is timed as it is published too, drafting all: the same layer.
    """
    loaded = heads.load(named, target)
    kind = heads.kind_of(loaded.head)
    sized: dict[str, Any] = {"num_speculative_tokens": nodes}
    if kind in ("block", "eagle"):
        sized["max_depth"] = depth
    built = jspec.methods.build(ALONE[kind], target, head=named, **sized)
    drafter: Any = built.drafter
    hot = getattr(loaded.head.config, "hot_tokens", 0)
    name = f"{kind}, {hot:,} tokens" if hot else kind
    yield name, drafter, built.drafter_params, loaded.head.features
    if isinstance(loaded.head, EAGLEHead) and hot:
        every = loaded.head.clone(config=replace(loaded.head.config, hot_tokens=0))
        kept = {part: built.drafter_params[part] for part in ("params", heads.TARGET)}
        yield f"{kind}, all tokens", replace(drafter, head=every), kept, every.features


def draft(drafter: Any, params: PyTree, features: int, vocab_size: int, context: int) -> Any:
    """One draft as a compiled program, after a text of random states."""
    draws = np.random.default_rng(0)
    tokens = jnp.asarray(draws.integers(0, vocab_size, (1, context)), jnp.int32)
    states = jnp.asarray(2 * draws.normal(size=(1, context, features)), jnp.float32)
    # What a prompt's forward gives; heads read its states alone.
    logits = jnp.zeros((1, context, vocab_size), jnp.float32)
    output = Output(logits=logits, hidden=states)
    lengths = jnp.array([context], jnp.int32)
    state = drafter.init(1, SLOTS, None)
    state = drafter.prefill(params, state, PromptChunk.whole(tokens, lengths, output))
    frame = Frame(tokens[:, -1], lengths - 1, None, None, jnp.zeros(1, bool))
    run = jax.jit(lambda params, state: drafter.draft(params, state, frame)[0])
    return lambda: run(params, state)


if __name__ == "__main__":
    command(main)
