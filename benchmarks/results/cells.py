"""Estimates of methods on the texts that they have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.results.statistics import Estimate, ratio

Variant = tuple[str, str | None]
"""A method, and which of its trees."""


class Cells:
    """Observations by method, on common texts.

    Args:
        found: the observations. Of two of one text and repeat the later one counts.
        methods: that are looked at, in this order; none: all.
        common: whose texts all methods must have: a list of methods, "all" for all that are there,
            a share for those that have so much of the most texts (the others are left out), None
            for no restriction.
    """

    def __init__(
        self,
        found: Iterable[dict],
        methods: Sequence[str] = (),
        common: Sequence[str] | str | float | None = None,
    ):
        by: dict[Variant, dict[tuple, dict]] = {}
        self.rows = list(found)
        for one in self.rows:
            variant = one.get("method", ""), one.get("tree")
            by.setdefault(variant, {})[one.get("repeat"), one.get("text")] = one
        if methods:
            by = {v: by[v] for name in methods for v in by if v[0] == name}
        self._cells = _on_common(by, common)
        self.methods = list(dict.fromkeys(name for name, _ in self._cells))
        self.left_out = [name for name, _ in by if name not in self.methods]

    def trees(self, method: str) -> list[str | None]:
        """Returns the trees of a method."""
        return [tree for name, tree in self._cells if name == method]

    def row(self, method: str | None = None, tree: str | None = None) -> dict:
        """Returns the first observation, of a method and a tree if they are given."""
        found = self._cells.get((method, tree)) if method else next(iter(self._cells.values()), {})
        return next(iter(found.values()), {}) if found else {}

    def count(self, what: str, method: str | None = None) -> int:
        """Counts the texts or repeats of a method, else of the first one."""
        name = method or next(iter(self.methods), None)
        found = next((self._cells[v] for v in self._cells if v[0] == name), {})
        return len({repeat if what == "repeat" else text for repeat, text in found})

    def total(self, name: str) -> float:
        """Sums a count over the texts of the first method."""
        return sum(one.get(name, 0) for one in next(iter(self._cells.values()), {}).values())

    def best(self, methods: Sequence[str], measure: str) -> str | None:
        """Returns the method with the most."""
        values = {name: self.of(name, measure) for name in methods}
        there = {name: one.value for name, one in values.items() if one is not None}
        return max(there, key=lambda name: there[name]) if there else None

    def of(
        self, method: str, measure: str, kind: str | None = None, tree: str | None = None
    ) -> Estimate | None:
        """Estimates a measure of a method, of its best tree if none is named; None: not counted.

        Args:
            method: its name.
            measure: a sum over another, such as "tokens/calls+0.12*levels".
            kind: of the texts; None: all.
            tree: of the method.
        """
        above, below = map(_sum, measure.split("/"))
        found = []
        for variant, cell in self._cells.items():
            if variant[0] != method or tree not in (None, variant[1]):
                continue
            sums: dict[Any, tuple[float, float]] = {}
            for (_, text), one in cell.items():
                if kind in (None, one.get("kind")):
                    up, down = sums.get(text, (0.0, 0.0))
                    sums[text] = up + above(one), down + below(one)
            if sums:
                found.append(ratio(*zip(*(sums[text] for text in sorted(sums)), strict=True)))
        return max(found, key=lambda one: one.value) if found else None


def _on_common(by: dict[Variant, dict[tuple, dict]], common) -> dict[Variant, dict[tuple, dict]]:
    if common is None or not by:
        return by
    if common == "all":
        needed = list(by)
    elif isinstance(common, float):
        most = max(map(len, by.values()))
        needed = [variant for variant, cell in by.items() if len(cell) >= common * most]
        by = {variant: by[variant] for variant in needed}
    else:
        needed = [variant for variant in by if variant[0] in common]
        if {name for name, _ in needed} != set(common):
            return {}
    ids = set.intersection(*(set(by[variant]) for variant in needed))
    found = {variant: cell for variant, cell in by.items() if ids and ids <= cell.keys()}
    return {v: {one: cell[one] for one in cell if one in ids} for v, cell in found.items()}


def _sum(terms: str) -> Callable[[dict], float]:
    """Makes a sum of counts, each with a factor, or of numbers."""
    parts = []
    for term in terms.split("+"):
        factor, _, name = term.rpartition("*")
        parts.append((float(factor or 1), name))

    def added(one: dict) -> float:
        return sum(factor * (one[name] if name in one else float(name)) for factor, name in parts)

    return added
