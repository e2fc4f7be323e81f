"""Tables 1 and 2 and figures 4 and 5 of RSD (Jeon et al. 2024), and which of its orderings hold.

python -m benchmarks.rsd.report rsd.jsonl --out rsd
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import console
from benchmarks.rsd import figures
from benchmarks.rsd.results import Measured, Results, read
from benchmarks.rsd.settings import EXPERIMENTS, METHODS

SIZES = {1: "draft length", 2: "budget"}
CLAIMS = (("rsd_s", "rsd_c"), ("rsd_c", "spectr"), ("spectr", "speculative_decoding"))
"""The paper's order of block efficiency: each is at least the other."""
OURS = (("coupled_tree", "rsd_s"), ("coupled_tree", "dyspec"), ("rsd_s", "dyspec"))


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
            figures.draw(number, by_sampling, out / f"{pair}_{number}.png")
            for results in by_sampling.values():
                parts += [f"## Experiment {number}: {results.title}", table(number, results)]
                parts += ["Block efficiency of each method's best tree, by class:"]
                parts += [by_class(number, results)]
                words += [f"### Experiment {number}: {results.title}", orderings(number, results)]
        text = "\n\n".join(parts + words) + "\n"
        (out / f"{pair}.md").write_text(text, encoding="utf-8")
        console.print("\n\n".join(words), markup=False)
        console.print(f"tables in {out / f'{pair}.md'}, figures beside them", soft_wrap=True)


_LEGEND = (
    "Eff.: tokens per target call, mean ± standard deviation over seeds. MBSU: Eff. / (L r + 1), "
    "L draft forwards a round (of DySpec and CoupledTree the most that a round may take), r the "
    "draft's share of the target's parameters; plain decoding (AR) drafts nothing, L = 0. TR: "
    "token rate over AR's, batch 1. Chain: Eff. of speculative decoding with a chain of at least "
    "as many verified tokens (in brackets; of the longest measured where none is). The best of a "
    "group is bold."
)
_NOISE = (
    "Differences of block efficiency between each method's best trees, ± standard error over "
    "prompts and seeds. An order holds if the difference is above two of them, does not hold if it "
    "is below minus two, and is within the noise between."
)


def table(number: int, results: Results) -> str:
    """The layout of the paper's tables 1 and 2, relative to plain decoding."""
    head = (SIZES[number], "Dec.", "Spec.", "tokens", "Eff.", "MBSU", "TR", "Chain")
    lines = [("0", "AR", "-", "0", "1.000", "1.000", "1.000", "")]
    for size, group in results.groups(number).items():
        trees = results.trees(group)
        most = max(tree.efficiency for tree in trees)
        fastest = max(tree.mbsu for tree in trees)
        for tree in trees:
            rate = results.rates.get((tree.method, tree.shape))
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
                    "-" if rate is None else f"{rate:.2f}",
                    f"{chain.efficiency:.3f} ({chain.spec})",
                )
            )
    return _markdown(head, lines)


def by_class(number: int, results: Results) -> str:
    kinds = sorted({kind for tree in results.measured.values() for kind in tree.classes})
    return _markdown(
        (SIZES[number], "Dec.", "Spec.", *kinds),
        [
            (
                str(size),
                METHODS[method].title,
                tree.spec,
                *(f"{tree.of_class(kind):.2f}" for kind in kinds),
            )
            for size, group in results.groups(number).items()
            for method, tree in results.best(group).items()
        ],
    )


def orderings(number: int, results: Results) -> str:
    """Each order that the paper claims, at each size, and jspec's tree and equal chains beside."""
    lines: list[tuple[str, ...]] = []
    counts: dict[str, dict[str, int]] = {}
    for size, group in results.groups(number).items():
        best = results.best(group)
        duels = {
            f"{METHODS[a].title} >= {METHODS[b].title}": (best[a], best[b])
            for a, b in CLAIMS + OURS
        }
        if number == 1:
            # Trees have to earn their place: a chain of as many tokens costs the target the same.
            for method in ("spectr", "rsd_c", "rsd_s", "coupled_tree"):
                chain = results.chain(best[method].nodes)
                duels[f"{METHODS[method].title} >= equal chain"] = best[method], chain
        for claim, (one, other) in duels.items():
            lead, error = one.lead(other)
            outcome = verdict(lead, error)
            lines.append(
                (
                    str(size),
                    claim,
                    _shown(one),
                    _shown(other),
                    f"{lead:+.3f} ± {error:.3f}",
                    outcome,
                )
            )
            counts.setdefault(claim, {}).setdefault(outcome, 0)
            counts[claim][outcome] += 1
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


def _shown(tree: Measured) -> str:
    return f"{tree.efficiency:.3f} ({tree.spec})"


def _bold(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text


def _markdown(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    rows = [head, ("---",) * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    typer.run(main)
