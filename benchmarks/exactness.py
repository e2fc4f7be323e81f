"""Are the tokens plain decoding's, and how far is one dtype from another?

python -m benchmarks.exactness tokens --questions question.jsonl        # with CPU kernels
JSPEC_NATIVE=0 python -m benchmarks.exactness tokens --model smollm2-135m --dtype bfloat16
JSPEC_NATIVE=0 python -m benchmarks.exactness tokens --dtype bfloat16 --batch-invariant 16
python -m benchmarks.exactness precision --model smollm2-135m --dtype int8 --classes articles
python -m benchmarks.exactness precision --model smollm2-135m --kv-dtype int8

`jspec certify` does one method, greedy and drawn, and tells ties from bugs; with --bitwise it
compares the logits themselves.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Float, Int
from rich import box
from rich.table import Table

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, record
from benchmarks.ledger import Ledger
from benchmarks.texts import Prompts
from jspec import models
from jspec._xla import native
from jspec.cli import options as command_line
from jspec.cli.bench import chat
from jspec.cli.bench import questions as asking
from jspec.methods import LLM
from jspec.models import eight_bits
from jspec.models import precision as precisions
from jspec.models.pruning import prune
from jspec.protocols import CausalLM
from jspec.sessions import method_choice, session
from jspec.types import PyTree

main = typer.Typer(help="Compare tokens, or the distributions of two dtypes.")

# Tokens.

PLAIN = "autoregressive"


@main.command()
def tokens(
    model: options.Model = None,
    methods: Annotated[str, typer.Option(help="Comma-separated.")] = "auto,token_recycling,suffix",
    keep_layers: Annotated[
        str | None,
        typer.Option(help="Layers of the target, comma-separated: the draft model they make."),
    ] = None,
    questions: options.Questions = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Questions, spread evenly over the classes.")
    ] = None,
    dtype: command_line.Dtype = None,
    batch_invariant: command_line.BatchInvariance = None,
    nodes: Annotated[int, typer.Option(min=1, help="Drafted ones of a round.")] = 15,
    batch_size: command_line.BatchSize = 1,
    new_tokens: options.NewTokens = 32,
    out: options.Out = None,
) -> None:
    """Counts greedy answers that are plain decoding's, token by token; exits with 1 if one differs.

    A drafter's memory goes on from question to question.
    """
    choice = method_choice.choose(PLAIN, None)
    plain = session.start(model, None, choice, dtype, batch_invariant=batch_invariant).llm
    target, draft = plain.target, None
    if keep_layers is not None:
        layers = [int(layer) for layer in keep_layers.split(",")]
        network: Any = target.model
        small: Any = prune(network, target.params, layers)
        draft = models.Loaded(*small, None, (), None)
    sizes: dict[str, Any] = {"num_speculative_tokens": nodes, "draft": draft}
    drafted = {name: LLM(target, name, **sizes) for name in methods.split(",")}
    sample = asking.choose(asking.read(questions or asking.SAMPLE), limit)
    words = chat.wording(target)
    # Those of one length together, so that rows are padded little.
    prompts = sorted((words.ids(one.turns[:1], []) for one in sample), key=len)
    about = {"bench": "tokens", "model": model, "questions": len(sample), "dtype": dtype}
    about |= {"batch_invariant": batch_invariant, "nodes": nodes, "batch_size": batch_size}
    ledger = Ledger(out, about | {"new_tokens": new_tokens, "keep_layers": keep_layers})
    shape = "" if batch_invariant is None else f", one shape of {batch_invariant} tokens"
    headline(f"tokens of {len(sample)} answers, {native.describe()}{shape}")
    table = Table("method", "equal answers", "tokens per round", box=box.MARKDOWN)
    theirs: list[list[int]] = []
    for name, llm in {PLAIN: plain, **drafted}.items():
        earlier = ledger.find(method=name)
        if not earlier or name == PLAIN:
            with console.status(name):
                ours, rounds = _answers(llm, prompts, batch_size, new_tokens)
            theirs = theirs or ours
            equal = sum(one == other for one, other in zip(ours, theirs, strict=True))
            row = {"method": name, "equal": equal, "tokens": sum(map(len, ours)), "rounds": rounds}
            if not earlier:
                ledger.add(**row)
        (row,) = ledger.find(method=name)
        per_round = f"{row['tokens'] / row['rounds']:.2f}"
        table.add_row(name, f"{row['equal']} of {len(sample)}", per_round)
    console.print(table)
    raise typer.Exit(int(any(row["equal"] < len(sample) for row in ledger.rows)))


def _answers(
    llm: LLM, prompts: Sequence[list[int]], batch_size: int, new_tokens: int
) -> tuple[list[list[int]], int]:
    """Returns the answers, and the rounds of all rows."""
    answers, rounds, state = [], 0, None
    for first in range(0, len(prompts), batch_size):
        rows = prompts[first : first + batch_size]
        result = llm.decode(rows, max_new_tokens=new_tokens, drafter_state=state).result
        state = result.drafter_state
        for row, length in zip(*jax.device_get((result.tokens, result.lengths)), strict=True):
            answers.append(row[:length].tolist())
        rounds += int(result.stats.num_rounds.sum())
    return answers, rounds


# Precision.

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


@main.command()
def precision(
    model: Annotated[
        list[str] | None, typer.Option(help="Folder, GGUF file, name or hub id; may be repeated.")
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
    out: options.Out = None,
) -> None:
    """Scores texts twice: with only the weights in a dtype, and with everything in it.

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
    """Prints the memory of 1,000 tokens of a row, here and in float32."""
    found = [
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(memory))
        for memory in (
            jax.eval_shape(partial(one.init_memory, 1, 1000))
            for one in (model, model.clone(kv_dtype=precisions.find_kv(kv_dtype)))
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
