"""The page of RSD (Jeon et al. 2024): its tables, claims and pictures from `rows/rsd*.jsonl`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.results import svg
from benchmarks.results.rendering import rows
from benchmarks.results.statistics import Estimate, mean, ratio
from benchmarks.results.tables import Verdict, measured, table, verdicts
from benchmarks.rsd.settings import EXPERIMENTS, METHODS, PAPER, TEMPERATURES, Group, Shape

Tree = tuple[str, Shape]
RATIOS = (0.12, 0.0164, 0.0016)
"""r of the memory-bound speed-up: a small pair's, and the paper's 115M with 7B and with 70B."""
PUBLISHED = {
    "speculative_decoding": {
        "2": (2.166, 1.673), "3": (2.465, 1.783), "4": (2.728, 1.854), "5": (2.865, 1.910),
    },
    "spectr": {
        "2x2": (2.218, 1.727), "3x2": (2.279, 1.757), "3x3": (2.644, 1.890), "4x3": (2.718, 1.913),
        "5x4": (2.974, 2.023), "7x4": (3.093, 2.059), "6x5": (3.209, 2.120), "12x5": (3.425, 2.176),
    },
    "rsd_c": {
        "2-1": (2.267, 1.768), "2-2": (2.398, 1.858), "3-1": (2.291, 1.819),
        "2-2-2": (2.868, 2.033), "3-1-1": (2.641, 1.940), "4-1-1": (2.688, 1.981),
        "2-2-2-2": (3.205, 2.152), "5-1-1-1": (2.898, 2.083), "7-1-1-1": (2.974, 2.130),
        "2-2-2-2-2": (3.492, 2.234), "6-1-1-1-1": (3.133, 2.171), "12-1-1-1-1": (3.249, 2.249),
    },
    "rsd_s": {
        "2x2": (2.367, 1.824), "3x2": (2.432, 1.912), "3x3": (2.927, 2.064), "4x3": (2.970, 2.143),
        "5x4": (3.427, 2.311), "7x4": (3.535, 2.408), "6x5": (3.811, 2.467), "12x5": (4.073, 2.657),
    },
}  # fmt: skip
"""Block efficiency of Tables 1 and 2 (Llama-2-7B, a draft of 115M; XSum and WMT, T 0.3)."""


@dataclass(frozen=True)
class Counts:
    """One tree at one temperature on the texts that all trees beside it have."""

    method: str
    shape: Shape
    found: Sequence[dict]
    """Rows of one seed each."""

    @property
    def text(self) -> str:
        return METHODS[self.method].text(self.shape)

    @property
    def efficiency(self) -> Estimate:
        return pooled(self.found)

    def mbsu(self, r: float) -> Estimate:
        """Memory-bound speed-up: efficiency / (L r + 1), L the levels that were drafted."""
        return pooled(self.found, r)


class Counted:
    """All rows of a pair at one temperature."""

    def __init__(self, pair: str, sampling: tuple[float, float]):
        self.pair, self.sampling = pair, sampling
        self._rows: dict[Tree, dict[int, dict]] = {}
        for row in _counted(pair=pair, temperature=sampling[0], top_p=sampling[1]):
            tree = row["method"], tuple(row["shape"])
            self._rows.setdefault(tree, {})[row["seed"]] = row

    def groups(self, experiment: int) -> Iterator[tuple[int, dict[str, list[Counts]]]]:
        """The trees of each length or budget of which all were counted, best first by method."""
        for size, group in EXPERIMENTS[experiment].items():
            found = self._group(group)
            if found is not None:
                yield size, found

    def _group(self, group: Group) -> dict[str, list[Counts]] | None:
        trees = [(name, shape) for name in PAPER for shape in group[name]]
        if any(tree not in self._rows for tree in trees):
            return None
        seeds = set.intersection(*(set(self._rows[tree]) for tree in trees))
        return {
            name: [
                Counts(name, shape, [self._rows[name, shape][seed] for seed in sorted(seeds)])
                for shape in shapes
            ]
            for name, shapes in group.items()
            if all(seeds <= self._rows.get((name, shape), {}).keys() for shape in shapes)
        }


@dataclass(frozen=True)
class Claim:
    """An order of two methods that the paper claims."""

    told: str
    paper: str
    experiment: int
    first: str
    second: str
    r: float | None = None
    """Of the memory-bound speed-up; None: block efficiency."""
    sizes: tuple[int, ...] | None = None


SD, SPECTR, RSDC, RSDS = PAPER
MOST, SOME = "in most cases", "two pairs"
CLAIMS = (
    Claim("SpecTr over SD by draft length, Eff. (5.1)", "always: +2% to +20%", 1, SPECTR, SD),
    Claim("RSD-C over SD by draft length, Eff. (5.1)", "always: +5% to +22%", 1, RSDC, SD),
    Claim("RSD-S over SD by draft length, Eff. (5.1)", "strictly: +12% to +42%", 1, RSDS, SD),
    Claim("the same, MBSU at the paper's r = 0.0164", "strictly", 1, RSDS, SD, 0.0164),
    Claim("RSD-S over SpecTr by length, Eff. (5.1)", "strictly: +7% to +22%", 1, RSDS, SPECTR),
    Claim("the same, MBSU at r = 0.0164", "strictly", 1, RSDS, SPECTR, 0.0164),
    Claim("RSD-S over SD by budget, Eff. (5.2)", MOST, 2, RSDS, SD),
    Claim("the same, MBSU at r = 0.12", MOST, 2, RSDS, SD, 0.12),
    Claim("the same, MBSU at r = 0.0164", MOST, 2, RSDS, SD, 0.0164),
    Claim("the same, MBSU at r = 0.0016", MOST, 2, RSDS, SD, 0.0016),
    Claim("RSD-S over SpecTr by budget, Eff. (5.2)", MOST, 2, RSDS, SPECTR),
    Claim("SD over RSD-C at 6 and 10, Eff. (5.2)", SOME, 2, SD, RSDC, sizes=(6, 10)),
)  # fmt: skip


def pairs() -> list[str]:
    return list(dict.fromkeys(row["pair"] for row in _counted()))


def best(trees: list[Counts], r: float | None) -> Estimate:
    """The largest value of a method's trees, as the paper's figures show them."""
    values = [tree.efficiency if r is None else tree.mbsu(r) for tree in trees]
    return max(values, key=lambda one: one.value)


def leads(claim: Claim, pair: str, sampling: tuple[float, float]) -> list[tuple[int, Estimate]]:
    """By size, the first method's best tree over the second's, as a ratio."""
    return [
        (size, best(group[claim.first], claim.r) / best(group[claim.second], claim.r))
        for size, group in Counted(pair, sampling).groups(claim.experiment)
        if claim.sizes is None or size in claim.sizes
    ]


def judged(claim: Claim) -> Verdict:
    """A claim at every size, temperature and pair that was counted."""
    here, ahead, behind, total, whole = [], 0, 0, 0, 0
    for pair in pairs():
        before, missing = total, 0
        for sampling in TEMPERATURES:
            found = [(size, lead - 1) for size, lead in leads(claim, pair, sampling)]
            if not found:
                continue
            gains = [100 * lead.value for _, lead in found]
            told = dict.fromkeys(
                f"{gain or 0:+.0f}%" for gain in (round(min(gains)), round(max(gains)))
            )
            here.append(f"{short(pair)}, T {sampling[0]:g}: {' to '.join(told)}")
            ahead += sum(lead.ahead for _, lead in found)
            behind += sum(lead.behind for _, lead in found)
            total += len(found)
            missing += sum(not lead.ahead for _, lead in found)
        whole += total > before and not missing
    told = words(ahead, behind, total, claim.paper == MOST)
    if claim.paper == SOME and whole:
        told = f"*holds* with {whole} of {len(pairs())} pairs"
    return Verdict(claim.told, claim.paper, "; ".join(here), told)


def words(ahead: int, behind: int, total: int, most: bool) -> str:
    """What becomes of an order that is ahead and behind so often, by two standard errors.

    Args:
        ahead: sizes at which it is.
        behind: sizes at which the other is ahead.
        total: all of them.
        most: whether it is claimed of most cases alone.
    """
    told = f"ahead in {ahead} of {total}, behind in {behind}"
    if not total:
        return "*not counted yet*"
    if ahead == total or (most and ahead > total / 2):
        return f"*holds*: {told}"
    least = max(ahead, 1) if most else 1
    return f"*does not hold*: {told}" if behind >= least else f"*open*: {told}"


NOT_SHOWN = (
    Verdict(
        "token rate: RSD-S strictly ahead (5.1, 5.2)", "1.2 to 1.4 times SD's", "",
        "*not shown here*: a rate of an A100 ([two cores](#token-rates-on-two-cores))",
    ),
    Verdict(
        "accuracy is that of plain decoding", "within 0.01", "equal distributions",
        "*holds*: exactly, by enumeration (`tests/verify`), which says more than scores do",
    ),
)  # fmt: skip


def tables() -> dict[str, str]:
    return {
        "claims": verdicts([*map(judged, CLAIMS), *NOT_SHOWN]),
        "texts": _texts(),
        "lengths": _best_trees(1),
        "budgets": _best_trees(2),
        "toy": _toy(),
        "random": _random(),
        "verifiers": _verifiers(),
        "rates": _rates(),
        "scores": _scores(),
    }


def every_tree(number: int) -> str:
    """An experiment in the layout of the paper's tables, pair by pair."""
    return "\n\n".join(
        f"**{pair}** (r = {_of(pair)['ratio']:.4g})\n\n{_experiment(pair, number)}"
        for pair in pairs()
    )


