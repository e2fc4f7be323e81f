"""Pages whose marked regions are made of rows, and the rows themselves."""

import importlib
import re
from pathlib import Path

from benchmarks import ledger

FOLDER = Path(__file__).resolve().parent
ROWS, PICTURES = FOLDER / "rows", FOLDER / "pictures"
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
    for name in pages():
        module = importlib.import_module(f"benchmarks.results.{name}")
        page = FOLDER / f"{name}.md"
        found[page] = filled(page.read_text("utf-8"), module.tables(), page.name)
        for picture, svg in module.pictures().items():
            found[PICTURES / f"{name}_{picture}.svg"] = svg
    return found
