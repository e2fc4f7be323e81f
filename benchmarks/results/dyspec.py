"""The page of DySpec (Xiong et al. 2024): its tables, claims and pictures from its rows."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from benchmarks.dyspec.blocks import BLOCK, ORDERS, PAPER, mask
from benchmarks.results import svg
from benchmarks.results.rendering import rows
from benchmarks.results.statistics import Estimate, mean, ratio
from benchmarks.results.tables import Verdict, holds, measured, table, verdicts

NAMES = {
    "dyspec": "DySpec",
    "sequoia": "Sequoia",
    "specinfer": "SpecInfer",
    "speculative_decoding": "chain of 24",
}
CHANGED = {
    "dyspec at the target's": "DySpec, draft at the target's temperature",
    "sequoia at the target's": "Sequoia, draft at the target's temperature",
    "dyspec deep": "DySpec, up to 30 levels in place of 16",
    "sequoia deep": "Sequoia, up to 24 levels in place of 12",
    "calibrated_dyspec whole": "DySpec, acceptance learnt (`CalibratedDySpec`)",
}
PUBLISHED = {
    (64, 0.0): {
        "dyspec": "5.25, 3.79, 3.97", "sequoia": "4.99, 3.81, 4.04",
        "specinfer": "3.32, 2.54, 2.58",
    },
    (64, 0.6): {
        "dyspec": "3.71, 3.07, 3.18", "sequoia": "3.45, 3.04, 3.22",
        "specinfer": "3.44, 2.97, 3.06",
    },
    (768, 0.0): {
        "dyspec": "16.04, 11.79, 11.46", "sequoia": "9.40, 9.81, 9.54",
        "specinfer": "8.66, 7.36, 7.87",
    },
    (768, 0.6): {
        "dyspec": "7.14, 7.66, 7.02", "sequoia": "8.96, 9.12, 8.80",
        "specinfer": "6.93, 6.18, 6.24",
    },
}  # fmt: skip
"""Tokens a step of Tables 1 and 4: C4, OpenWebText, CNN DailyMail."""
LEVELS = 30
"""The bound on levels of trees of 768 nodes, see `jspec.DySpec.published`."""
HOST = 2000
"""T_t / T_d with the target's weights in host memory (section 5.3)."""
REAL = {768: (366.12, 218.31)}
"""Blocks of drafted trees without and with reordering in the paper (C.1, Fig. 9)."""


def pairs(budget: int = 64) -> list[str]:
    return list(dict.fromkeys(row["pair"] for row in rows("dyspec", budget=budget)))


def short(pair: str) -> str:
    return pair.split(", ")[0].removesuffix("-target")


def found(pair: str, budget: int, temperature: float) -> dict[str, list[dict]]:
    """The rows of each method, of the seeds that all of the paper's have."""
    by: dict[str, dict[int, dict]] = {}
    for row in rows("dyspec", pair=pair, budget=budget, temperature=temperature):
        by.setdefault(row["method"], {})[row["seed"]] = row
    known = [set(by[name]) for name in ("dyspec", "sequoia", "specinfer") if name in by]
    if len(known) < 3:
        return {}
    seeds = set.intersection(*known)
    return {
        name: [of[seed] for seed in sorted(seeds)] for name, of in by.items() if seeds <= set(of)
    } if seeds else {}  # fmt: skip


def pooled(found: Sequence[dict], above: str = "tokens", below: str = "calls") -> Estimate:
    """One count over another, over all texts of some rows."""
    return ratio(*([one for row in found for one in row[what]] for what in (above, below)))


def by_kind(found: Sequence[dict]) -> dict[str, Estimate]:
    """Tokens a round by class of text, as a row has them one after the other."""
    kinds = found[0]["kinds"].split(",")
    each = len(found[0]["tokens"]) // len(kinds)
    return {
        kind: ratio(
            *(
                [one for row in found for one in row[what][at * each : (at + 1) * each]]
                for what in ("tokens", "calls")
            )
        )
        for at, kind in enumerate(kinds)
    }


