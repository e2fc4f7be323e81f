"""JSON schemas that refer to themselves, written out to a depth at which they stop.

`outlines-core` writes references out itself, and leaves out what is too deep: what has to be there
is then missing, and the text is not a JSON of the schema. Here what needs the part that is too deep
goes with it: a branch of `anyOf`, a property that may be absent, the items of an array.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from jspec._validate.errors import InputError

_DEPTH = 3
"""Times that a reference is nested within itself."""
_MOST = 20_000
"""Schemas in all."""
_NOTHING = object()
"""A schema that nothing meets within the depth."""
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")


def unroll(schema: Any, what: str) -> Any:
    """Returns the schema without references to their own ancestors."""
    if not isinstance(schema, dict) or not _returns(schema, schema, {}):
        return schema
    result = _Unrolling(schema, what).of(schema, ())
    if result is _NOTHING:
        raise InputError(
            f"{what} refers to itself where it has to, without end, which nothing can meet; give "
            "it another choice"
        )
    return result


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas that a schema consists of, without definitions."""
    for key in _LISTS:
        yield from schema.get(key) or () if isinstance(schema.get(key), list) else ()
    if isinstance(properties := schema.get("properties"), dict):
        yield from properties.values()
    for key in ("items", "additionalProperties"):
        yield schema.get(key)


def _returns(root: Any, schema: Any, seen: dict[int, bool]) -> bool:
    """Returns True if some reference leads back to its own place."""
    if not isinstance(schema, dict):
        return False
    if id(schema) in seen:
        return not seen[id(schema)]
    seen[id(schema)] = False
    place = schema.get("$ref")
    if isinstance(place, str) and place.startswith("#"):
        back = _returns(root, target(root, place), seen)
    else:
        back = any(_returns(root, part, seen) for part in _parts(schema))
    seen[id(schema)] = True
    return back


def target(root: Any, place: str) -> Any:
    """Returns what a reference within the schema refers to; None: nothing, or it goes by a name."""
    if place != "#" and not place.startswith("#/"):
        return None
    for name in unquote(place).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and name.isdecimal() and int(name) < len(root):
            root = root[int(name)]
        elif isinstance(root, dict) and name in root:
            root = root[name]
        else:
            return None
    return root


class _Unrolling:
    """Writes one schema out."""

    def __init__(self, root: dict[str, Any], what: str):
        self._root, self._what = root, what
        self._count = 0

    def of(self, schema: Any, above: tuple[str, ...]) -> Any:
        """Returns a part, or `_NOTHING`; `above` are the references around it."""
        if not isinstance(schema, dict):
            return schema
        self._count += 1
        if self._count > _MOST:
            raise InputError(
                f"{self._what} has more than {_MOST} parts with its references written out; refer "
                "less"
            )
        place = schema.get("$ref")
        if isinstance(place, str) and place.startswith("#"):
            if above.count(place) >= _DEPTH:
                return _NOTHING
            if (referent := target(self._root, place)) is None:
                raise InputError(f"{self._what} refers to {place!r:.60}, which is not there")
            return self.of(referent, (*above, place))
        result = {
            key: value for key, value in schema.items() if key not in ("$defs", "definitions")
        }
        for key in _LISTS:
            if isinstance(parts := schema.get(key), list):
                entries = [self.of(part, above) for part in parts]
                result[key] = [part for part in entries if part is not _NOTHING]
                lost = len(entries) - len(result[key])
                if lost and (key in ("allOf", "prefixItems") or not result[key]):
                    return _NOTHING
        if isinstance(properties := schema.get("properties"), dict):
            entries = {name: self.of(part, above) for name, part in properties.items()}
            result["properties"] = {k: part for k, part in entries.items() if part is not _NOTHING}
            if not set(schema.get("required") or ()).isdisjoint(
                entries.keys() - result["properties"]
            ):
                return _NOTHING
        for key, min_key, max_key in (
            ("items", "minItems", "maxItems"),
            ("additionalProperties", "minProperties", "maxProperties"),
        ):
            if key in schema and (part := self.of(schema[key], above)) is not _NOTHING:
                result[key] = part
            elif key in schema:
                if schema.get(min_key):
                    return _NOTHING
                # Alongside named properties no others are written anyway.
                result |= {key: False} if "properties" in schema else {key: {}, max_key: 0}
        return result
