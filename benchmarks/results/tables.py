"""Tables of a page, from its data."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.results import values
from benchmarks.results.cells import Cells
from benchmarks.results.markdown import measured, table
from benchmarks.results.observations import matching
from benchmarks.results.statistics import Estimate
from benchmarks.results.values import TOKENS


def tables(paper: dict) -> dict[tuple[str, str], str]:
    """Makes the text of each region, by page and name: its tables in turn."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in paper["tables"]:
        spec = paper.get("kinds", {}).get(one.get("kind"), {}) | one
        region = spec.get("page", paper["name"]), spec["region"]
        found.setdefault(region, []).extend(_of_each(spec, paper))
    return {region: "\n\n".join(texts) for region, texts in found.items()}


def _of_each(spec: dict, paper: dict) -> Iterator[str]:
    """Yields a table; with `per`, one for each group, with the words `around` it."""
    if "per" not in spec:
        yield _table(spec, paper)
        return
    for keys, _ in values.groups(spec, spec["per"]):
        where = spec.get("where", {}) | {key: keys[key] for key in spec["per"]}
        table_of_group = _table(spec | {"where": where}, paper)
        yield spec["around"].format(table=table_of_group, **keys).strip()


def _table(spec: dict, paper: dict) -> str:
    """Makes a table whose lines are rows, groups, or the methods or trees of each group.

    A column has a head and a cell, words that name keys of the line or its value `here`.
    """
    heads: list[str] = []
    lines: list[list[str | None]] = []
    used: list[dict] = []
    counted: dict[str, set[int]] = {"seeds_each": set(), "texts_each": set()}
    for part in spec.get("parts", [{}]):
        whole = {"methods": list(paper["names"])} | spec | part
        names = paper["names"] | (whole["methods"] if isinstance(whole["methods"], dict) else {})
        columns = list(_columns(whole, names))
        for keys, found in values.groups(whole, whole.get("each", [])):
            group = _Group(whole, names, paper.get("published", {}), keys, found)
            heads = heads or [group.head(column) for column in columns]
            lines += group.listed(columns) if spec.get("listed") else group.lines(columns)
            used += found
            for name, of in (("seeds_each", "repeat"), ("texts_each", "text")):
                counted[name] |= {group.cells({}).count(of, m) for m in group.cells({}).methods}
    told = table(heads or [""], lines)
    if "told" not in spec or not used:
        return told
    said = {name: " or ".join(map(str, sorted(each))) for name, each in counted.items()}
    words = dict.fromkeys(spec["told"].format(**one | said) for one in used)
    return f"{told}\n\n{measured(used, '; '.join(words))}"


def _columns(spec: dict, names: dict[str, str]) -> Iterator[dict]:
    """Yields the columns; one with `each` is repeated for methods or for values."""
    for number, column in enumerate([*spec["columns"], *spec.get("more", [])]):
        by_method = column.get("each") == "methods"
        for one in spec["methods"] if by_method else column.get("each", [None]):
            made = {key: _filled(each, str(names.get(one, one))) for key, each in column.items()}
            made |= {"number": number, "cell": made.get("cell", "{here}")}
            if by_method:
                made["show"] = one
            if "at" in column:
                made["where"] = {column["at"]: one}
            yield made


def _filled(each: Any, name: str) -> Any:
    """Replaces "{each}" in words by a name."""
    if isinstance(each, list):
        return [_filled(one, name) for one in each]
    return each.replace("{each}", name) if isinstance(each, str) else each


class _Cell(NamedTuple):
    column: dict
    here: Estimate | None
    text: str | None


