"""Pages whose marked regions are made of rows, as the data of their papers say."""

import re
import tomllib
from pathlib import Path

from benchmarks.results import claims
from benchmarks.results.tables import tables

FOLDER = Path(__file__).resolve().parent
PICTURES = FOLDER / "pictures"
INDEX = FOLDER.parent / "RESULTS.md"
REGION = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def papers() -> dict[str, dict]:
    """Reads the data of each paper by its name, with the title of its page."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        title = path.with_suffix(".md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
        data = tomllib.loads(path.read_text("utf-8"))
        found[path.stem] = data | {"name": path.stem, "title": title}
    return found


def pages() -> dict[Path, str]:
    """Makes the text of every page, as the rows have it."""
    regions: dict[Path, dict[str, str]] = {}
    judged = {}
    for name, paper in papers().items():
        found, kinds = claims.matrix(paper)
        judged[name] = paper["title"], kinds
        regions.setdefault(FOLDER / f"{name}.md", {})["claims"] = claims.LEGEND + found
        for (page, region), text in tables(paper).items():
            regions.setdefault(FOLDER / f"{page}.md", {})[region] = text
    regions[INDEX] = {"papers": claims.index(judged)}
    return {
        path: filled(path.read_text("utf-8"), made, path.name) for path, made in regions.items()
    }


def filled(text: str, made: dict[str, str], page: str) -> str:
    """Fills the marked regions of a page, `<!-- begin NAME -->` to `<!-- end NAME -->`.

    Raises:
        ValueError: if a region has no table or a table no region.
    """
    there = {name for _, name, _ in REGION.findall(text)}
    if there != set(made):
        odd = ", ".join(sorted(there ^ set(made)))
        raise ValueError(f"{page}: in the page or in its tables alone: {odd}")
    return REGION.sub(lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text)
