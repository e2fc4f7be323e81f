"""Lyanna (Chen et al. 2026), Figs. 8 to 12: throughput by batch, the worth of re-sampling.

python -m benchmarks.lyanna.throughput --out throughput.jsonl
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline, paired
from benchmarks.ledger import Ledger
from benchmarks.lyanna import trained_heads
from benchmarks.lyanna.trained_heads import DEPTH, WIDTH, EagleHead, Head
from benchmarks.model_pairs import Pair
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_head import lyanna_resampling
from jspec.protocols import Drafter
from jspec.types import PyTree

PLAIN, SD, SD_TREE, NGRAM, EAGLE, OFF = (
    "plain",
    "draft model, chain",
    "draft model, tree",
    "n-gram",
    "EAGLE",
    "Lyanna off",
)
PAPER = (
    ("{merged} over {sd}", 2, "3.0x, 3.3x (LLaMA-2-7B, H800, A800); 2.3x, 2.6x (Vicuna-7B)"),
    ("{merged} over {sd}", 16, "2.6x, 2.2x (LLaMA-2-7B, H800, A800); 1.7x, 1.7x (Vicuna-7B)"),
    ("{merged} over {eagle}", 2, "1.4x (LLaMA-2-7B, H800)"),
    ("{merged} over {eagle}", 16, "1.2x (LLaMA-2-7B, H800)"),
    ("{apart} over {off}", 2, "0.84x (LLaMA-2-7B), 0.79x (Vicuna-7B)"),
    ("{merged} over {off}", 2, "1.23x (LLaMA-2-7B), 1.19x (Vicuna-7B)"),
    ("{fused} over {off}", 2, "not measured: jspec's own"),
    ("{merged} over {equal}", 2, "not measured"),
    ("{fused} over {equal}", 2, "not measured"),
)
"""Ratios of throughput, the batch, and what the paper says of it."""


@dataclass(frozen=True)
class Method:
    """A method of the comparison."""

    drafter: Drafter
    weights: PyTree = None
    warm: bool = False
    """True where the method starts with the state that other prompts left it."""


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    head: options.Head = None,
    eagle: EagleHead = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    batches: Annotated[str, typer.Option(help="batch sizes, comma-separated")] = "1,2,4,8,16",
    nodes: Annotated[
        int, typer.Option(min=1, help="drafted nodes; the paper verifies 12 with the root")
    ] = 11,
    again: Annotated[str, typer.Option(help="nodes of second trees, comma-separated")] = "2,6",
    count: Annotated[int, typer.Option(min=1, help="prompts, a multiple of each batch")] = 16,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines: what is there is not measured again")
    ] = None,
) -> None:
    """Decodes greedily, all methods in turn on each batch of prompts, which mix all classes."""
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    ledger = Ledger(out)
    second = [int(size) for size in again.split(",")]
    ours = trained_heads.trained("lyanna", head, pair.target)
    theirs = trained_heads.trained("eagle", eagle, pair.target)
    built = methods(pair, ours, theirs, nodes, second)
    about: dict[str, Any] = dict(
        bench="lyanna_throughput", **pair.about,
        heads=[trained_heads.digest(held) for _, held in (ours, theirs)],
        nodes=nodes, count=count, prompt_tokens=prompt_tokens, new_tokens=new_tokens,
    )  # fmt: skip
    sizes = [int(size) for size in batches.split(",")]
    if uneven := [size for size in sizes if count % size]:
        raise typer.BadParameter(f"--count {count} is not a multiple of the batch {uneven[0]}")
    headline(
        f"Throughput: {pair.name}, depth {DEPTH}, width {WIDTH}, {nodes + 1} verified tokens, "
        f"{new_tokens} new ones after {prompt_tokens}, {count} prompts"
    )
    trial = Trial(pair, built, count, prompt_tokens, new_tokens)
    rows = {size: trial.measure(ledger, size, repeats, about) for size in sizes}
    found = {size: {name: summary(rows[size], name) for name in built} for size in sizes}
    for size in sizes:
        console.print(table(found[size], size))
        wrong = {row["method"] for row in rows[size] if row["differing"]}
        if wrong:
            console.print(f"other tokens than plain decoding: {', '.join(sorted(wrong))}")
    for more in second:
        console.print(ratios(found, more, nodes))
    console.print(
        "tokens/s: of `decode`, which ends with its slowest row; the paper's are of full batches. "
        "A round is one forward pass of the target."
    )


def merged(nodes: int) -> str:
    """Returns the name of fusion as published: so many nodes on top of the fresh tree's."""
    return f"Lyanna merged +{nodes}"


