"""Block efficiencies from the rows of `benchmarks.rsd`: their spread, and the larger of two."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import ledger
from benchmarks.rsd.settings import EXPERIMENTS, METHODS, PAPER, Group, Shape
from jspec.drafters.draft_model.sequoia_tree import memory_bound_speedup


@dataclass(frozen=True)
class Measured:
    """One tree at one temperature. Axis U: a prompt under a seed, alike in all trees."""

    method: str
    shape: Shape
    ratio: float
    seeds: np.ndarray
    tokens: np.ndarray
    calls: np.ndarray
    scores: np.ndarray
    """Of each text by its reference; not a number where it has none."""
    rates: np.ndarray | None = None
    """Token rate over plain decoding's, of each repeat; None if it was not timed."""
    plain_rate: float | None = None
    """Plain decoding's tokens per second, timed in turn with this tree."""

    @property
    def efficiency(self) -> float:
        """Tokens per target call, the target's own and the row's last ones included."""
        return float(self.tokens.sum() / self.calls.sum())

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; not a number if there is but one."""
        each = [self._where(self.seeds == seed) for seed in np.unique(self.seeds)]
        return float(np.std(each, ddof=1)) if len(each) > 1 else float("nan")

    @property
    def nodes(self) -> int:
        return METHODS[self.method].nodes(self.shape)

    @property
    def cost(self) -> float:
        """L r + 1: a round over a target call in time, if reading weights is all that counts."""
        return METHODS[self.method].length(self.shape) * self.ratio + 1

    @property
    def mbsu(self) -> float:
        length = METHODS[self.method].length(self.shape)
        return memory_bound_speedup(self.efficiency, length, self.ratio)

    @property
    def spec(self) -> str:
        return METHODS[self.method].text(self.shape)

    @property
    def rate(self) -> float:
        """The median token rate over plain decoding's; not a number if it was not timed."""
        return float("nan") if self.rates is None else float(np.median(self.rates))

    @property
    def score(self) -> float:
        """The mean score of the texts; not a number if there are no references."""
        return float(np.mean(self.scores))

    def lead(self, other: "Measured", metric: str) -> tuple[float, float]:
        """A metric beyond the other's, and the standard error.

        Of efficiency and MBSU over the U that they share, of rates over repeats.
        """
        if metric == "TR":
            assert self.rates is not None and other.rates is not None
            gap = self.rates - other.rates
            return float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))
        # A round's cost divides efficiency and its error alike.
        one, two = (self.cost, other.cost) if metric == "MBSU" else (1.0, 1.0)
        influence = self._influence() / one - other._influence() / two
        lead = self.efficiency / one - other.efficiency / two
        return lead, float(np.sqrt(np.square(influence).sum()))

    def metric(self, name: str) -> float:
        """Block efficiency, MBSU or token rate."""
        return {"Eff.": self.efficiency, "MBSU": self.mbsu, "TR": self.rate}[name]

    def _influence(self) -> np.ndarray:
        """[U] how far each moves the efficiency: the delta method for a ratio of sums."""
        return (self.tokens - self.efficiency * self.calls) / self.calls.sum()

    def _where(self, chosen: np.ndarray) -> float:
        return float(self.tokens[chosen].sum() / self.calls[chosen].sum())


@dataclass(frozen=True)
class Results:
    """All trees of a pair at one temperature."""

    title: str
    measured: dict[tuple[str, Shape], Measured]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that every tree has."""
        trees = [tree for tree in self.measured.values() if tree.nodes]
        timed = all(tree.rates is not None for tree in trees)
        return ("Eff.", "MBSU", "TR") if timed else ("Eff.", "MBSU")

    @property
    def plain(self) -> Measured | None:
        """Plain decoding, where it was measured: its texts have scores."""
        return self.measured.get(("autoregressive", ()))

    def groups(self, number: int) -> dict[int, Group]:
        """The groups of trees of an experiment, by draft length or budget: of each the methods
        whose trees were all measured, where the paper's are among them.
        """
        found = {}
        for size, group in EXPERIMENTS[number].items():
            there = {
                name: shapes
                for name, shapes in group.items()
                if all((name, shape) in self.measured for shape in shapes)
            }
            if there.keys() >= set(PAPER):
                found[size] = there
        return found

    def trees(self, group: Group) -> list[Measured]:
        return [self.measured[name, shape] for name in group for shape in group[name]]

    def best(self, group: Group, metric: str = "Eff.") -> dict[str, Measured]:
        """The best of each method's trees that the paper compares, in a metric."""
        ordered = sorted(self.trees(group), key=lambda tree: tree.metric(metric))
        best = {tree.method: tree for tree in ordered}
        return {method: best[method] for method in group}

    def chain(self, nodes: int) -> Measured:
        """The shortest chain measured of at least as many tokens, else the longest."""
        chains = sorted(
            shape[0] for method, shape in self.measured if method == "speculative_decoding"
        )
        enough = [length for length in chains if length >= nodes]
        return self.measured["speculative_decoding", (enough[0] if enough else chains[-1],)]


def read(files: Iterable[Path]) -> dict[str, dict[tuple[float, float], Results]]:
    """The results of each pair, by (temperature, top-p).

    Raises:
        ValueError: if a pair was measured with different prompts or lengths, or trees with
            different seeds: they could not be compared.
    """
    rows = [row for file in files for row in ledger.read(file)]
    asked: dict[str, set] = defaultdict(set)
    cells: dict = defaultdict(lambda: defaultdict(dict))
    rates: dict = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        sampling, tree = (row["temperature"], row["top_p"]), (row["method"], tuple(row["shape"]))
        how = row["texts"], row["score"], row["count"], row["prompt"], row["new"]
        asked[row["pair"]].add(how)
        if row["bench"] == "rsd_rate":
            rates[row["pair"]][sampling][tree] = row
        else:
            cells[row["pair"]][sampling].setdefault(tree, {})[row["seed"]] = row
    for pair, ways in asked.items():
        if len(ways) > 1:
            raise ValueError(
                f"{pair} was measured with {ways} (texts, score, prompts, tokens, new)"
            )
    return {
        pair: {
            sampling: Results(
                title=_title(pair, *sampling),
                measured=_complete(trees, rates[pair][sampling]),
            )
            for sampling, trees in sorted(by_sampling.items())
        }
        for pair, by_sampling in cells.items()
    }


def _title(pair: str, temperature: float, top_p: float) -> str:
    return f"{pair}, temperature {temperature}" + (f", top-p {top_p}" if top_p < 1 else "")


def _complete(trees: dict, rates: dict) -> dict[tuple[str, Shape], Measured]:
    """The trees that were measured with every seed that any was."""
    wanted = sorted(set().union(*trees.values()))
    found = {}
    for (method, shape), cells in trees.items():
        if sorted(cells) != wanted:
            continue
        rows = [cells[at] for at in wanted]
        prompts = [len(row["calls"]) for row in rows]
        timed = rates.get((method, shape))
        found[method, shape] = Measured(
            method,
            shape,
            rows[0]["ratio"],
            seeds=np.repeat([row["seed"] for row in rows], prompts),
            tokens=np.concatenate([row["tokens"] for row in rows]),
            calls=np.concatenate([row["calls"] for row in rows]),
            scores=np.concatenate([row.get("scores", [np.nan]) for row in rows]),
            rates=None if timed is None else np.array(timed["rates"]),
            plain_rate=None if timed is None else timed["plain_rate"],
        )
    return found
