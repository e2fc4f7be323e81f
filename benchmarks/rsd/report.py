"""Tables 1 and 2 and figures 4 and 5 of RSD (Jeon et al. 2024), and which of its orderings hold.

python -m benchmarks.rsd.report rsd.jsonl --out rsd
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import command, console
from benchmarks.rsd import figures
from benchmarks.rsd.results import Measured, Results, read
from benchmarks.rsd.settings import EXPERIMENTS, METHODS

SIZES = {1: "draft length", 2: "budget"}


@dataclass(frozen=True)
class Claim:
    """An order that a paper claims, or that jspec's tree is held to."""

    first: str
    second: str
    metrics: tuple[str, ...]
    sizes: tuple[int, ...] | None = None
    """The draft lengths or budgets that it is claimed for; None: all."""

    def told(self, metric: str) -> str:
        where = "" if self.sizes is None else f" at {', '.join(map(str, self.sizes))}"
        return f"{METHODS[self.first].title} over {METHODS[self.second].title}, {metric}{where}"


_BOTH, _ALL = ("Eff.", "MBSU"), ("Eff.", "MBSU", "TR")
CLAIMS = {
    1: (  # "tree-based methods always outperform SD in terms of block efficiency and MBSU"
        Claim("spectr", "speculative_decoding", _BOTH),
        Claim("rsd_c", "speculative_decoding", _BOTH),
        # "RSD-S strictly outperforms both SD and SpecTr for all performance metrics"
        Claim("rsd_s", "speculative_decoding", _ALL),
        Claim("rsd_s", "spectr", _ALL),
    ),
    2: (  # "RSD-S achieves higher block efficiency and MBSU than SD and SpecTr in most cases"
        Claim("rsd_s", "speculative_decoding", _BOTH),
        Claim("rsd_s", "spectr", _BOTH),
        # "SD beats RSD-C in the relatively low budget regime", with two of the pairs, as block
        # efficiencies are meant there
        Claim("speculative_decoding", "rsd_c", ("Eff.",), (6, 10)),
        # "In terms of token rate, RSD-S strictly outperforms our baselines"
        Claim("rsd_s", "speculative_decoding", ("TR",)),
        Claim("rsd_s", "spectr", ("TR",)),
    ),
}
"""What the paper claims of each experiment (sections 5.1 and 5.2)."""
OURS = (
    Claim("coupled_tree", "rsd_s", _BOTH),
    Claim("coupled_tree", "dyspec", _BOTH),
    Claim("rsd_s", "rsd_c", _BOTH),
    Claim("rsd_s", "dyspec", _BOTH),
)
"""Orders that the paper does not speak of."""


def main(
    files: Annotated[
        list[Path], typer.Argument(help="files that benchmarks.rsd wrote", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="folder for tables and figures")],
) -> None:
    """Writes PAIR.md and PAIR_1.png, PAIR_2.png for each pair in the files."""
    out.mkdir(parents=True, exist_ok=True)
    for pair, by_sampling in read(files).items():
        parts = [f"# RSD's experiments, {pair}", _LEGEND]
        words = ["## Which orderings hold", _NOISE]
        for number in EXPERIMENTS:
            if not all(results.groups(number) for results in by_sampling.values()):
                continue
            figures.draw(number, by_sampling, out / f"{_file(pair)}_{number}.png")
            for results in by_sampling.values():
                parts += [f"## Experiment {number}: {results.title}", table(number, results)]
                words += [f"### Experiment {number}: {results.title}", orderings(number, results)]
        text = "\n\n".join(parts + words) + "\n"
        (out / f"{_file(pair)}.md").write_text(text, encoding="utf-8")
        console.print("\n\n".join(words), markup=False)
        console.print(f"tables in {out / f'{_file(pair)}.md'}, figures beside them", soft_wrap=True)


