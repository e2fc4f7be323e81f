"""Verdicts on the claims of a paper, from its rows."""

import re
from collections.abc import Callable, Sequence

from benchmarks.results import values
from benchmarks.results.markdown import table
from benchmarks.results.statistics import Estimate
from benchmarks.results.values import Value

HEADER = ("claim of the paper", "the paper", "here", "verdict")
Claim = tuple[str, str, str, str]
JUDGED = re.compile(r"\{([\w, ]+)(?::([\w. ]+))?\}")
NOT_COUNTED = "*open*: not counted yet"


class Many(list):
    """Estimates of one value, of all sizes or groups; formatted as one, a list or a range."""

    def __format__(self, spec: str) -> str:
        numbers = [one.value if isinstance(one, Estimate) else one for one in self]
        if spec.startswith("range"):
            ends, digits = (min(numbers), max(numbers)), spec.removeprefix("range")
            if digits == "%":
                told = [f"{round(100 * (end - 1)) or 0:+.0f}%" for end in ends]
            else:
                told = [f"{end:{digits}}" for end in ends]
            return " to ".join(dict.fromkeys(told))
        if spec.startswith("list"):
            return ", ".join(f"{number:{spec.removeprefix('list')}}" for number in numbers)
        return format(self[0], spec)


def claims(paper: dict) -> list[Claim]:
    """Each claim of a paper: its words, the paper's numbers, those here and the verdict.

    A claim has the paper's words and numbers, and either `here` and `verdict` in words or `values`
    that both name: `here` once for each group, `verdict` once for all. `each` names the keys that
    groups differ by, `over` those whose values are one group's.
    """
    kinds = paper.get("kinds", {})
    return [_judged(kinds.get(one.get("kind"), {}) | one, paper) for one in paper["claims"]]


def _judged(claim: dict, paper: dict) -> Claim:
    told, words, judged = claim["claim"], claim.get("here", ""), claim["verdict"]
    if "values" not in claim:
        return told, claim["paper"], words, judged
    each, over, names = claim.get("each", []), claim.get("over", []), claim.get("names", {})
    here: dict[tuple, tuple[dict, dict[str, Many]]] = {}
    for keys, found in values.groups(claim, [*each, *over]):
        cells = values.cells(claim, found)
        made = values.named_values(claim, cells, paper["names"])
        if any(one is None for one in made.values()):
            continue
        named = names.get(keys.get("pair", ""), "")
        shown = keys | {"name": named, "texts": cells.count("text"), "over": {}}
        shown, lists = here.setdefault(tuple(keys[key] for key in each), (shown, {}))
        for key in over:
            shown["over"].setdefault(key, Many()).append(keys[key])
        for name, one in made.items():
            lists.setdefault(name, Many()).append(one)
    if not here:
        return told, claim["paper"], "", NOT_COUNTED
    parts = [words.format(**shown | lists) for shown, lists in here.values()]
    shown, _ = next(iter(here.values()))
    joined = claim.get("before", "").format(**shown) + claim.get("join", "; ").join(parts)

    def judge(match: re.Match) -> str:
        rule, _, more = (match[2] or "least").partition(" ")
        chosen = [
            (keys, lists[name]) for keys, lists in here.values() for name in match[1].split(", ")
        ]
        return RULES[rule](chosen, more)

    return told, claim["paper"], joined, JUDGED.sub(judge, judged)


# ---- rules ---------------------------------------------------------------------------------------

FEWEST = {"questions": 8, "seeds": 3}
"""Texts or seeds that a verdict needs: of fewer, an error is hardly known."""
Groups = Sequence[tuple[dict, Sequence[Value]]]


def holds(gap: Estimate, behind: bool = False) -> str:
    """Whether an estimate that should be ahead, or behind, is so by two standard errors."""
    ahead, other = (gap.behind, gap.ahead) if behind else (gap.ahead, gap.behind)
    if ahead:
        return "*holds*"
    return "*does not hold*" if other else "*open*: within two standard errors"


