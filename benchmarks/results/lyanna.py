"""The tables, verdicts and pictures of lyanna.md."""

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.lyanna.acceptance import PAPER as TABLE_1
from benchmarks.lyanna.training import EPOCHS
from benchmarks.lyanna.training import PAPER as TABLE_2
from benchmarks.results import svg
from benchmarks.results.rendering import rows
from benchmarks.results.statistics import Estimate, mean, ratio
from benchmarks.results.tables import Verdict, holds, measured, table, verdicts

SHORT, LONG = 96, 288
"""Updates of the runs of all variants, and of those that are asked why."""
WHOLE, NO_INFO, NO_FIRST, SPARSE = "Lyanna", "w/o token info", "w/o first token", "sparse"
NAMES = {
    WHOLE: "Lyanna",
    NO_INFO: "without token info",
    NO_FIRST: "without the first token",
    SPARSE: "token info of 1,024 hot tokens",
}
PAPERS = {
    WHOLE: TABLE_1["Lyanna"],
    NO_INFO: TABLE_1["Lyanna w/o token info"],
    NO_FIRST: TABLE_1["Lyanna w/o first token"],
}
WAYS = {
    "off": "no re-sampling",
    **{
        f"{way} +{more}": f"{name}, {more} nodes more"
        for more in (2, 6)
        for way, name in (
            ("apart", "apart"),
            ("merged", "merged: the paper's fusion"),
            ("fused", "fused: jspec's, the best of both trees"),
        )
    },
    "off, 13 nodes": "no re-sampling, 2 nodes more",
    "off, 17 nodes": "no re-sampling, 6 nodes more",
}
FUSION = {2: "off, 13 nodes", 6: "off, 17 nodes"}
"""Nodes of the second tree that Fig. 12's claims are judged by, and the fresh tree of as many."""
NONE = "No rows yet."


def runs(steps: int) -> list[dict]:
    """The rows of the variants that were trained for so many steps."""
    return rows("lyanna", bench="lyanna.variants", steps=steps)


def over_seeds(
    found: Sequence[dict], variant: str, value: Callable[[dict], float]
) -> Estimate | None:
    """The mean over seeds of what one row of each has; None if there is none."""
    mine = {row["seed"]: value(row) for row in found if row["variant"] == variant}
    return mean([mine[seed] for seed in sorted(mine)]) if mine else None


def in_trees(steps: int, variant: str, nodes: int, draft_step: int) -> Estimate | None:
    """Percent accepted in trees at a draft step, given that all before were; step 0: tokens per
    round. Errors are over prompts, whose seeds are summed.
    """
    found = seeds(steps, variant, nodes)
    if not found:
        return None
    histograms = np.sum([row["histograms"] for row in found], axis=0)
    if not draft_step:
        width = np.arange(1, histograms.shape[1] + 1)
        return ratio(list((histograms * width).sum(1)), list(histograms.sum(1)))
    accepted, asked = (histograms[:, step:].sum(1) for step in (draft_step, draft_step - 1))
    return ratio(list(accepted), list(asked)) / 0.01


def seeds(steps: int, variant: str, nodes: int) -> list[dict]:
    """The rows of trees of a variant, one a seed."""
    found = [row for row in runs(steps) if row.get("nodes") == nodes]
    mine = {row["seed"]: row for row in found if row["variant"] == variant}
    return [mine[seed] for seed in sorted(mine)]


def heldout(steps: int, variant: str, step: int) -> Estimate | None:
    """Percent of likeliest tokens accepted on held-out text after so many updates, the mean of
    three draft steps.
    """
    found = [row for row in runs(steps) if row.get("step") == step]
    return over_seeds(
        found, variant, lambda row: 100 * float(np.mean(row["heldout"]["acceptance"]))
    )


def heldout_at(steps: int, variant: str, draft_step: int) -> Estimate | None:
    """The same at the end of the run and at one draft step alone."""
    found = [row for row in runs(steps) if row.get("step") == steps]
    return over_seeds(
        found, variant, lambda row: 100 * row["heldout"]["acceptance"][draft_step - 1]
    )