_LEGEND = (
    "Eff.: tokens per target call, the last one whole, mean ± standard deviation over seeds. MBSU: "
    "Eff. / (L r + 1), L draft forward passes a round (of DySpec and CoupledTree the most that a "
    "round may take), r the draft's share of the target's parameters; plain decoding (AR) drafts "
    "nothing, L = 0. TR: token rate over AR's, batch 1; AR's own in tokens per second. Acc.: score "
    "of the texts by their references, alike in all rows if every method draws from the target's "
    "distribution. Chain: Eff. of speculative decoding with a chain of at least as many verified "
    "tokens (in brackets; of the longest measured where none is). The best of a group is bold."
)
_NOISE = (
    "Differences between each method's best trees in a metric, ± standard error over prompts and "
    "seeds, of token rates over repeats. An order holds if the difference is above two of them, "
    "does not hold if it is below minus two, and is within the noise between."
)


def table(number: int, results: Results) -> str:
    """The layout of the paper's tables 1 and 2, relative to plain decoding."""
    head = (SIZES[number], "Dec.", "Spec.", "tokens", "Eff.", "MBSU", "TR", "Acc.", "Chain")
    plain = results.plain
    rates = [tree.plain_rate for tree in results.measured.values() if tree.plain_rate is not None]
    own = f"1.00 ({sum(rates) / len(rates):.0f}/s)" if rates else "-"
    score = "-" if plain is None else _score(plain)
    lines = [("0", "AR", "-", "0", "1.000", "1.000", own, score, "")]
    for size, group in results.groups(number).items():
        trees = results.trees(group)
        most = max(tree.efficiency for tree in trees)
        fastest = max(tree.mbsu for tree in trees)
        for tree in trees:
            chain = results.chain(tree.nodes)
            lines.append(
                (
                    str(size),
                    METHODS[tree.method].title,
                    tree.spec,
                    str(tree.nodes),
                    _bold(f"{tree.efficiency:.3f}", tree.efficiency == most)
                    + ("" if math.isnan(tree.spread) else f" ± {tree.spread:.3f}"),
                    _bold(f"{tree.mbsu:.3f}", tree.mbsu == fastest),
                    "-" if tree.rates is None else f"{tree.rate:.2f}",
                    _score(tree),
                    f"{chain.efficiency:.3f} ({chain.spec})",
                )
            )
    return _markdown(head, lines)


def orderings(number: int, results: Results) -> str:
    """Each order that the paper claims, at each size, and others and equal chains beside."""
    lines: list[tuple[str, ...]] = []
    counts: dict[str, dict[str, int]] = {}

    def duel(size: int, told: str, one: Measured, other: Measured, metric: str) -> None:
        lead, error = one.lead(other, metric)
        outcome = verdict(lead, error)
        both = (f"{tree.metric(metric):.3f} ({tree.spec})" for tree in (one, other))
        lines.append((str(size), told, *both, f"{lead:+.3f} ± {error:.3f}", outcome))
        counts.setdefault(told, {}).setdefault(outcome, 0)
        counts[told][outcome] += 1

    for size, group in results.groups(number).items():
        for claim in (*CLAIMS[number], *OURS):
            if not group.keys() >= {claim.first, claim.second}:
                continue
            for metric in claim.metrics:
                if metric in results.metrics and (claim.sizes is None or size in claim.sizes):
                    best = results.best(group, metric)
                    duel(size, claim.told(metric), best[claim.first], best[claim.second], metric)
        if number == 1:
            # Trees have to earn their place: a chain of as many tokens costs the target the same.
            for method, tree in results.best(group).items():
                if method not in ("speculative_decoding", "dyspec"):
                    told = f"{METHODS[method].title} over an equal chain, Eff."
                    duel(size, told, tree, results.chain(tree.nodes), "Eff.")
    words = [f"- {claim}: {_counted(found)}." for claim, found in counts.items()]
    head = (SIZES[number], "claim", "first", "second", "difference", "")
    return "\n".join(words) + "\n\n" + _markdown(head, lines)


def verdict(lead: float, error: float) -> str:
    if abs(lead) <= 2 * error:
        return "within noise"
    return "holds" if lead > 0 else "does not hold"


def _counted(found: Mapping[str, int]) -> str:
    total = sum(found.values())
    return ", ".join(f"{outcome} at {count} of {total}" for outcome, count in found.items())


def _file(pair: str) -> str:
    return pair.replace(", ", "_")


def _score(tree: Measured) -> str:
    return "-" if math.isnan(tree.score) else f"{tree.score:.3f}"


def _bold(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text


def _markdown(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    rows = [head, ("---",) * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    command(main)