def ratios(pair: str) -> tuple[float, ...]:
    """r of the columns of a pair: those of all, and its own before them where it is another."""
    own = _of(pair)["ratio"]
    return RATIOS if any(math.isclose(own, r, rel_tol=0.01) for r in RATIOS) else (own, *RATIOS)


def short(pair: str) -> str:
    return pair.split(", ")[0].removesuffix("-target")


def _counted(**wanted) -> list[dict]:
    return rows("rsd", bench="rsd", **wanted)


def _of(pair: str) -> dict:
    return _counted(pair=pair)[0]


def _texts() -> str:
    def line(pair: str):
        one, seeds = _of(pair), {row["seed"] for row in _counted(pair=pair)}
        each = len(one["tokens"])
        return (
            pair, f"{len(seeds)} x {each}", one["prompt"], one["new"],
            f"{one['device']}, JAX {one['jax']}", one["date"], f"`{one['command']}`",
        )  # fmt: skip

    head = ("pair", "seeds x texts", "prompt", "new tokens", "device", "date", "command")
    return table(head, map(line, pairs()))


def _best_trees(number: int) -> str:
    """Block efficiency of each method's best tree, as the paper's figures compare them."""
    lines = []
    for pair in pairs():
        sides = [dict(Counted(pair, sampling).groups(number)) for sampling in TEMPERATURES]
        for size in sorted(set().union(*sides)):
            line = [short(pair), size]
            for side in sides:
                values = [best(side[size][name], None) if size in side else None for name in PAPER]
                top = max((one.value for one in values if one), default=0.0)
                line += [one and _bold(str(one), one.value == top) for one in values]
            lines.append(line)
    titles = [METHODS[name].title for name in PAPER]
    head = [f"{title}, T {temperature:g}" for temperature, _ in TEMPERATURES for title in titles]
    return table(("pair", "length" if number == 1 else "budget", *head), lines)


