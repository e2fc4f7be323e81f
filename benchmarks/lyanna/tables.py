"""Lyanna's token info (Chen et al. 2026, 5.1, 6.1) from a table, or made of two factors.

python -m benchmarks.lyanna.tables --out tables.jsonl
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich import box
from rich.table import Table

from benchmarks import options
from benchmarks.harness import command, console, headline, paired
from benchmarks.ledger import Ledger
from benchmarks.lyanna.trained_heads import DEPTH, WIDTH
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead, collapse

FORMS = ("factors", "float32", "float16", "int8")


def main(
    vocab_size: Annotated[int, typer.Option(min=2, help="tokens of the target")] = 49_152,
    width: Annotated[int, typer.Option(min=1, help="of the target's states")] = 576,
    rank: Annotated[int, typer.Option(min=1, help="of token info")] = 64,
    hot_tokens: Annotated[str, typer.Option(help="numbers of hot tokens, comma-separated")] = (
        "2048,8192"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="timings of each")] = 30,
    out: options.Out = None,
) -> None:
    """Adds the token info of a level's nodes to its scores, level after level; random weights."""
    about = {"bench": "lyanna.tables", "vocab_size": vocab_size, "width": width, "rank": rank}
    ledger = Ledger(out, about | {"repeats": repeats})
    headline(f"Token info of {vocab_size:,} tokens, rank {rank}: {DEPTH} levels of {WIDTH} nodes")
    shown = Table("hot tokens", "form", "MiB", "ms per round", "over factors", box=box.MARKDOWN)
    for hot in map(int, hot_tokens.split(",")):
        held, sizes = forms(vocab_size, width, rank, hot)
        seconds = paired(held, repeats)
        for form in FORMS:
            times = 1e3 * seconds[form]
            over = np.median(seconds[form] / seconds["factors"])
            ledger.add(hot_tokens=hot, form=form, bytes=sizes[form], ms=times.round(4).tolist())
            cells = f"{sizes[form] / 2**20:,.1f}", f"{np.median(times):.3f}", f"{over:.2f}"
            shown.add_row(f"{hot:,}", form, *cells)
    console.print(shown)


def forms(vocab_size: int, width: int, rank: int, hot: int):
    """Returns a round's additions by each form of the table, and the bytes of each."""
    shape = dict(
        vocab_size=vocab_size, hidden_size=width, intermediate_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, context=64, rank=rank, hot_tokens=hot,
    )  # fmt: skip
    head = LyannaHead(LyannaConfig(**shape))
    one = jnp.zeros((1, 1), jnp.int32)
    inputs = jnp.zeros((1, 1, width)), one, one, one[..., None] == 0
    variables = head.init(jax.random.key(0), *inputs)
    draws = np.random.default_rng(0)
    embed = draws.normal(size=(vocab_size, width)).astype(np.float32)
    variables = {**variables, "target": {**variables["target"], "embed": jnp.asarray(embed)}}
    logits = jnp.asarray(draws.normal(size=(1, WIDTH, vocab_size)), jnp.float32)
    tokens = jnp.asarray(draws.integers(0, hot, (1, WIDTH)), jnp.int32)

    @jax.jit
    def run(params, logits, tokens):
        for _ in range(DEPTH):
            # The next level's nodes wait for this one's scores.
            tokens = (tokens + head.inform(params, logits, tokens).argmax(-1)) % hot
        return tokens

    found, sizes = {}, {}
    for form in FORMS:
        params = collapse(head, variables, None if form == "factors" else form,
                          0 if form == "factors" else 2**34)  # fmt: skip
        sizes[form] = sum(leaf.nbytes for leaf in jax.tree.leaves(params["table"]))
        found[form] = lambda params=params: run(params, logits, tokens)
    return found, sizes


if __name__ == "__main__":
    command(main)
