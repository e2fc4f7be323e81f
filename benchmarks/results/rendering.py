"""Pages whose marked regions are made of rows, and the rows themselves."""

import importlib
import re
from pathlib import Path

from benchmarks import ledger
from benchmarks.results.tables import table

FOLDER = Path(__file__).resolve().parent
ROWS, PICTURES = FOLDER / "rows", FOLDER / "pictures"
INDEX = FOLDER.parent / "RESULTS.md"
REGION = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def rows(name: str, **wanted) -> list[dict]:
    """The rows of `rows/NAME.jsonl` with these values, each with those of its setting."""
    path = ROWS / f"{name}.jsonl"
    found = ledger.read(path) if path.is_file() else []
    return [row for row in found if all(row.get(key) == value for key, value in wanted.items())]


def pages() -> list[str]:
    """Names of the pages that have a module."""
    return sorted(page.stem for page in FOLDER.glob("*.md") if page.with_suffix(".py").is_file())


def filled(text: str, tables: dict[str, str], page: str) -> str:
    """A page with its marked regions, `<!-- begin NAME -->` to `<!-- end NAME -->`, made anew.

    Raises:
        ValueError: if a region has no table or a table no region.
    """
    there = {name for _, name, _ in REGION.findall(text)}
    if there != set(tables):
        odd = ", ".join(sorted(there ^ set(tables)))
        raise ValueError(f"{page}: in the page or in its tables alone: {odd}")
    return REGION.sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", text)


def rendered() -> dict[Path, str]:
    """The text of every page and picture, as the rows have it."""
    found: dict[Path, str] = {}
    claims = {}
    for name in pages():
        module = importlib.import_module(f"benchmarks.results.{name}")
        page, made = FOLDER / f"{name}.md", module.tables()
        found[page] = filled(page.read_text("utf-8"), made, page.name)
        if "claims" in made:
            claims[name] = found[page].partition("\n")[0].removeprefix("# "), made["claims"]
        for picture, svg in module.pictures().items():
            found[PICTURES / f"{name}_{picture}.svg"] = svg
    found[INDEX] = filled(INDEX.read_text("utf-8"), {"papers": papers(claims)}, INDEX.name)
    return found


def papers(claims: dict[str, tuple[str, str]]) -> str:
    """How many claims of each paper hold: a table of the index.

    Args:
        claims: by page, its title and its table of verdicts.
    """
    lines = []
    for name, (title, told) in claims.items():
        found = [kind(line.split(" | ")[-1]) for line in told.splitlines()[2:]]
        lines.append((f"[{title}](results/{name}.md)", *(found.count(one) for one in KINDS)))
    return table(("paper", *KINDS.values()), lines)


KINDS = {
    "holds": "claims that hold",
    "does not hold": "that do not",
    "mixed": "mixed",
    "not shown": "not shown here",
    "open": "open",
}
"""Columns of the index."""


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