def _experiment(pair: str, number: int) -> str:
    """The layout of the paper's tables; both temperatures side by side."""
    sides = [dict(Counted(pair, sampling).groups(number)) for sampling in TEMPERATURES]
    sizes = [size for size in sides[0] if size in sides[1]]
    costs = ratios(pair)
    head = ["length" if number == 1 else "budget", "Dec.", "Spec.", "tokens"]
    for temperature, _ in TEMPERATURES:
        head += [f"Eff., T {temperature:g}", *(f"MBSU {r:.3g}" for r in costs)]
    lines = []
    for size in sizes:
        for name in [name for name in METHODS if name in sides[0][size] and name in sides[1][size]]:
            for cold, hot in zip(sides[0][size][name], sides[1][size][name], strict=True):
                line = [size, METHODS[name].title, cold.text, METHODS[name].nodes(cold.shape)]
                for side, tree in zip(sides, (cold, hot), strict=True):
                    every = [one for trees in side[size].values() for one in trees]
                    top = max(one.efficiency.value for one in every)
                    line.append(_bold(str(tree.efficiency), tree.efficiency.value == top))
                    for r in costs:
                        top = max(one.mbsu(r).value for one in every)
                        value = tree.mbsu(r)
                        line.append(_bold(str(value), value.value == top))
                if number == 1:
                    of = PUBLISHED.get(name, {}).get(cold.text)
                    line.append("" if of is None else "{:.2f}, {:.2f}".format(*of))
                lines.append(line)
    if number == 1:
        head.append("the paper, Eff.: XSum, WMT")
    return table(head, lines)


def _rates() -> str:
    """Tokens a second over plain decoding's: the median of the repeats."""
    found = rows("rsd", bench="rsd_rate")
    if not found:
        return "*Not timed.*"
    by: dict[Tree, dict[float, dict]] = {}
    for row in found:
        by.setdefault((row["method"], tuple(row["shape"])), {})[row["temperature"]] = row
    lines = []
    for (name, shape), of in by.items():
        cells = [f"{np.median(of[t]['rates']):.2f}" if t in of else None for t, _ in TEMPERATURES]
        method = METHODS[name]
        lines.append((method.title, method.text(shape), method.nodes(shape), *cells))
    plain = [row["plain_rate"] for row in found]
    told = (
        f"{found[0]['pair']}; plain decoding {min(plain):.0f} to {max(plain):.0f} tokens a second"
    )
    head = ("Dec.", "Spec.", "tokens", *(f"T {temperature:g}" for temperature, _ in TEMPERATURES))
    return f"{table(head, lines)}\n\n{measured(found, told)}"


