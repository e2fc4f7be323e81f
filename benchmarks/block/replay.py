"""Heads of all kinds on held-out text that the target wrote: each round replayed, none scored anew.

python -m benchmarks.block.replay rows.jsonl --model smollm2-135m --head runs/block --head ..
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jaxtyping import Array, Bool, Float, Int
from rich import box
from rich.table import Table

import jspec
from benchmarks import options, texts
from benchmarks.block.acceptance import Independent, Unranked
from benchmarks.block.side_by_side import ALONE
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_head.block import BlockDrafter
from jspec.memory import KVCache, TreeKV, commit, init, until
from jspec.methods import BUNDLED
from jspec.models import Loaded, heads, load
from jspec.sampling import gumbel, row_keys
from jspec.training import sequences
from jspec.training.distributions import observe
from jspec.training.lm import forward
from jspec.types import Output, PyTree

VARIANTS = {"likeliest paths": Unranked, "drawn independently": Independent}
"""A block head's trees that do not know the target's noise."""
SPARE = 12
"""Tokens at the end of a text that no counted round begins in: a round may emit as many."""


@dataclass(frozen=True)
class Replay:
    """A target that knows what it wrote: its tokens and states along the text of each row.

    A drafted node behind an accepted path stands at its position and is scored as the text goes on;
    what other nodes are scored is never read. So rounds are those of decoding, without its cost.
    """

    vocab_size: int
    context: int | None = None

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        return init(batch, capacity, 1, 1, 1, jnp.float32)

    commit, until = staticmethod(commit), staticmethod(until)

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N N"],
        memory: KVCache,
        nodes: TreeKV | None = None,
    ) -> Output:
        del mask, memory, nodes
        text, states = params["tokens"], params["hidden"]
        following = jnp.minimum(positions + 1, text.shape[1] - 1)
        following = jnp.take_along_axis(text, following, axis=1)
        at = jnp.minimum(positions, text.shape[1] - 1)[..., None]
        none = jnp.zeros((len(tokens), 1, tokens.shape[1], 1), jnp.float32)
        return Output(
            # Far above any noise.
            logits=1e4 * jax.nn.one_hot(following, self.vocab_size, dtype=jnp.float32),
            hidden=jnp.take_along_axis(states, at, axis=1),
            tentative=TreeKV((none,), (none,)),
        )


@dataclass(frozen=True)
class Written:
    """Rows of one temperature, as `jspec train data` wrote them."""

    temperature: float
    numbers: list[int]
    """Their numbers in the file, by which the target drew them."""
    labels: list[str]
    prompts: Prompts
    texts: Prompts
    """With their prompts."""

    @property
    def wanted(self) -> Int[np.ndarray, " B"]:
        """Tokens whose rounds are counted."""
        return self.texts.lengths - self.prompts.lengths - SPARE


def main(
    text: Annotated[Path, typer.Argument(help="A file of `jspec train data`.")],
    head: Annotated[list[str], typer.Option(metavar="DIR|NAME", help="Each trained head.")],
    model: options.Model = None,
    heldout: Annotated[float, typer.Option(help="The share that training held out.")] = 0.05,
    nodes: Annotated[str, typer.Option(help="Drafted nodes, comma-separated.")] = "15,63",
    temperatures: Annotated[str, typer.Option(help="Of the rows, comma-separated.")] = "0,1",
    rows: Annotated[int, typer.Option(min=1, help="Most rows of a temperature.")] = 12,
    shortest: Annotated[int, typer.Option(help="Fewest tokens of a row's text.")] = 48,
    seed: Annotated[int, typer.Option(help="That the rows were drawn with.")] = 0,
    variants: Annotated[bool, typer.Option(help="Trees without the noise, of block heads.")] = True,
    out: options.Out = None,
) -> None:
    """Tokens per round by temperature and class, of the same texts for all heads."""
    target, ledger = load(model or BUNDLED, scan_layers=True), Ledger(out)
    written = [
        pick(text, target, heldout, float(one), rows, shortest) for one in temperatures.split(",")
    ]
    written = alike(written)
    headline(f"{text}: {', '.join(f'{len(w.numbers)} rows at {w.temperature:g}' for w in written)}")
    for one in written:
        console.print(
            f"T {one.temperature:g}: {known(target, one, seed):.1%} of its tokens redrawn"
        )
    about: dict[str, Any] = dict(bench="replay", texts=texts.digest(text), heldout=heldout)
    told: list[dict[str, Any]] = []
    for named in head:
        loaded = heads.load(named, target)
        kind = heads.kind_of(loaded.head)
        states = {one.temperature: replayed(loaded.target, one) for one in written}
        for size in map(int, nodes.split(",")):
            built = jspec.methods.build(
                ALONE[kind], target, head=named, num_speculative_tokens=size
            )
            for name, drafter in ways(kind, built.drafter, variants):
                for one in written:
                    key = about | {
                        "head": named,
                        "drafter": name,
                        "nodes": size,
                        "temperature": one.temperature,
                        "rows": one.numbers,
                    }
                    if not ledger.find(**key):
                        with console.status(f"{name}, {size} nodes, T {one.temperature:g}"):
                            made = Decoding(
                                Replay(target.model.vocab_size),
                                states[one.temperature],
                                drafter,
                                built.drafter_params,
                                max(int(other.wanted.max()) for other in written),
                            )
                            found = made.count(
                                one.prompts,
                                one.wanted,
                                sampling=jspec.Sampling(one.temperature),
                                key=seed,
                                ids=np.array(one.numbers, np.int32),
                            )
                        ledger.add(**key, histogram=found.histogram.tolist())
                    told.append(ledger.find(**key)[-1] | {"labels": one.labels})
    console.print(table(told, [one.temperature for one in written]))
    console.print(by_class([row for row in told if row["drafter"] in ALONE]))


def pick(
    path: Path, target: Loaded, heldout: float, temperature: float, count: int, shortest: int
) -> Written:
    """The first held-out rows of a temperature, with enough text, in the file's order."""
    _, out = sequences.split(sequences.read(path, target.model.vocab_size), heldout)
    held = {tuple(row.tokens) for row in out}
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            size = len(row["tokens"]) - row["prompt_tokens"]
            fits = row["temperature"] == temperature and size >= shortest
            if fits and tuple(row["tokens"]) in held:
                found.append((number, row))
    found = found[:count]
    return Written(
        temperature,
        [number for number, _ in found],
        [row["class"] for _, row in found],
        texts.pad([row["tokens"][: row["prompt_tokens"]] for _, row in found]),
        texts.pad([row["tokens"] for _, row in found]),
    )