def _least(found: Groups, unit: str) -> str:
    """That of the estimate that is least ahead; `unit` names what there may be too few of."""
    worst = min(_all(found), key=lambda one: (one.value - one.even) / (one.error or 1e-12))
    if worst.texts < FEWEST.get(unit, 0):
        return f"*open*: {worst.texts} {unit} are too few"
    return holds(worst)


def _as_much(found: Groups, unit: str) -> str:
    """The same; a difference that is not seen holds too, where it is known to 5%."""
    judged, worst = _least(found, unit), _all(found)[0]
    if judged.startswith("*open*: within") and 2 * worst.error <= 0.05:
        return "*holds*: as much, within two standard errors"
    return judged


def _same(found: Groups, unit: str) -> str:
    """Whether no difference is seen."""
    gap = _all(found)[0]
    if gap.texts < FEWEST.get(unit, 0):
        return f"*open*: {gap.texts} {unit} are too few"
    return "*does not hold*" if gap.ahead or gap.behind else "*holds* within two standard errors"


def _each(found: Groups, way: str) -> str:
    """One verdict if all groups have the same, else that of each."""
    judged = [holds(gap, way == "behind") for gap in _all(found)]
    if len(set(judged)) == 1:
        return judged[0]
    return "by the pair: " + ", ".join(one.split(":")[0] for one in judged)


def _count(found: Groups, way: str) -> str:
    """At how many sizes it is ahead: at all, at most of them, or at all with some pair."""
    gaps = _all(found)
    ahead, behind = sum(gap.ahead for gap in gaps), sum(gap.behind for gap in gaps)
    said = f"ahead in {ahead} of {len(gaps)}, behind in {behind}"
    if way == "of some pair":
        by: dict[str, list[Estimate]] = {}
        for keys, those in found:
            by.setdefault(keys["pair"], []).extend(those)
        if whole := sum(all(gap.ahead for gap in those) for those in by.values()):
            return f"*holds* with {whole} of {len(by)} pairs"
    most = way == "of most"
    if ahead == len(gaps) or (most and ahead > len(gaps) / 2):
        return f"*holds*: {said}"
    return f"*{'does not hold' if behind >= max(ahead * most, 1) else 'open'}*: {said}"


def _from(found: Groups, bound: str) -> str:
    """Whether a number is at least the bound at each temperature."""
    temperatures = [t for keys, those in found for t in keys["over"]["temperature"]]
    weak = dict.fromkeys(
        f"{t:g}"
        for t, one in zip(temperatures, _all(found), strict=True)
        if one.value < float(bound)
    )
    if not weak:
        return f"*holds*: {bound} and more at each"
    return f"*does not hold* at T {' and '.join(weak)}, below {bound}"


def _all(found: Groups) -> list:
    return [one for _, those in found for one in those]


RULES: dict[str, Callable[[Groups, str], str]] = {
    "least": _least, "alike": _as_much, "same": _same, "each": _each, "count": _count,
    "from": _from,
}  # fmt: skip


# ---- the index -----------------------------------------------------------------------------------

COLUMNS = {
    "holds": "claims that hold",
    "does not hold": "that do not",
    "mixed": "mixed",
    "not shown": "not shown here",
    "open": "open",
}
"""Columns of the index."""


def index(papers: dict[str, tuple[str, list[Claim]]]) -> str:
    """How many claims of each paper hold: a table of the index.

    Args:
        papers: by page, its title and its claims.
    """
    lines = []
    for name, (title, found) in papers.items():
        kinds = [kind(verdict) for *_, verdict in found]
        lines.append((f"[{title}](results/{name}.md)", *(kinds.count(one) for one in COLUMNS)))
    return table(("paper", *COLUMNS.values()), lines)


def kind(cell: str) -> str:
    """What a verdict counts as: mixed if it is not the same by the pair or the control.

    What is not shown beside something that is does not count.

    Example:
        >>> kind("by the pair: *holds*, *holds*"), kind("by the pair: *holds*, *open*")
        ('holds', 'mixed')
        >>> kind("MAT: *holds*; speed: *not shown*")
        'holds'
    """
    found = set(re.findall(r"\*(holds|does not hold|open|not shown)\b", cell))
    if len(found) > 1:
        found -= {"not shown"}
    if not found:
        return "open"
    return found.pop() if len(found) == 1 else "mixed"