class _Group:
    """The lines of a group."""

    def __init__(self, spec: dict, names: dict[str, str], published: dict, keys, found: list[dict]):
        self.spec, self.names, self.published = spec, names, published
        self.keys, self.found = keys, found
        self._cells: dict[str, Cells] = {}

    def cells(self, column: dict, common: Any = None) -> Cells:
        """Returns the methods in the part of the group that a column is about."""
        where = column.get("where", {})
        if (name := repr((where, common))) not in self._cells:
            spec = self.spec | {"common": common} if common else self.spec
            self._cells[name] = values.cells(spec, matching(self.found, where))
        return self._cells[name]

    def head(self, column: dict) -> str:
        cells = self.cells(column)
        named = values.named_values(column, cells, self.names)
        shown = {"texts": cells.count("text"), "seeds": cells.count("repeat")}
        return column["head"].format(**self.keys | shown | named)

    def listed(self, columns: list[dict]) -> Iterator[list[str | None]]:
        """Yields a line for each row."""
        for row in self.found:
            shown = row | {"name": self.names.get(row.get("method", ""))}
            yield [column["cell"].format(**shown) for column in columns]

    def lines(self, columns: list[dict]) -> Iterator[list[str | None]]:
        """Yields the lines in which something was counted, the best values bold."""
        found = [[self.cell(column, *line) for column in columns] for line in self._lines(columns)]
        found = [line for line in found if any(cell.here is not None for cell in line)]
        if not any(_is_counted(column) for column in columns):
            found = [[self.cell(column, None, None) for column in columns]]
        for line in found:
            yield [_bold(cell, line, found) for cell in line]

    def _lines(self, columns: list[dict]) -> Iterator[tuple[Any, str | None]]:
        """Yields the method and tree of each line, or None."""
        kind = self.spec.get("lines")
        named: list[Any] = list(self.spec.get("shown", self.spec["methods"])) if kind else [None]
        for name in named:
            if kind == "trees":
                every = [tree for one in columns for tree in self.cells(one).trees(name)]
                yield from ((name, tree) for tree in dict.fromkeys(every))
            elif kind != "others" or name in self.cells({}, 0.75).left_out:
                yield name, None

    def cell(self, column: dict, method: str | None, tree: str | None) -> _Cell:
        """Makes a cell of a line: its value, None if nothing was counted, and its words."""
        others = self.spec.get("lines") == "others"
        cells = self.cells(column, [method, self.spec["next_to"]] if others else None)
        show, here = self._show(column, method), None
        if _is_counted(column) and show is not None and method not in column.get("but", ()):
            measure = column.get("measure", self.spec.get("measure", TOKENS)).format(**self.keys)
            here = values.value(show, cells, measure, kind=column.get("kind"), tree=tree)
        if _is_counted(column) and here is None:
            return _Cell(column, None, None)
        keys = self.keys | cells.row(method, tree) | {"method": method}
        shown = keys | {
            "name": self.names.get(method or "", method), "panel": self.spec.get("panel"),
            "here": here,
            "texts": cells.count("text", method), "seeds": cells.count("repeat", method),
            "kinds": _by_kind(cells, method) if "{kinds" in column["cell"] else "",
            "num_rounds": cells.total("num_rounds"),
            "paper": self._of_paper(column, keys),
        }  # fmt: skip
        words = column["cell"] if shown["paper"] else column["cell"].replace(" ({paper})", "")
        return _Cell(column, here, words.format(**shown))

    def _show(self, column: dict, method: str | None) -> Any:
        """Returns a column's value; "." is the line's method, "base" the one it changes."""
        bases = self.spec.get("bases", {})
        known = {".": method, "base": bases.get(method, bases.get(""))}
        show = column.get("show", ".")
        return (
            [known.get(one, one) for one in show]
            if isinstance(show, list)
            else known.get(show, show)
        )

    def _of_paper(self, column: dict, keys: dict) -> str:
        """Finds the paper's value by the keys that `paper` lists."""
        found: Any = self.published
        for key in column.get("paper", self.spec.get("paper", [])):
            found = found.get(key.format(**keys), {})
        return found if isinstance(found, str) else ""


def _is_counted(column: dict) -> bool:
    return "{here" in column["cell"]


def _bold(cell: _Cell, line: list[_Cell], lines: list[list[_Cell]]) -> str | None:
    """Returns the words of a cell, bold if it is the best of its line or column."""
    if not cell.column.get("bold") or cell.here is None:
        return cell.text
    others = line if "each" in cell.column else [one for each in lines for one in each]
    same = [one.here for one in others if one.column["number"] == cell.column["number"]]
    best = max(one.value for one in same if one is not None)
    return f"**{cell.text}**" if cell.here.value == best else cell.text


def _by_kind(cells: Cells, method: str | None) -> str:
    """Tokens per round by class of text, where there is more than one."""
    kinds = dict.fromkeys(one.get("kind") for one in cells.rows)
    if method is None or len(kinds) < 2:
        return ""
    by = {kind: cells.of(method, TOKENS, kind) for kind in kinds}
    return ", ".join(f"{kind} {one.value:.2f}" for kind, one in by.items() if one is not None)
