"""What a JSON schema may say, so that every text of its grammar is JSON of the schema.

`outlines-core` leaves out what it does not know: a text could break a bound that was asked for, or
be no JSON. Such a schema is refused by the keyword. The grammar may hold fewer texts than the
schema allows; it never holds others.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jspec.errors import InputError

_ORDER = ("properties", "allOf", "anyOf", "oneOf", "prefixItems", "enum", "const", "$ref", "type")
"""What decides how a schema is read: the first of these that it has."""
_BY_TYPE: Mapping[str, Collection[str]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": ("minDigits", "maxDigits"),
    "number": (),
    "boolean": (),
    "null": (),
    "array": ("items", "minItems", "maxItems"),
    "object": ("additionalProperties", "minProperties", "maxProperties"),
}
"""The bounds that are held, of each type."""
_HELD: Mapping[str, Collection[str]] = {
    # More properties are allowed and never written.
    "properties": ("type", "required", "additionalProperties", "unevaluatedProperties"),
    "prefixItems": ("type", "items", "additionalItems", "unevaluatedItems"),
    "enum": ("type",),
    "const": ("type",),
}
_BOUNDS = {
    "properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties",
    "propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains",
    "maxContains", "minItems", "maxItems", "uniqueItems",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType",
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const", "$ref", "type",
}  # fmt: skip
"""All keywords that bound what a text may be; any other says nothing about it."""
_FORMATS = ("date-time", "date", "uuid")
"""Those whose texts are JSON; the expressions of others hold quotation marks or backslashes."""
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
    "array": list, "object": dict,
}  # fmt: skip
_PLAIN = r'[^"\\\x00-\x1F\x7F-\x9F]'
"""The letters that stand for themselves in JSON text."""


def checked(schema: Any, what: str) -> Any:
    """The schema with patterns that hold JSON text alone.

    Args:
        schema: of a JSON text, or of a part of it.
        what: the words for the whole in messages.

    Raises:
        InputError: with the keyword, if the grammar would not hold it or nothing can meet it.

    Example:
        >>> checked({"type": "integer", "minimum": 1}, "the schema")
        Traceback (most recent call last):
            ...
        jspec.errors.InputError: the schema has 'minimum', which a grammar does not hold beside ...
    """
    if not isinstance(schema, dict):
        return schema  # true, false, and what is no schema: outlines-core says so
    kind = next((key for key in _ORDER if key in schema), None)
    _check_bounds(schema, kind, what)
    made = dict(schema)
    for key, part in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(part, dict):
            made[key] = {name: checked(one, what) for name, one in part.items()}
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(part, list):
            made[key] = [checked(one, what) for one in part]
        elif key in ("items", "additionalProperties"):
            made[key] = checked(part, what)
        elif key == "pattern" and isinstance(part, str):
            made[key] = json_text(part, what)
    return made


def _check_bounds(schema: Mapping[str, Any], kind: str | None, what: str) -> None:
    """Raises InputError unless everything that the schema asks for is held."""
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    if kind is None:
        held: set[str] = set()
    elif kind == "type":
        held = {"type"}.union(*(_BY_TYPE.get(name, ()) for name in names if isinstance(name, str)))
    else:
        held = {kind, *_HELD.get(kind, ())}
    for key in schema:
        value = schema[key]
        if key in _BOUNDS - held and not (value is None or value is False or value in ([], {})):
            raise InputError(
                f"{what} has {key!r}, which a grammar does not hold beside {kind!r}; leave it out"
            )
    for key in ("allOf", "anyOf", "oneOf", "enum", "type"):
        if schema.get(key) == []:
            raise InputError(f"{what} has an empty {key!r}, which nothing can meet; fill it")
    if kind == "allOf" and len(schema["allOf"]) > 1:
        raise InputError(f"{what} has 'allOf' of several parts; write them as one")
    if kind == "properties":
        unknown = [one for one in schema.get("required", ()) if one not in schema["properties"]]
        if unknown:
            raise InputError(f"{what} requires {unknown[0]!r:.60} and does not describe it")
    for low, high in (("minItems", "maxItems"), ("minDigits", "maxDigits")):
        if schema.get(low, 0) > schema.get(high, float("inf")):
            raise InputError(f"{what} has {low} above {high}, which nothing can meet")
    bounds = [key for key in ("pattern", "format") if key in schema]
    bounds += ["minLength"] if {"minLength", "maxLength"} & set(schema) else []
    if kind == "type" and len(bounds) > 1:
        raise InputError(f"{what} has {bounds[0]!r} and {bounds[1]!r}; a grammar holds one of them")
    if (kept := schema.get("format")) is not None and kept not in _FORMATS:
        raise InputError(f"{what} has the format {kept!r:.40}; a grammar holds {_FORMATS}")
    values = schema["enum"] if kind == "enum" else [schema["const"]] if kind == "const" else []
    for name in _names([schema["properties"] if kind == "properties" else {}, *values]):
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            raise InputError(f"{what} has the name {name!r:.60}, which JSON escapes; take another")
    if types is not None:
        for value in values:
            if not any(_is(value, name) for name in names):
                raise InputError(f"{what} has the value {value!r:.60}, which is no {types}")


def _names(values: Sequence[Any]) -> Iterator[str]:
    """The names in JSON values, but for those of the parts of properties."""
    for value in values:
        if isinstance(value, dict):
            yield from value
            yield from _names([part for part in value.values() if not isinstance(part, dict)])
        elif isinstance(value, list):
            yield from _names(value)


def _is(value: Any, name: Any) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _KINDS.get(name, ()))


def json_text(pattern: str, what: str) -> str:
    r"""A pattern that matches the same texts, but for those that JSON has to escape.

    Args:
        pattern: in the syntax of Rust's `regex`.
        what: the words for the schema in messages.

    Raises:
        InputError: if it asks for a quotation mark.

    Example:
        >>> print(json_text(r"a.[b-d]\d", "the schema").replace(_PLAIN, "PLAIN"))
        aPLAIN[[b-d]&&PLAIN][\d&&PLAIN]
    """
    made, place = [], 0
    while place < len(pattern):
        letter = pattern[place]
        if letter == '"':
            raise InputError(f"{what} has a pattern with a quotation mark; leave it out")
        end = place + 1
        if letter == "[":
            end = _end_of_class(pattern, place)
        elif letter == "\\":
            end = _end_of_escape(pattern, place)
        part = pattern[place:end]
        if letter == ".":
            part = _PLAIN
        elif letter == "[" or (letter == "\\" and part[1:2] not in ("b", "B", "A", "z")):
            part = f"[{part}&&{_PLAIN}]"
        made.append(part)
        place = end
    return "".join(made)


def _end_of_class(pattern: str, place: int) -> int:
    """The end of a class of letters, others within it."""
    depth, first = 0, False
    while place < len(pattern):
        letter = pattern[place]
        if letter == "\\":
            place = _end_of_escape(pattern, place)
            first = False
            continue
        if letter == "[":
            depth += 1
        elif letter == "]" and not first:
            depth -= 1
            if not depth:
                return place + 1
        # Right behind the opening, a closing bracket is a letter.
        first = letter == "[" or (first and letter == "^")
        place += 1
    return len(pattern)


def _end_of_escape(pattern: str, place: int) -> int:
    r"""The end of `\d`, `\x1F`, `\u{1F600}` or `\p{Greek}`."""
    end = place + 2
    if pattern[place + 1 : end] in ("x", "u", "U", "p", "P"):
        if pattern[end : end + 1] == "{":
            close = pattern.find("}", end)
            return len(pattern) if close < 0 else close + 1
        return end + {"x": 2, "u": 4, "U": 8}.get(pattern[place + 1], 1)
    return end