def _scores() -> str:
    """Mean scores of the texts by their references, all trees of a method together."""
    by: dict[tuple, list[float]] = {}
    for row in _counted():
        key = row["pair"], row["score"], row["method"], row["temperature"]
        by.setdefault(key, []).extend(one for one in row.get("scores", ()) if one == one)
    lines = [
        (short(pair), score, METHODS[name].title, f"{temperature:g}", mean(found))
        for (pair, score, name, temperature), found in by.items()
        if found
    ]
    if not lines:
        return "*No texts with references.*"
    return table(("pair", "score", "Dec.", "T", "mean"), lines)


def _bold(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text


def _toy() -> str:
    """Figure 1: two tokens, two children."""
    found = rows("rsd_fig1", in_table=True)
    names = list(found[0]["kept"])
    return table(
        ("draft, target", *names),
        [
            ("Ber({:g}), Ber({:g})".format(*row["toy"]), *(f"{row['kept'][n]:.3f}" for n in names))
            for row in found
        ],
    )


def _random() -> str:
    found = [row for row in rows("rsd_fig1") if "children" in row]
    names = list(found[0]["kept"])
    return table(
        ("K", *names),
        [(row["children"], *(f"{row['kept'][name]:.3f}" for name in names)) for row in found],
    )


def _verifiers() -> str:
    """Each tree's tokens a round by the verifiers that are lossless for it, on the same texts."""
    cells: dict[tuple, dict[str, dict[int, dict]]] = {}
    counted = rows("rsd_verifiers")
    for row in counted:
        of = cells.setdefault((row["pair"], row["temperature"], row["tree"]), {})
        of.setdefault(row["verifier"], {})[row["seed"]] = row
    verifiers = list(dict.fromkeys(name for of in cells.values() for name in of))
    lines = []
    for (pair, temperature, tree), of in cells.items():
        seeds = sorted(set.intersection(*(set(found) for found in of.values())))
        if not seeds:
            continue
        values = {name: pooled([found[seed] for seed in seeds]) for name, found in of.items()}
        top = max(value.value for value in values.values())
        shown = {name: _bold(str(one), one.value == top) for name, one in values.items()}
        texts = next(iter(values.values())).texts
        line = (short(pair), f"{temperature:g}", tree, texts)
        lines.append((*line, *(shown.get(name) for name in verifiers)))
    told = table(("pair", "T", "tree", "texts", *verifiers), lines)
    if not counted:
        return told
    new = " or ".join(dict.fromkeys(f"{row['new']}" for row in counted))
    return f"{told}\n\n{measured(counted, f'{new} new tokens a text')}"


def pooled(found: Sequence[dict], r: float = 0) -> Estimate:
    """Tokens a call over all texts of some rows, where a drafted level costs r of a call."""

    def every(what: str) -> np.ndarray:
        return np.array([one for row in found for one in row[what]])

    return ratio(every("tokens"), every("calls") + (r * every("levels") if r else 0))


def pictures() -> dict[str, str]:
    """Figs. 4 and 5, of each pair at its first temperature and at 1; and Fig. 1."""
    found = {"toy": _toy_picture()}
    for pair in pairs():
        for number, what in ((1, "draft length"), (2, "tokens that the target verifies")):
            for temperature, top_p in TEMPERATURES:
                groups = list(Counted(pair, (temperature, top_p)).groups(number))
                if len(groups) < 2:
                    continue
                series = {
                    METHODS[name].title: [(size, best(group[name], None)) for size, group in groups]
                    for name in PAPER
                }
                top = f", top-p {top_p:g}" if top_p < 1 else ""
                name = f"{short(pair)}_{'lengths' if number == 1 else 'budgets'}_t{temperature:g}"
                found[name.replace(".", "")] = svg.lines(
                    f"{pair}, temperature {temperature:g}{top}",
                    series,
                    what,
                    "block efficiency of the best tree",
                    subtitle="band: one standard error over texts",
                )
    return found


def _toy_picture() -> str:
    found = [row for row in rows("rsd_fig1", in_table=False) if row["toy"][0] == 0.3]
    series = {
        name: [(row["toy"][1], row["kept"][name]) for row in found]
        for name in ("multi-round", "K-SEQ", "optimal", "RRS")
    }
    return svg.lines(
        "Fig. 1: a child is kept, draft Ber(0.3), K = 2",
        series,
        "target Ber(x)",
        "probability",
        y_range=(0, 1.02),
    )
