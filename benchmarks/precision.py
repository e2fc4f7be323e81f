"""How far is a model in bfloat16 or 8 bits, or its memory alone, from float32, on real text?

python -m benchmarks.precision --model smollm2-135m
python -m benchmarks.precision --model smollm2-135m --dtype int8 --classes articles
python -m benchmarks.precision --model smollm2-135m --kv-dtype int8
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Float, Int
from rich.table import Table

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.texts import Prompts
from jspec import models
from jspec.models import eight_bits, precision
from jspec.protocols import CausalLM
from jspec.types import PyTree

Pair = tuple[CausalLM, CausalLM]
Places = Float[Array, " N"] | Float[np.ndarray, " N"]


class Divergence(NamedTuple):
    """Two models' distributions at each place of a text."""

    surprise: Places
    """The first model's -log p of the token that comes next, in nats."""
    other_surprise: Places
    """The second one's."""
    divergence: Places
    """KL(first || second), in nats."""
    gap: Places
    """By how much the first model prefers its best token to the second's; 0 where they agree."""


def main(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder, GGUF file, name, or hub id; may be repeated.", show_default="jspec-7m"
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="What is compared with float32.")] = "bfloat16",
    kv_dtype: Annotated[
        str | None,
        typer.Option(help="Compare keys and values of this dtype, all else in float32."),
    ] = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories,books,speeches,articles,addresses",
    count: options.Count = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Of each text that are scored.")] = 128,
    out: Annotated[Path | None, typer.Option(help="Append JSON lines here.")] = None,
) -> None:
    """Scores texts twice: with weights of a dtype and all else in float32, and all in that dtype.

    The first says what rounding the weights alone does, the second what a user of that dtype has.
    In 8 bits there is no second. With --kv-dtype it scores them once, with weights in float32 too.
    """
    dtype = "float32" if kv_dtype else dtype
    compared = f"keys and values in {kv_dtype}" if kv_dtype else dtype
    headline(f"{compared} and float32: {count} texts of {tokens} tokens of each class")
    for named in model or ["jspec-7m"]:
        table = Table("model", "class", f"in {kv_dtype or dtype}", *_COLUMNS)
        subject = model_pairs.subject(named, None, prompts, classes)
        exact = subject.target
        if kv_dtype:
            _say_bytes(exact.model, kv_dtype)
        ways = (
            {"keys, values": "float32"}
            if kv_dtype
            else {"weights": "float32"}
            | ({} if eight_bits.low_precision(dtype) else {"all": dtype})
        )
        for what, sums in ways.items():
            other = models.load(named, sums, dtype, with_tokenizer=False, kv_dtype=kv_dtype)
            pair, weights = (exact.model, other.model), (exact.params, other.params)
            whole = []
            for kind in subject.classes:
                found = list(_read(pair, weights, subject.prompts(kind, count, tokens)))
                whole += found
                _add(table, out, subject.name, kind, what, found)
            _add(table, out, subject.name, "all", what, whole)
            table.add_section()
        console.print(table)


_COLUMNS = (
    "nats a token", "nats more", "mean KL", "99% below", "same best token", "largest gap where not"
)  # fmt: skip


def _say_bytes(model: Any, kv_dtype: str) -> None:
    """What 1,000 tokens of a row take in the model's memory, here and in float32."""
    found = [
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(memory))
        for memory in (
            jax.eval_shape(partial(one.init_memory, 1, 1000))
            for one in (model, model.clone(kv_dtype=precision.find_kv(kv_dtype)))
        )
    ]
    wide, narrow = (size / 1e6 for size in found)
    console.print(f"1,000 tokens take {wide:.2f} MB in float32, {narrow:.2f} MB in {kv_dtype}")


def _read(pair: Pair, params: tuple[PyTree, PyTree], prompts: Prompts) -> Iterator[Divergence]:
    for row in prompts.tokens:
        yield jax.device_get(_divergence(pair, params, jnp.asarray(row)))


@jax.jit(static_argnums=0)
def _divergence(pair: Pair, params: tuple[PyTree, PyTree], text: Int[Array, " N"]) -> Divergence:
    size = len(text)
    places = jnp.arange(size)[None]
    causal = jnp.tril(jnp.ones((1, size, size), bool))
    one, other = (
        jax.nn.log_softmax(model.apply(weights, text[None], places, causal, None).logits[0, :-1])
        for model, weights in zip(pair, params, strict=True)
    )
    follows = text[1:, None]
    chosen = other.argmax(-1)[:, None]
    return Divergence(
        surprise=-jnp.take_along_axis(one, follows, 1)[:, 0],
        other_surprise=-jnp.take_along_axis(other, follows, 1)[:, 0],
        divergence=(jnp.exp(one) * (one - other)).sum(-1),
        gap=one.max(-1) - jnp.take_along_axis(one, chosen, 1)[:, 0],
    )


def _add(
    table: Table, out: Path | None, name: str, kind: str, what: str, found: list[Divergence]
) -> None:
    every = Divergence(*(np.concatenate(part) for part in zip(*found, strict=True)))
    more = (every.other_surprise - every.surprise).mean()
    highest = np.quantile(every.divergence, 0.99)
    same = (every.gap == 0).mean()
    table.add_row(
        *(name, kind, what, f"{every.surprise.mean():.4f}", f"{more:+.5f}"),
        *(f"{every.divergence.mean():.1e}", f"{highest:.1e}", f"{same:.2%}"),
        f"{every.gap.max():.3f}",
    )
    figures = dict(
        nats=every.surprise.mean(), more=more, mean_kl=every.divergence.mean(), kl_99=highest,
        same=same, gap=every.gap.max(), tokens=every.gap.size,
    )  # fmt: skip
    row = {key: float(value) for key, value in figures.items()}
    record(out, dict(model=name, texts=kind, what=what) | row)


if __name__ == "__main__":
    command(main)
