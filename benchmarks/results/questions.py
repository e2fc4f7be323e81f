"""Questions that methods answered, and their tokens per round on those that all have answered."""

from collections.abc import Iterable, Sequence

from benchmarks.results.rendering import rows
from benchmarks.results.statistics import Estimate, ratio

TR = "TR, published"
LINES = {
    "prompt lookup": "PLD",
    "suffix": "suffix",
    "lookahead": "Lookahead",
    "REST": "REST",
    "Medusa": "Medusa, trained",
    "EAGLE, chain": "EAGLE, a chain, trained",
    "EAGLE": "EAGLE, its published tree, trained",
    "EAGLE-2": "EAGLE-2, 59 nodes, trained",
    "Lyanna": "Lyanna, 11 nodes and 6 more, trained",
    "block": "block head, 63 nodes, trained",
    TR: "Token Recycling",
    "auto": "auto, jspec's default",
    "LogitSpec": "LogitSpec",
    "TR + suffix": "Token Recycling + suffix",
}
"""Labels of the rows, and their names on the page."""


class Counts:
    """The rows of one model and one set of questions: those that all its methods have answered.

    Args:
        found: the rows.
        methods: of these; None: all that have at least three quarters of the most questions.
    """

    def __init__(self, found: Iterable[dict], methods: Sequence[str] | None = None):
        self.rows = [row for row in found if not row["cold"] and "order" not in row]
        answered = {
            name: {row["question"] for row in self.rows if row["method"] == name}
            for name in LINES
            if methods is None or name in methods
        }
        most = max(map(len, answered.values()))
        least = 1 if methods is not None else max(1, 0.75 * most)
        self.methods = [name for name, those in answered.items() if len(those) >= least]
        common = [answered[name] for name in self.methods]
        self.questions = set.intersection(*common) if common else set()
        self.kinds = list(
            dict.fromkeys(row["kind"] for row in self.rows if row["question"] in self.questions)
        )

    def mat(self, method: str, kind: str | None = None) -> Estimate:
        """Tokens per round of a method, of a class of questions or of all."""
        return of_rows(
            row
            for row in self.rows
            if row["method"] == method
            and row["question"] in self.questions
            and kind in (None, row["kind"])
        )

    def best(self, methods: Sequence[str]) -> str:
        """The method of these with most tokens per round."""
        return max((name for name in methods if name in self.methods), key=self.value)

    def value(self, method: str) -> float:
        return self.mat(method).value


def of_rows(found: Iterable[dict]) -> Estimate:
    """Tokens per round over questions, in the order of their names."""
    ordered = sorted(found, key=lambda row: row["question"])
    return ratio([sum(row["tokens"]) for row in ordered], [sum(row["rounds"]) for row in ordered])


def counts(pair: str, mbpp: bool = False, methods: Sequence[str] | None = None) -> Counts:
    """The rows of Table 1 of a model, on its questions or on MBPP's programs."""
    found = rows("token_recycling", bench="recycling.counts", pair=pair)
    return Counts((row for row in found if (row["kind"] == "mbpp") == mbpp), methods)