def fused(nodes: int) -> str:
    return f"Lyanna fused +{nodes}"


def apart(nodes: int) -> str:
    return f"Lyanna apart +{nodes}"


def equal(nodes: int, more: int) -> str:
    """Returns the name of Lyanna without re-sampling, at the total of a fused tree."""
    return f"Lyanna off, {nodes + more} drafted"


def methods(
    pair: Pair, lyanna: Head, eagle: Head, nodes: int, resampled: Sequence[int]
) -> dict[str, Method]:
    """Returns plain decoding, baselines, and Lyanna's re-sampling off, apart, merged, fused."""
    draft = pair.draft
    (module, variables), (other, weights) = lyanna, eagle
    chain = jspec.SpeculativeDecoding(draft.model, DEPTH)
    grown = jspec.DySpec(draft.model, num_speculative_tokens=nodes, max_depth=DEPTH, beam=WIDTH)
    built = {
        PLAIN: Method(jspec.Autoregressive()),
        SD: Method(chain, draft.params),
        # What SGLang makes of a draft model: the tree of EAGLE-2.
        SD_TREE: Method(grown, draft.params),
        NGRAM: Method(jspec.Suffix(nodes), warm=True),
        EAGLE: Method(trained_heads.tree(other, nodes), weights),
        OFF: Method(trained_heads.tree(module, nodes), variables),
    }
    for more in resampled:
        for name, drafter in {
            apart(more): trained_heads.tree(module, nodes, lyanna_resampling.Separate(more)),
            merged(more): trained_heads.tree(module, nodes, lyanna_resampling.Merged(more)),
            fused(more): trained_heads.tree(module, nodes, lyanna_resampling.Fused(more)),
            equal(nodes, more): trained_heads.tree(module, nodes + more),
        }.items():
            built[name] = Method(drafter, variables)
    return built