def tables() -> dict[str, str]:
    return {
        "claims": verdicts(_claims()),
        "texts": _texts(),
        "tables_1_to_3": _budget(64),
        "table_4": _budget(768),
        "changed": _changed(),
        "fig2": _fig2(),
        "fig5": _fig5(),
        "table_5": _table_5(),
        "fig9": _fig9(),
    }


# ---- claims --------------------------------------------------------------------------------------

_LEADS = (
    (64, 0.0, "sequoia", "-2% to +50%"),
    (64, 0.6, "sequoia", "-1% to +15%"),
    (64, 0.0, "specinfer", "+43% to +95%"),
    (64, 0.6, "specinfer", "+3% to +24%"),
    (768, 0.0, "sequoia", "+20% to +71%"),
    (768, 0.6, "sequoia", "-16% to -20%"),
    (768, 0.0, "specinfer", "+46% to +85%"),
    (768, 0.6, "specinfer", "+3% to +24%"),
)
"""(nodes, temperature, the other, DySpec over it in the paper's Tables 1 to 4)."""


def _claims() -> list[Verdict]:
    claims = []
    for budget, temperature, other, paper in _LEADS:
        leads = {}
        for pair in pairs(budget):
            of = found(pair, budget, temperature)
            if of:
                leads[pair] = pooled(of["dyspec"]) / pooled(of[other])
        here = "; ".join(f"{short(pair)} {lead.percent()}" for pair, lead in leads.items())
        behind = paper.endswith("-20%")
        gaps = [(lead - 1) / (-1.0 if behind else 1.0) for lead in leads.values()]
        told = f"{budget} nodes, T {temperature:g}: {'behind' if behind else 'ahead of'}"
        claims.append(Verdict(f"{told} {NAMES[other]}", paper, here, _over_pairs(gaps)))
    return [*claims, *_correlations(), *_sizes(), *_blocks(), *_OTHERS]


def _over_pairs(gaps: Sequence[Estimate]) -> str:
    if not gaps:
        return "*open*: not counted yet"
    told = list(dict.fromkeys(holds(gap.ahead, gap.behind) for gap in gaps))
    if len(told) == 1:
        return told[0]
    return "by the pair: " + ", ".join(holds(gap.ahead, gap.behind).split(":")[0] for gap in gaps)


def _correlations() -> list[Verdict]:
    acceptance, target = _correlation("acceptance"), _correlation("target")
    return [
        Verdict(
            "Fig. 2, right: the target's probability follows the draft's", "strongly",
            _by_temperature(target), _strong(target),
        ),
        Verdict(
            "Fig. 2, left: so does acceptance (Hypothesis 1)", "the same",
            _by_temperature(acceptance),
            _strong(acceptance) + ": a child is accepted with min(1, p / q), so that an unlikely "
            "draft is often taken too",
        ),
    ]  # fmt: skip


STRONG = 0.7
"""A correlation from which on one follows the other strongly: our bound, the paper has none."""


def _correlation(what: str) -> dict[str, dict[float, float]]:
    """By pair and temperature, with the draft's probability."""
    found: dict[str, dict[float, float]] = {}
    for row in rows("dyspec_fig2"):
        found.setdefault(short(row["pair"]), {})[row["temperature"]] = row["correlation"][what]
    return found


def _by_temperature(found: dict[str, dict[float, float]]) -> str:
    temperatures = dict.fromkeys(t for of in found.values() for t in of)
    told = (f"{pair} {', '.join(f'{r:.2f}' for r in of.values())}" for pair, of in found.items())
    return f"correlation at T {', '.join(f'{t:g}' for t in temperatures)}: {'; '.join(told)}"


def _strong(found: dict[str, dict[float, float]]) -> str:
    """Whether a correlation is strong with every pair at every temperature."""
    weak = dict.fromkeys(f"{t:g}" for of in found.values() for t, r in of.items() if r < STRONG)
    if not weak:
        return f"*holds*: {STRONG} and more at each"
    return f"*does not hold* at T {' and '.join(weak)}, below {STRONG}"


