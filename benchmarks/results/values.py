"""Values that the pages' data name: methods on common texts, their differences and ratios."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.results.cells import Cells
from benchmarks.results.observations import matching, observations

TOKENS = "tokens/calls"
Value = Any
"""An estimate, a number, words, or None where nothing was counted."""


def groups(spec: dict, keys: Sequence[str]) -> Iterator[tuple[dict[str, Any], list[dict]]]:
    """Yields the observations of a claim, table or picture, grouped by some keys.

    Groups are in the order in which `where` lists values, numbers rise, words are as they appear;
    with `appearing`, all groups are as they appear.
    """
    where = spec.get("where", {})
    by: dict[tuple, list[dict]] = {}
    for one in matching(observations(spec["rows"]), where):
        by.setdefault(tuple(one[key] for key in keys), []).append(one)
    ranks = []
    for place, key in enumerate(keys):
        found = where[key] if isinstance(where.get(key), list) else [each[place] for each in by]
        ranks.append({each: rank for rank, each in reversed(list(enumerate(found)))})
        if key not in where and all(isinstance(each, int | float) for each in found):
            ranks[-1] = {each: each for each in found}
    order = list(by)
    if not spec.get("appearing"):
        order.sort(key=lambda one: [rank[each] for rank, each in zip(ranks, one, strict=True)])
    for one in order:
        yield dict(zip(keys, one, strict=True)) | _names(by[one][0]), by[one]


def _names(row: dict) -> dict[str, Any]:
    return {key: one for key, one in row.items() if isinstance(one, str | int | float)}


def cells(spec: dict, found: list[dict]) -> Cells:
    """Returns the methods of a claim, table or picture, on the texts that they have in common."""
    return Cells(found, list(spec.get("methods", ())), spec.get("common"))


def value(spec: Any, found: Cells, measure: str = TOKENS, **how) -> Value:
    """Finds a number, a method's measure, or [value, "-" or "/", value]; None: not counted.

    Args:
        spec: the value as the data have it; with `row`, what the method's first row has of it.
        found: where methods are looked up.
        measure: of methods.
        **how: `named`, values by name; `kind` of the texts; `tree` of the method.
    """
    named = how.pop("named", {})
    if isinstance(spec, list):
        left, operator, right = spec
        one, other = (value(each, found, measure, named=named, **how) for each in (left, right))
        if one is None or other is None:
            return None
        return one - other if operator == "-" else one / other
    if isinstance(spec, dict) and "row" in spec:
        return found.row(spec["method"]).get(spec["row"])
    if isinstance(spec, dict):
        how = {"measure": measure} | how | spec
        return found.of(how.pop("method"), **how)
    if isinstance(spec, int | float) or spec in named:
        return named.get(spec, spec)
    return found.of(spec, measure, **how)


def named_values(spec: dict, found: Cells, names: dict[str, str]) -> dict[str, Value]:
    """Finds all named values of a claim or table; later ones may name earlier ones."""
    measure, made = spec.get("measure", TOKENS), {}
    for name, each in spec.get("values", {}).items():
        if isinstance(each, dict) and "best" in each:
            method = found.best(each["best"], measure)
            made[name] = found.of(method, measure) if method else None
            made[f"{name}_name"] = names.get(method or "", method)
        elif isinstance(each, dict) and "ranked" in each:
            by: dict[str, Any] = {m: found.of(m, measure) for m in each["ranked"]}
            by = {method: one for method, one in by.items() if one is not None}
            order = sorted(by, key=lambda m: by[m].value, reverse=True)
            made[name] = ", ".join(f"{names.get(m, m)} {by[m]}" for m in order)
        else:
            made[name] = value(each, found, measure, named=made)
    return made
