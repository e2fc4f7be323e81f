"""Branches of `oneOf` that no text has both of."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from jspec._validate.errors import InputError

_TYPES = frozenset({"string", "number", "boolean", "null", "array", "object"})
_DEEPEST = 16
"""Schemas in schemas that are gone through; deeper ones may hold anything."""
_MOST = 512
"""Branches, each two of which are looked at."""
Follow = Callable[[str], Any]


def check_apart(branches: Sequence[Any], follow: Follow, what: str) -> None:
    """Raises InputError unless types, constants or a property keep each two apart."""
    if len(branches) > _MOST:
        raise InputError(f"{what} has 'oneOf' of {len(branches)} parts; write {_MOST} at most")
    for (first, schema), (second, other) in combinations(enumerate(branches), 2):
        if not _apart(schema, other, follow, 0):
            raise InputError(
                f"{what} has 'oneOf' and a text may have both its branches {first} and {second}; "
                "write 'anyOf', or give each a type or a required property of one value"
            )


def _apart(schema: Any, other: Any, follow: Follow, depth: int) -> bool:
    """Returns whether it can be told that no value is of both."""
    if depth == _DEEPEST:
        return False
    schema, other = _meant(schema, follow, depth), _meant(other, follow, depth)
    if not isinstance(schema, Mapping) or not isinstance(other, Mapping):
        return False
    for this, that in ((schema, other), (other, schema)):
        for key in ("anyOf", "oneOf"):
            if isinstance(parts := this.get(key), list):
                return all(_apart(part, that, follow, depth + 1) for part in parts)
    if not _types(schema) & _types(other):
        return True
    values, other_values = _values(schema), _values(other)
    if values is not None and other_values is not None:
        return values.isdisjoint(other_values)
    mine, theirs = schema.get("properties"), other.get("properties")
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
        return False
    if schema.get("type") != "object" or other.get("type") != "object":
        return False  # both hold whatever is not an object
    always = set(schema.get("required") or ()) & set(other.get("required") or ())
    return any(
        _apart(mine[name], theirs[name], follow, depth + 1)
        for name in always & mine.keys() & theirs.keys()
    )


def _meant(schema: Any, follow: Follow, depth: int) -> Any:
    """Returns a schema behind references and lists of one."""
    for _ in range(_DEEPEST - depth):
        if not isinstance(schema, Mapping):
            break
        if isinstance(place := schema.get("$ref"), str):
            schema = follow(place)
        elif isinstance(parts := schema.get("allOf"), list) and len(parts) == 1:
            schema = parts[0]
        else:
            break
    return schema


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    if (values := _values(schema)) is not None:
        return frozenset(_type(json.loads(value)) for value in values)
    value = schema.get("type")
    names = value if isinstance(value, list) else [value]
    types = {"number" if name == "integer" else str(name) for name in names}
    return frozenset(types) if types <= _TYPES else _TYPES


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    """Returns the values that a schema lists, as canonical text; None without a list."""
    if "const" in schema:
        return {_text(schema["const"])}
    return (
        {_text(value) for value in schema["enum"]} if isinstance(schema.get("enum"), list) else None
    )


def _text(value: Any) -> str:
    """Spells a value; numbers are equal by their value: 1 is 1.0 in JSON."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str):
        return "string"
    return (
        "number"
        if isinstance(value, int | float)
        else "array"
        if isinstance(value, list)
        else "object"
    )