def _sizes() -> list[Verdict]:
    told = []
    for pair, of in _rounds(0.6).items():
        sizes = mean([np.mean(row["nodes"]) for row in of])
        told.append(f"{short(pair)} {sizes}")
    return [
        Verdict(
            "Fig. 5: with the threshold 0.001, 551.79 of 768 nodes on average", "551.79",
            "; ".join(told), "*open*: few texts, and every tree is full",
        )
    ]  # fmt: skip


def _blocks() -> list[Verdict]:
    gains = [
        np.mean(row["blocks"]["as grown"]) / np.mean(row["blocks"]["depth first"])
        for row in rows("dyspec_blocks")
        if row["nodes"] >= 256
    ]
    return [
        Verdict(
            "Table 5: up to 5.9 times fewer blocks depth first", "1.6 to 5.9",
            f"{min(gains):.1f} to {max(gains):.1f}", "*holds*",
        )
    ]  # fmt: skip


_OTHERS = (
    Verdict(
        "latency: up to 9.1 times the throughput on a 70B target", "9.1, 9.4", "",
        "*not shown here*: no such target; tokens a round bound it (the columns below)",
    ),
    Verdict(
        "Fig. 4: construction takes under 2% of a round", "< 2%",
        "8 to 13% with verification, on two cores",
        "*not shown here*: a share of an A100; our target is 1,000 times smaller than its",
    ),
    Verdict(
        "Table 5, Fig. 8: the kernel is 2.1 times faster with the order", "2.1", "",
        "*not shown here*: it needs an accelerator (`python -m benchmarks.dyspec.blocks`)",
    ),
)  # fmt: skip


# ---- tables --------------------------------------------------------------------------------------


def _texts() -> str:
    lines = []
    for budget, pair in [(b, p) for b in (64, 768) for p in pairs(b)]:
        of = rows("dyspec", pair=pair, budget=budget)
        one, seeds = of[0], {row["seed"] for row in of if row["method"] == "dyspec"}
        lines.append(
            (
                pair, budget, f"{len(seeds)} x {len(one['tokens'])}", one["kinds"], one["prompt"],
                one["new"], f"{one['device']}, JAX {one['jax']}", one["date"],
                f"`{one['command']}`",
            )
        )  # fmt: skip
    head = (
        "pair",
        "nodes",
        "seeds x texts",
        "classes",
        "prompt",
        "new",
        "device",
        "date",
        "command",
    )
    return table(head, lines)


def _budget(budget: int) -> str:
    lines = []
    for pair, temperature in product(pairs(budget), (0.0, 0.6, 1.0)):
        of = found(pair, budget, temperature)
        top = max((pooled(of[name]).value for name in NAMES if name in of), default=0.0)
        for name, title in NAMES.items():
            if name not in of:
                continue
            tokens, levels = pooled(of[name]), pooled(of[name], "levels").value
            kinds = ", ".join(f"{kind} {one.value:.2f}" for kind, one in by_kind(of[name]).items())
            shown = f"**{tokens}**" if tokens.value == top else str(tokens)
            paper = PUBLISHED.get((budget, temperature), {}).get(name)
            lines.append(
                (
                    short(pair), f"{temperature:g}", title, tokens.texts, shown,
                    kinds if len(of[name][0]["kinds"].split(",")) > 1 else None,
                    f"{levels:.1f}", f"{tokens.value / (1 + levels / HOST):.2f}", paper,
                )
            )  # fmt: skip
    head = (
        "pair", "T", "method", "texts", "tokens a round", "by class", "levels",
        f"speed-up at T_t / T_d = {HOST:,}", "the paper: C4, OWT, CNN",
    )  # fmt: skip
    return table(head, lines)


