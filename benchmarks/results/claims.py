"""Verdicts on the claims of a paper, from its rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.results import values
from benchmarks.results.markdown import table
from benchmarks.results.statistics import mean

COLUMNS = {
    "holds": "hold",
    "sign": "hold, another size",
    "mixed": "mixed",
    "fails": "do not hold",
    "open": "open",
    "not shown": "not shown",
    "not run": "not run",
}
"""Columns of the index, by the kind of a verdict. What is only reported has none."""
SHOWN = {"holds": "**holds**", "sign": "**holds**, another size", "fails": "**does not hold**"}
LEGEND = """\
A cell gives an estimate, one standard error, and a word that is found before rounding. *ahead*,
*behind*: the 95% interval excludes equality. *level*: it includes equality, and not the paper's
smallest lead. *open*: it includes both, or the paper gives no lead. *by more*, *by less*: the
whole interval lies outside the paper's range. A claim of less than a bound is *open* if the
interval crosses the bound. **holds**, another size: all models have the paper's sign, and at least
one another size. *mixed*: models disagree. [Details](../RESULTS.md#how-claims-are-judged).

"""
WORDS = ("ahead", "level", "behind")
EQUAL = ("same", "open", "differs")


def matrix(paper: dict) -> tuple[str, list[str]]:
    """Judges the claims of a paper by setting.

    A claim has the paper's words and numbers. What is judged are `values`: those that `judged`
    names, or `lead`, of each group of rows that `each` tells apart, as a mean over the keys of
    `over`. `per` makes a line of each value of a key. A value is ahead or behind (see `expect`) if
    its interval of 95% excludes equality; if the interval reaches neither equality's other side nor
    the paper's `size`, the claim's sign is not there. Or `verdict` and `cells` say it in words.

    Returns:
        the table, and the kind of each line's verdict.
    """
    lines, kinds = [], []
    for one in paper["claims"]:
        claim = paper.get("kinds", {}).get(one.get("kind"), {}) | one
        for keys, found in _lines_of(claim):
            cells, kind = _judged(claim, found, paper)
            shown = [cells.get(setting, "") for setting in paper["settings"]]
            verdict = ": ".join(filter(None, (SHOWN.get(kind, kind), claim.get("why"))))
            lines.append((claim["claim"].format(**keys), claim["paper"], *shown, verdict))
            kinds.append(kind)
    header = ("claim", "the paper", *paper["settings"].values(), "verdict")
    return table(header, lines), kinds


def _lines_of(claim: dict) -> Iterable[tuple[dict, dict]]:
    """Returns the lines of a claim: one, or one of each value of the keys of `per`."""
    if "per" not in claim:
        return [({}, claim)]
    found = values.groups(claim, claim["per"])
    wheres = ((keys, {key: keys[key] for key in claim["per"]}) for keys, _ in found)
    return [(keys, claim | {"where": claim.get("where", {}) | own}) for keys, own in wheres]


def _judged(claim: dict, line: dict, paper: dict) -> tuple[dict[str, str], str]:
    """Makes the cell of each setting, and the kind of the line's verdict."""
    cells, found = dict(claim.get("cells", {})), []
    for setting, estimates in _estimates(line, paper):
        judged = [judge(one, claim) for one, _ in estimates]
        found += [kind for _, kind in judged]
        words = list(dict.fromkeys(word for word, _ in judged))
        told = [text for _, text in estimates]
        if len(words) > 1:
            told = [f"{text} {word}" for text, (word, _) in zip(told, judged, strict=True)]
            words = []
        cells[setting] = " ".join([", ".join(told), *words]).rstrip()
    return cells, claim.get("verdict") or verdict(found)


def _estimates(claim: dict, paper: dict) -> Iterable[tuple[str, list[tuple[Any, str]]]]:
    """Yields each judged value and how it is shown, by setting."""
    if "values" not in claim:
        return
    each, over = claim.get("each", ["short"]), claim.get("over", [])
    names = claim.get("judged", ["lead"])
    by: dict[str, list[dict[str, Any]]] = {}
    for keys, found in values.groups(claim, [*each, *over]):
        made = values.named_values(claim, values.cells(claim, found), paper["names"])
        if all(made[name] is not None for name in names):
            by.setdefault(str(keys.get("short", claim.get("setting"))), []).append(made)
    for setting, sizes in by.items():
        found = []
        for name in names:
            one, shown = mean([made[name] for made in sizes]), claim.get("shown", {}).get(name)
            text = shown.format(**sizes[0]) if shown else format(one, claim.get("format", "%"))
            if over:
                expect = claim.get("expect", "ahead")
                text += f" ({sum(getattr(made[name], expect) for made in sizes)}/{len(sizes)})"
            found.append((one, text))
        yield setting, found


def judge(one: Any, claim: dict) -> tuple[str, str]:
    """Says in a word how a value compares, and the kind of that verdict.

    Example:
        >>> from benchmarks.results.statistics import ratio
        >>> lead = ratio([13] * 20, [10] * 20) / ratio([1] * 20, [1] * 20)
        >>> judge(lead, {}), judge(lead, {"size": [1.45, 1.49]}), judge(lead, {"expect": "behind"})
        (('ahead', 'holds'), ('ahead, by less', 'sign'), ('ahead', 'fails'))
    """
    if "verdict" in claim:
        return "", claim["verdict"]
    if "within" in claim:
        least, most = one.even - claim["within"], one.even + claim["within"]
        inside, outside = least < one.low <= one.high < most, one.low > most or one.high < least
        words = claim.get("words", EQUAL)
        if inside or outside:
            return (words[0], "holds") if inside else (words[2], "fails")
        return words[1], "open"
    ahead, level, behind = claim.get("words", WORDS)
    sign = -1 if claim.get("expect") == "behind" else 1
    low, high = sorted((sign * (one.low - one.even), sign * (one.high - one.even)))
    word, other = (ahead, behind)[::sign]
    sizes = sorted(sign * (size - one.even) for size in claim.get("size", ()))
    if high < 0:
        return other, "fails"
    if low <= 0:
        # Seen well enough to tell that what the paper has is not there, or not.
        return (level, "fails") if sizes and high < sizes[0] > 0 else ("open", "open")
    if sizes and not low <= sizes[-1]:
        return f"{word}, by more", "sign"
    if sizes and not high >= sizes[0]:
        return f"{word}, by less", "sign"
    return word, "holds"


def verdict(kinds: Sequence[str]) -> str:
    """Joins the kinds of a claim's settings to one.

    Example:
        >>> verdict(["holds", "holds"]), verdict(["holds", "sign"]), verdict(["holds", "open"])
        ('holds', 'sign', 'mixed')
    """
    there = set(kinds)
    if there == {"holds", "sign"}:
        return "sign"
    return there.pop() if len(there) == 1 else "mixed" if there else "not run"


def index(papers: dict[str, tuple[str, list[str]]]) -> str:
    """Makes a table of how many claims of each paper hold.

    Args:
        papers: by page, its title and what its claims count as.
    """
    lines = [
        (f"[{title}](results/{name}.md)", *(kinds.count(one) for one in COLUMNS))
        for name, (title, kinds) in papers.items()
    ]
    return table(("claims of", *COLUMNS.values()), lines)