def alike(written: Sequence[Written]) -> list[Written]:
    """The same in arrays of one width, so that all temperatures run one program."""

    def wider(prompts: Prompts, size: int) -> Prompts:
        more = ((0, 0), (0, size - prompts.tokens.shape[1]))
        return Prompts(np.pad(prompts.tokens, more), prompts.lengths)

    asked, told = (
        max(part.tokens.shape[1] for part in parts)
        for parts in ([one.prompts for one in written], [one.texts for one in written])
    )
    return [
        replace(one, prompts=wider(one.prompts, asked), texts=wider(one.texts, told))
        for one in written
    ]


def replayed(target: Loaded, written: Written) -> PyTree:
    """The params of `Replay`: the texts, and the target's states along them."""
    run = jax.jit(lambda params, tokens: observe(target.model, params, tokens, 0).hidden)
    hidden = [run(target.params, row[None])[0] for row in written.texts.tokens]
    return {"tokens": jnp.asarray(written.texts.tokens), "hidden": jnp.stack(hidden)}


def known(target: Loaded, written: Written, seed: int) -> float:
    """The share of tokens that the rows' own noise chooses: 1 but for rounding if it is theirs."""
    keys = row_keys(jax.random.key(seed), jnp.array(written.numbers, jnp.int32))

    @jax.jit
    def chosen(params: PyTree, tokens: Int[Array, " T"], key: Array) -> Int[Array, " T"]:
        logits = forward(target.model, params, tokens[None]).logits[0]
        places = jnp.arange(len(tokens))
        noise = jax.vmap(lambda place: gumbel(key[None], place[None], logits.shape[-1])[0])(places)
        return (logits + written.temperature * noise).argmax(-1)

    right = []
    for row, key in enumerate(keys):
        first, last = written.prompts.lengths[row], written.texts.lengths[row]
        found = np.asarray(chosen(target.params, jnp.asarray(written.texts.tokens[row]), key))
        right.append(found[first - 1 : last - 1] == written.texts.tokens[row, first:last])
    return float(np.concatenate(right).mean())


def ways(kind: str, drafter: Any, variants: bool) -> Iterator[tuple[str, Any]]:
    """The kind's own tree, and for block heads those without the noise."""
    yield kind, drafter
    if variants and isinstance(drafter, BlockDrafter):
        shape = (drafter.head, drafter.num_speculative_tokens, drafter.max_depth, drafter.beam)
        for name, other in VARIANTS.items():
            yield f"{kind}, {name}", other(*shape, drafter.num_candidates)


def mean(histogram: Float[np.ndarray, "B lanes"]) -> float:
    """Tokens per round."""
    return float((histogram @ np.arange(1, histogram.shape[-1] + 1)).sum() / histogram.sum())


def table(told: Sequence[dict[str, Any]], warm: Sequence[float]) -> Table:
    """Tokens per round, a line for each drafter and number of nodes."""
    shown = Table(*("nodes", "drafter", *(f"T {one:g}" for one in warm)), "kept", box=box.MARKDOWN)
    for first in range(0, len(told), len(warm)):
        group = told[first : first + len(warm)]
        means = [mean(np.array(row["histogram"])) for row in group]
        cells = (f"{one:.2f}" for one in means)
        kept = f"{means[-1] / means[0]:.0%}"
        shown.add_row(str(group[0]["nodes"]), group[0]["drafter"], *cells, kept)
    return shown


def by_class(told: Sequence[dict[str, Any]]) -> Table:
    """The same by class of prompts."""
    named = sorted({label for row in told for label in row["labels"]})
    shown = Table("nodes", "drafter", "T", *named, box=box.MARKDOWN)
    for row in told:
        labels, histogram = np.array(row["labels"]), np.array(row["histogram"])
        cells = (
            f"{mean(histogram[labels == label]):.2f}" if (labels == label).any() else ""
            for label in named
        )
        shown.add_row(str(row["nodes"]), row["drafter"], f"{row['temperature']:g}", *cells)
    return shown


if __name__ == "__main__":
    command(main)