def _changed() -> str:
    lines = []
    for pair, temperature in product(pairs(64), (0.0, 0.6, 1.0)):
        of = found(pair, 64, temperature)
        for name, title in CHANGED.items():
            base = "sequoia" if name.startswith("sequoia") else "dyspec"
            if name in of:
                tokens = pooled(of[name])
                lines.append(
                    (
                        short(pair), f"{temperature:g}", title, tokens, pooled(of[name], "levels"),
                        (tokens / pooled(of[base])).percent(),
                        (tokens / pooled(of["sequoia"])).percent(),
                    )
                )  # fmt: skip
    head = (
        "pair", "T", "one thing changed", "tokens a round", "levels", "over the same unchanged",
        "over Sequoia",
    )  # fmt: skip
    return table(head, lines)


def _fig2() -> str:
    lines = []
    for row in rows("dyspec_fig2"):
        edges = row["edges"]
        for what in ("acceptance", "target"):
            cells = row["means"][what][0]
            shown = [
                None if cells[at][0] is None else f"{cells[at][0]:.2f}"
                for at in (0, 1, 3, 5, 7, 9, 11, 13, 15)
            ]
            name = "it is accepted" if what == "acceptance" else "the target's probability"
            lines.append(
                (short(row["pair"]), f"{row['temperature']:g}", name, *shown,
                 f"{row['correlation'][what]:.2f}")
            )  # fmt: skip
    edges = rows("dyspec_fig2")[0]["edges"] if lines else np.linspace(0, 1, 17).tolist()
    heads = (f"up to {edges[at + 1]:.2f}" for at in (0, 1, 3, 5, 7, 9, 11, 13, 15))
    told = table(("pair", "T", "of a first child", *heads, "correlation"), lines)
    return _below(told, rows("dyspec_fig2"), lambda r: f"{r['places']:,} tokens of {_many(r)}")


def _below(told: str, found: Sequence[dict], what: Callable[[dict], str]) -> str:
    """A table, and what its rows were counted of, where and when."""
    if not found:
        return told
    return f"{told}\n\n{measured(found, '; '.join(dict.fromkeys(map(what, found))))}"


def _many(row: dict) -> str:
    texts = row["count"] * len(row["kinds"].split(","))
    return f"{texts} texts, {row['new']} new tokens each, of a pair"


def _rounds(temperature: float) -> dict[str, list[dict]]:
    by: dict[str, list[dict]] = {}
    for row in rows("dyspec_rounds", temperature=temperature):
        by.setdefault(row["pair"], []).append(row)
    return by


def _fig5() -> str:
    lines = []
    for temperature in (0.0, 0.6):
        for pair, of in _rounds(temperature).items():
            many = np.concatenate([row["children"] for row in of]) >= of[0]["beam"]
            deep = np.concatenate([row["levels"] for row in of]) >= LEVELS
            lines.append(
                (
                    short(pair), f"{temperature:g}", len(of), sum(len(row["nodes"]) for row in of),
                    mean([np.mean(row["nodes"]) for row in of]),
                    ratio([sum(row["tokens"]) for row in of], [len(row["tokens"]) for row in of]),
                    mean([np.mean(row["levels"]) for row in of]), f"{many.mean():.0%}",
                    f"{deep.mean():.0%}",
                )
            )  # fmt: skip
    head = (
        "pair", "T", "texts", "rounds", "nodes", "tokens a round", "levels",
        "rounds that meet the bound on children", "on levels",
    )  # fmt: skip
    return _below(table(head, lines), rows("dyspec_rounds"), _new)


def _new(row: dict) -> str:
    return f"{row['new']} new tokens a text"


def _table_5() -> str:
    lines = []
    for row in rows("dyspec_blocks"):
        theirs = " and ".join(f"{count:g}" for count in PAPER.get(row["nodes"], ()))
        counts = {name: mean(row["blocks"][name]) for name in ORDERS}
        gain = mean(row["blocks"]["as grown"]) / counts["depth first"]
        lines.append((row["nodes"], *counts.values(), gain, theirs))
    told = table(("nodes", *ORDERS, "as grown / depth first", "the paper"), lines)
    return _below(told, rows("dyspec_blocks"), lambda row: f"{row['count']} trees of each size")