@dataclass(frozen=True, eq=False)
class Trial:
    """Prompts that all methods decode, at every batch size the same."""

    pair: Pair
    built: dict[str, Method]
    count: int
    prompt_tokens: int
    new_tokens: int

    @cached_property
    def _prompts(self) -> tuple[Prompts, Prompts]:
        """Prompts to measure with, and to warm up with, `count` each; classes in turn."""
        kinds = self.pair.classes
        each = -(-self.count // len(kinds))
        both = self.pair.of_all_classes(2 * each, self.prompt_tokens)
        # Row 2 i + s of class k is prompt i of set s.
        places = np.arange(both.count).reshape(len(kinds), each, 2)
        sets = places.transpose(2, 1, 0).reshape(2, -1)[:, : self.count]
        return both.take(sets[0]), both.take(sets[1])

    @cached_property
    def warm_states(self) -> dict[str, PyTree]:
        """The states, after other prompts, of the methods that start warm."""
        return {
            name: self.decode(name, self._prompts[1], None).drafter_state
            for name, method in self.built.items()
            if method.warm
        }

    def prompts(self, size: int, group: int) -> Prompts:
        """Returns the prompts of a group."""
        return self._prompts[0].take(slice(group * size, (group + 1) * size))

    def decode(self, name: str, prompts: Prompts, drafter_state: PyTree) -> jspec.Result:
        method, target = self.built[name], self.pair.target
        return jspec.decode(
            target.model, target.params, *prompts, drafter=method.drafter,
            drafter_params=method.weights, drafter_state=drafter_state,
            max_new_tokens=self.new_tokens,
        )  # fmt: skip

    def measure(self, ledger: Ledger, size: int, repeats: int, about: dict[str, Any]) -> list[dict]:
        """Returns a row for each method and group of prompts, from the ledger where it has them."""
        found = []
        for group in range(self.count // size):
            here = dict(about, batch=size, group=group, repeats=repeats)
            if not all(ledger.find(**here, method=name) for name in self.built):
                with console.status(f"batch {size}, prompts {group + 1}"):
                    for name, row in self.compare(self.prompts(size, group), repeats).items():
                        ledger.add(**here, method=name, **row)
            found += [ledger.find(**here, method=name)[-1] for name in self.built]
        return found

    def compare(self, prompts: Prompts, repeats: int) -> dict[str, dict[str, Any]]:
        """Returns all methods on the same prompts, in turn."""
        results: dict[str, jspec.Result] = {}

        def run(name: str):
            results[name] = self.decode(name, prompts, self.warm_states.get(name))
            return results[name].tokens

        seconds = paired({name: partial(run, name) for name in self.built}, repeats)
        plain = np.asarray(results[PLAIN].tokens)
        target = self.pair.target
        counts = {
            name: Decoding(
                target.model, target.params, method.drafter, method.weights, self.new_tokens
            ).count(prompts, drafter_state=self.warm_states.get(name))
            for name, method in self.built.items()
        }
        return {
            name: dict(
                seconds=seconds[name].tolist(),
                rounds=np.asarray(result.stats.num_rounds).tolist(),
                emitted=np.asarray(result.lengths).tolist(),
                drafted=np.asarray(result.stats.num_draft_tokens).tolist(),
                whole=counts[name].tokens.tolist(),
                counted=counts[name].rounds.tolist(),
                differing=int((np.asarray(result.tokens) != plain).any(-1).sum()),
            )
            for name, result in results.items()
        }


@dataclass(frozen=True)
class Summary:
    """A method at one batch size."""

    tokens_per_round: float
    milliseconds: float
    """A round, prefill shared out."""
    rate: float
    """Tokens per second of `decode`."""


def summary(rows: Sequence[dict], method: str) -> Summary:
    """Sums up a method over all groups; a group's seconds are the median of its repeats."""
    mine = [row for row in rows if row["method"] == method]
    seconds = np.array([np.median(row["seconds"]) for row in mine])
    rounds = np.array([row["rounds"] for row in mine])
    emitted = sum(sum(row["emitted"]) for row in mine)
    return Summary(
        tokens_per_round=mean_tokens(mine),
        milliseconds=1e3 * float((seconds / rounds.max(1)).mean()),
        rate=emitted / seconds.sum(),
    )


def mean_tokens(rows: Sequence[dict]) -> float:
    """Returns tokens per round, the last ones whole."""
    return sum(sum(row["whole"]) for row in rows) / sum(sum(row["counted"]) for row in rows)


def table(found: dict[str, Summary], size: int) -> Table:
    names = ("tokens per round", "ms per round", "tokens/s", "x plain")
    shown = Table(f"batch {size}", *names, box=box.MARKDOWN)
    plain = found[PLAIN]
    for name, one in found.items():
        shown.add_row(
            name,
            f"{one.tokens_per_round:.2f}",
            f"{one.milliseconds:.2f}",
            f"{one.rate:.0f}",
            f"{one.rate / plain.rate:.2f}",
        )
    return shown


def ratios(found: dict[int, dict[str, Summary]], more: int, nodes: int) -> Table:
    """Returns ratios of throughput alongside the paper's."""
    names = dict(
        merged=merged(more),
        fused=fused(more),
        apart=apart(more),
        off=OFF,
        equal=equal(nodes, more),
        sd=SD_TREE,
        eagle=EAGLE,
    )
    shown = Table("throughput", "batch", "here", "paper", box=box.MARKDOWN)
    for what, size, paper in PAPER:
        if size in found:
            one, other = (part.format(**names) for part in what.split(" over "))
            ratio = found[size][one].rate / found[size][other].rate
            shown.add_row(f"{one} over {other}", str(size), f"{ratio:.2f}x", paper)
    return shown


if __name__ == "__main__":
    command(main)