def gap(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """The difference of two means over seeds, of the first seeds that both have."""
    if one is None or other is None:
        return None
    count = min(one.texts, other.texts)
    first, second = (mean((each.value + each.influence)[:count]) for each in (one, other))
    return first - second


def marks(steps: int) -> list[int]:
    """The updates after which held-out text was scored."""
    return sorted({row["step"] for row in runs(steps) if "step" in row})


def table_1(nodes: int) -> str:
    """Acceptance by draft step in trees, the paper's beside."""
    if not any(row.get("nodes") == nodes for row in runs(SHORT)):
        return NONE
    header = ["head", "seeds", "draft step 1", "2", "3", "tokens per round", "the paper, 7B"]
    lines = []
    for variant, name in NAMES.items():
        cells = [in_trees(SHORT, variant, nodes, step) for step in (1, 2, 3, 0)]
        if cells[0] is not None:
            paper = PAPERS.get(variant)
            said = None if paper is None else " ".join(f"{share:.0%}" for share in paper)
            lines.append([name, len(seeds(SHORT, variant, nodes)), *cells, said])
    found = [row for row in runs(SHORT) if row.get("nodes") == nodes]
    prompts = len(found[0]["histograms"])
    told = f"{prompts} prompts, greedy, {found[0]['new_tokens']} new tokens, jspec-7m"
    return f"{table(header, lines)}\n\n{measured(found, told)}"


def table_2() -> str:
    """Held-out acceptance on the way, at the paper's eighths of the run, and Fig. 5's variants."""
    if not (found := marks(SHORT)):
        return NONE
    at = [found[epoch - 1] for epoch in EPOCHS]
    header = ["mean of 3 draft steps, %", *(f"after {step}" for step in at)]
    lines = []
    for variant, name in NAMES.items():
        paper = TABLE_2.get({WHOLE: "Lyanna", SPARSE: "Lyanna, sparse"}.get(variant, ""))
        cells = []
        for place, step in enumerate(at):
            value = heldout(SHORT, variant, step)
            beside = f" ({paper[place]:.2f})" if paper else ""
            cells.append(None if value is None else f"{value}{beside}")
        if cells[-1] is not None:
            lines.append([name, *cells])
    return f"{table(header, lines)}\n\n{_trained(SHORT)}"


def _trained(*steps: int) -> str:
    """The seeds of held-out text by head, and where and when they were trained."""
    found = [row for each in steps for row in runs(each) if "heldout" in row]
    by = [{r["seed"] for r in found if r["variant"] == variant} for variant in NAMES]
    many = " or ".join(map(str, sorted({len(seeds) for seeds in by if seeds})))
    return measured(found, f"{many} seeds of each head, jspec-7m")


def why() -> str:
    """What token info adds on held-out text, by draft step, after more and more training."""
    lines = []
    for steps in (SHORT, LONG):
        gaps = [
            gap(heldout_at(steps, WHOLE, step), heldout_at(steps, NO_INFO, step))
            for step in (1, 2, 3)
        ]
        whole = [heldout_at(steps, WHOLE, step) for step in (1, 2, 3)]
        if all(gaps):
            lines.append([steps, gaps[0].texts, *whole, *gaps])
    header = ["updates", "seeds", "Lyanna: step 1", "2", "3", "token info adds: step 1", "2", "3"]
    return f"{table(header, lines)}\n\n{_trained(SHORT, LONG)}" if lines else NONE


def resampled(depth: int, way: str) -> Estimate | None:
    """Tokens per round. Errors are over prompts, whose heads are summed."""
    found = tried(depth).get(way)
    if not found:
        return None
    histograms = np.sum([row["histograms"] for row in found], axis=0)
    width = np.arange(1, histograms.shape[1] + 1)
    return ratio(list((histograms * width).sum(1)), list(histograms.sum(1)))


def tried(depth: int) -> dict[str, list[dict]]:
    """The rows of each way, of the heads with which all ways were tried."""
    by: dict[str, dict[str, dict]] = {}
    for row in rows("lyanna", bench="lyanna.resampling", depth=depth):
        by.setdefault(row["way"], {})[row["head"]] = row
    heads = set.intersection(*(set(found) for found in by.values())) if by else set()
    return {way: [found[head] for head in sorted(heads)] for way, found in by.items()}


def left(depth: int) -> float:
    """Percent of rounds after which levels of the chain are left."""
    total = np.concatenate([row["histograms"] for row in tried(depth)["off"]]).sum(0)
    return 100 * float(total[:-2].sum() / total.sum())


def depths() -> list[int]:
    found = {row["depth"] for row in rows("lyanna", bench="lyanna.resampling")}
    return sorted(depth for depth in found if tried(depth).get("off"))


def resampling() -> str:
    """Tokens per round of each way, and over none."""
    if not depths():
        return NONE
    header = ["way"]
    for depth in depths():
        heads = len(tried(depth)["off"])
        told = f"depth {depth}, {heads} heads ({left(depth):.0f}% of rounds leave levels)"
        header += [told, "over none"]
    lines = []
    there = {row["way"] for row in rows("lyanna", bench="lyanna.resampling")}
    for way, name in ((way, name) for way, name in WAYS.items() if way in there):
        cells: list[str | Estimate | None] = [name]
        for depth in depths():
            one, none = resampled(depth, way), resampled(depth, "off")
            over = None if one is None or none is None or way == "off" else _percent(one / none)
            cells += [one, over]
        lines.append(cells)
    used = [row for depth in depths() for mine in tried(depth).values() for row in mine]
    prompts = len(used[0]["histograms"])
    told = f"{prompts} prompts, greedy, {used[0]['new_tokens']} new tokens, {used[0]['pair']}"
    return f"{table(header, lines)}\n\n{measured(used, told)}"


def forms() -> str:
    """The forms of token info, timed."""
    found = rows("lyanna", bench="lyanna.tables")
    if not found:
        return NONE
    factors = {row["hot_tokens"]: np.array(row["ms"]) for row in found if row["form"] == "factors"}
    lines = [
        [
            f"{row['hot_tokens']:,}",
            "two factors" if row["form"] == "factors" else f"table, {row['form']}",
            f"{row['bytes'] / 2**20:,.1f}",
            f"{np.median(row['ms']):.3f}",
            f"{np.median(np.array(row['ms']) / factors[row['hot_tokens']]):.2f}",
        ]
        for row in found
    ]
    told = table(("hot tokens", "form", "MiB", "ms a round", "over the factors"), lines)
    times = f"{len(found[0]['ms'])} timings of each"
    return f"{told}\n\n{measured(found, times)}"


def claims() -> str:
    """The verdicts."""
    found = []
    for claim, paper, other in (
        (
            "token info raises acceptance at every draft step (Table 1)",
            "+1, +7, +6 points",
            NO_INFO,
        ),
        ("so does the first token", "+7, +9, +7 points", NO_FIRST),
    ):
        gaps = [
            (in_trees(SHORT, WHOLE, 36, step), in_trees(SHORT, other, 36, step))
            for step in (1, 2, 3)
        ]
        there = [one - two for one, two in gaps if one is not None and two is not None]
        if len(there) == 3:
            least = min(there, key=lambda one: one.value / one.error)
            said = holds(least.ahead, least.behind) + _worst(there)
            found.append(Verdict(claim, paper, _points(there), said))
    if marks(SHORT):
        whole, sparse = (heldout(SHORT, name, SHORT) for name in (WHOLE, SPARSE))
        if (more := gap(sparse, whole)) is not None:
            found.append(
                Verdict(
                    "token info of hot tokens alone is ahead of all (Table 2)",
                    "+0.9 to +1.6 points",
                    f"{_points([more])} after {SHORT} updates",
                    judged(more),
                )
            )
    for depth in depths():
        found += fusion(depth)
    found += FIXED
    return verdicts(found)


def fusion(depth: int) -> list[Verdict]:
    """Fig. 12's claims of trees of a depth, with second trees of 2 and of 6 nodes."""
    found, costs = [], []
    none = resampled(depth, "off")
    for more, fresh in FUSION.items():
        ways = (resampled(depth, way) for way in (f"merged +{more}", fresh, f"apart +{more}"))
        merged, larger, apart = ways
        if none is None or merged is None or larger is None or apart is None:
            continue
        gain, even = merged - none, merged - larger
        costs.append((more, none - apart, apart / none))
        found.append(
            Verdict(
                f"re-sampling with fused verification gains (Fig. 12), trees of {depth} levels, "
                f"{more} nodes more",
                "+23%, +19% tokens/s",
                f"{_percent(merged / none)} tokens per round; over a fresh tree of as many "
                f"nodes {_percent(merged / larger)}",
                f"{holds(gain.ahead, gain.behind)}; over as many fresh nodes "
                f"{holds(even.ahead, even.behind)}",
            )
        )
    if costs:
        least = min((less for _, less, _ in costs), key=lambda one: one.value / one.error)
        found.append(
            Verdict(
                f"re-sampling alone costs, trees of {depth} levels",
                "-16%, -21% tokens/s",
                ", ".join(f"{_percent(share)} (+{more})" for more, _, share in costs)
                + " tokens per round",
                holds(least.ahead, least.behind),
            )
        )
    return found


FIXED = [
    Verdict(
        "a quarter of the vocabulary is 94% of the text (Fig. 7)",
        "94.34% of 32,000 tokens",
        "83.6% of 4,096, 98.3% of 49,152",
        "*holds* for a vocabulary of that size or more",
    ),
    Verdict(
        "3.3 times the throughput of a draft model's trees, 1.4 times EAGLE's (Figs. 8 to 11)",
        "3.0x, 3.3x; 1.4x",
        "1.04x; 1.02x (batch 2, two cores)",
        "*not shown*: a round of 12 tokens costs 3.4 plain ones there",
    ),
    Verdict(
        "the draft's layer and head take 61% less than EAGLE's (Fig. 13)",
        "0.39",
        "0.76 to 0.89",
        "*does not hold* with 4,096 tokens of width 256: EAGLE repeats products with a small head",
    ),
]


FEWEST = 3
"""Seeds that a verdict needs."""


def judged(found: Estimate) -> str:
    """The verdict of a difference over seeds that should be above 0; of few seeds none."""
    if found.texts < FEWEST:
        return f"*open*: {found.texts} of {FEWEST} seeds so far"
    return holds(found.ahead, found.behind)


def _points(gaps: Sequence[Estimate]) -> str:
    return ", ".join(f"{one.value:+.1f}{_error(one.error)}" for one in gaps) + " points"


def _error(error: float) -> str:
    return f" ± {error:.1f}" if np.isfinite(error) else ""


def _percent(found: Estimate) -> str:
    """A ratio less 1 in percent, to a hundredth: re-sampling moves little."""
    error = f" ± {100 * found.error:.2f}" if np.isfinite(found.error) else ""
    return f"{100 * (found.value - 1):+.2f}{error}%"


def _worst(gaps: Sequence[Estimate]) -> str:
    """Which draft steps are ahead, where not all are alike."""
    ahead = [str(step) for step, one in enumerate(gaps, 1) if one.ahead]
    return "" if len(ahead) in (0, len(gaps)) else f"; ahead at draft step {' and '.join(ahead)}"


def tables() -> dict[str, str]:
    """The marked regions of the page: the picture, where there is one, and the table."""
    return {
        "claims": claims(),
        "table_1": table_1(15),
        "table_1_whole": table_1(36),
        "table_2": _pictured(table_2()),
        "why": why(),
        "resampling": resampling(),
        "forms": forms(),
    }


def _pictured(said: str) -> str:
    alt = "Held-out acceptance in training, by variant"
    return f"![{alt}](pictures/lyanna_fig_5.svg)\n\n{said}" if marks(SHORT) else said


def pictures() -> dict[str, str]:
    """The pictures beside the page."""
    found = {}
    if steps := marks(SHORT):
        series = {
            name: [
                (float(step), value)
                for step in steps
                if (value := heldout(SHORT, variant, step)) is not None
            ]
            for variant, name in NAMES.items()
        }
        found["fig_5"] = svg.lines(
            "Fig. 5: acceptance on held-out text in training",
            {name: points for name, points in series.items() if points},
            "updates", "mean of 3 draft steps, %",
            subtitle="jspec-7m; band: one standard error over seeds",
        )  # fmt: skip
    if any(row.get("nodes") == 36 for row in runs(SHORT)):
        there = {v: name for v, name in NAMES.items() if in_trees(SHORT, v, 36, 1) is not None}
        found["table_1"] = svg.bars(
            "Table 1: accepted, given that the draft steps before were",
            [f"draft step {step}" for step in (1, 2, 3)],
            {name: [in_trees(SHORT, v, 36, s) for s in (1, 2, 3)] for v, name in there.items()},
            "percent",
            {there[v]: [100 * share for share in PAPERS[v]] for v in there if v in PAPERS},
            subtitle="jspec-7m, whole trees of 36 nodes; bars: one standard error over prompts",
        )  # fmt: skip
    return found