def _fig9() -> str:
    lines = []
    for temperature in (0.0, 0.6):
        for pair, of in _rounds(temperature).items():
            means = {name: mean([np.mean(row["blocks"][name]) for row in of]) for name in ORDERS}
            theirs = " and ".join(f"{count:g}" for count in REAL.get(of[0]["budget"], ()))
            lines.append((short(pair), f"{temperature:g}", *means.values(), theirs))
    return _below(table(("pair", "T", *ORDERS, "the paper"), lines), rows("dyspec_rounds"), _new)


# ---- pictures ------------------------------------------------------------------------------------


def pictures() -> dict[str, str]:
    made = {}
    for pair in pairs(64):
        groups = [t for t in (0.0, 0.6, 1.0) if found(pair, 64, t)]
        if groups:
            series = {
                title: [
                    pooled(of[name]) if name in (of := found(pair, 64, t)) else None for t in groups
                ]
                for name, title in NAMES.items()
            }
            made[f"{short(pair)}_tokens"] = svg.bars(
                f"{pair}: tokens a round at 64 nodes",
                [f"temperature {t:g}" for t in groups],
                series,
                "tokens a round",
                subtitle="error bars: one standard error over texts",
            )
    for row in rows("dyspec_fig2"):
        if row["temperature"] == 0.6:
            for what, words in (
                ("acceptance", "probability that it is accepted"),
                ("target", "target's probability"),
            ):
                made[f"{short(row['pair'])}_fig2_{what}"] = _density(row, what, words)
    for pair, of in _rounds(0.6).items():
        made[f"{short(pair)}_fig5"] = svg.scatter(
            f"Fig. 5, {pair}: T 0.6, threshold 0.001, {len(of)} texts",
            {"a round": [p for row in of for p in zip(row["nodes"], row["tokens"], strict=True)]},
            "nodes of the tree",
            "tokens of the round",
            x_range=(0, 1.04 * of[0]["budget"]),
        )
        whole = [row for row in of if "parents" in row]
        if whole:
            made[f"{short(pair)}_fig6"] = _masks(np.array(whole[0]["parents"]))
    return made


def _density(row: dict, what: str, words: str) -> str:
    """A panel of Fig. 2: each column adds up to 1, as in the paper."""
    counts = np.array(row["density"][what], float)
    columns = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    centres = (np.array(row["edges"][:-1]) + row["edges"][1:]) / 2
    line = [
        (float(x), cell[0])
        for x, cell in zip(centres, row["means"][what][0], strict=True)
        if cell[0] is not None
    ]
    return svg.density(
        f"Fig. 2, {row['pair']}: T 0.6, {row['places']:,} tokens",
        columns.round(3).tolist(),
        row["edges"],
        row["edges"],
        "draft's probability of the first child",
        words,
        line,
    )


def _masks(parents: np.ndarray) -> str:
    """Figs. 6 and 7: the blocks of one tree's mask that hold an entry, in two orders."""
    one = svg.Canvas("Figs. 6, 7: blocks of a tree's mask", (0, 2.2), (0, 1), "two masks")
    for place, name in enumerate(("as grown", "depth first")):
        order = ORDERS[name](parents)
        seen = mask(parents)[np.ix_(order, order)]
        size = -(-len(seen) // BLOCK)
        padded = np.zeros((size * BLOCK, size * BLOCK))
        padded[: len(seen), : len(seen)] = seen
        shares = padded.reshape(size, BLOCK, size, BLOCK).mean((1, 3))
        side, left = 290 / size, 70 + 340 * place
        for i, j in np.argwhere(shares > 0):
            depth = 0.25 + 0.75 * float(shares[i, j]) ** 0.5
            one.box(left + j * side, 70 + i * side, side - 1, side - 1, "c0 dot", min(depth, 0.99))
        told = f"{name}: {(shares > 0).sum()} of {size * size} blocks"
        one.text(left + 145, 380, told)
    return one.svg()
