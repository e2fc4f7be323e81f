"""JSON schemas: checks that every text of the grammar is JSON of the schema.

`outlines-core` leaves out what it does not know: a text could break a bound that was asked for, or
be no JSON. Such a schema is refused by the keyword. The grammar may hold fewer texts than the
schema allows; it never holds others.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.processors.grammar.branches import check_apart
from jspec.processors.grammar.ecma_patterns import json_text
from jspec.processors.grammar.references import target

_ORDER = ("properties", "allOf", "anyOf", "oneOf", "prefixItems", "enum", "const", "$ref", "type")
"""Keywords that decide how a schema is read: the first of these that it has."""
_BY_TYPE: Mapping[str, Collection[str]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": (),
    "number": (),
    "boolean": (),
    "null": (),
    "array": ("items", "minItems", "maxItems"),
    "object": ("additionalProperties",),
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
    "minDigits", "maxDigits",  # of outlines-core, and not held by it
    "minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType",
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const", "$ref", "type",
}  # fmt: skip
"""All keywords that bound what a text may be; any other says nothing about it."""
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "uniqueItems": (False,),
    "required": ([],),
    "prefixItems": ([],),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), (0,)),
    **dict.fromkeys(("properties", "patternProperties"), ({},)),
    **dict.fromkeys(("dependentRequired", "dependentSchemas"), ({},)),
    **dict.fromkeys(("items", "additionalItems", "unevaluatedItems"), ({}, True)),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), ({}, True)),
}
"""Values with which a keyword has no effect at any place; None is one for most."""
_ENTRIES = {"items": "Items", "additionalProperties": "Properties"}
"""Keywords for the entries of arrays and objects, and for their number."""
_FEW = {"minProperties": 1, "maxProperties": 0}
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LEAST, _MOST = -(2**63), 2**64 - 1
"""The integers that are written as they are."""
_DATE = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_HOUR = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "date-time": rf"{_DATE}T{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR})",
    "uuid": "-".join(rf"[0-9a-fA-F]{{{size}}}" for size in (8, 4, 4, 4, 12)),
}
"""Days of years without a leap, times of RFC 3339 with their zone. The formats of
outlines-core take other digits than 0 to 9, and times without a zone; of other formats its texts
are not JSON.
"""
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
    "array": list, "object": dict,
}  # fmt: skip


def restrict_patterns(schema: Any, what: str, root: Any = None) -> Any:
    """Returns the schema with patterns that hold JSON text alone."""
    if not isinstance(schema, dict):
        if isinstance(schema, bool):
            raise InputError(f"{what} has the part {json.dumps(schema)}; describe what it holds")
        return schema  # what is not a schema: outlines-core says so
    root = schema if root is None else root
    kind = next((key for key in _ORDER if key in schema), None)
    if kind is None and not _BOUNDS & schema.keys():
        # outlines-core writes all kinds out, to texts that are not JSON inside objects.
        raise InputError(
            f"{what} has a part of any kind, {schema!r:.60}, which no automaton holds; give it "
            "a type"
        )
    _check_bounds(schema, kind, what)
    result = dict(schema)
    for key, part in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(part, dict):
            result[key] = {
                name: restrict_patterns(entry, what, root) for name, entry in part.items()
            }
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(part, list):
            result[key] = [restrict_patterns(entry, what, root) for entry in part]
            if key == "oneOf":
                check_apart(part, lambda place: target(root, place), what)
        elif key in _ENTRIES and part is not None and not isinstance(part, bool) and part != {}:
            result[key] = restrict_patterns(part, what, root)
        elif key in _ENTRIES and part is not None and kind == "type":
            # outlines-core reads neither what says nothing here nor what allows no entry.
            del result[key]
            if part is False and schema.get(f"min{_ENTRIES[key]}"):
                raise InputError(f"{what} has no {key} and a least number, which nothing can meet")
            if part is False:
                result[f"max{_ENTRIES[key]}"] = 0
        elif key == "pattern" and isinstance(part, str):
            result[key] = json_text(part, what)
        elif key == "format" and part is not None:
            result["pattern"] = f"(?:{_FORMATS[result.pop(key)]})"
    return result


def _check_bounds(schema: Mapping[str, Any], kind: str | None, what: str) -> None:
    """Raises InputError unless everything that the schema asks for is held."""
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    if kind is None:
        keywords: set[str] = set()
    elif kind == "type":
        keywords = {"type"}.union(
            *(_BY_TYPE.get(name, ()) for name in names if isinstance(name, str))
        )
    else:
        keywords = {kind, *_HELD.get(kind, ())}
    for key in _SIZES:
        if (size := schema.get(key)) is not None:
            check_integer(f"{key} of {what}", size, 0, None)
    if kind == "type" and names == ["object"]:
        # Of numbers of properties, outlines-core holds these alone.
        keywords |= {key for key, size in _FEW.items() if schema.get(key) == size}
    for key in schema:
        if key not in _BOUNDS - keywords or schema[key] in _NEUTRAL.get(key, ()):
            continue
        if schema[key] is not None or key in ("const", "enum"):
            raise InputError(
                f"{what} has {key!r}, which a grammar does not support with {kind!r}; leave it out"
            )
    for keyword, type_of_it in (("properties", "object"), ("prefixItems", "array")):
        if kind == keyword and types is not None and type_of_it not in names:
            raise InputError(
                f"{what} has {keyword!r} and is not an {type_of_it}; leave one of them out"
            )
    for key in ("allOf", "anyOf", "oneOf", "enum", "type"):
        if schema.get(key) == []:
            raise InputError(f"{what} has an empty {key!r}, which nothing can meet; fill it")
    if kind == "allOf" and len(schema["allOf"]) > 1:
        raise InputError(f"{what} has 'allOf' of several parts; write them as one")
    if kind == "properties":
        unknown = [
            entry for entry in schema.get("required", ()) if entry not in schema["properties"]
        ]
        if unknown:
            raise InputError(f"{what} requires {unknown[0]!r:.60} and does not describe it")
    for low, high in (("minItems", "maxItems"), ("minProperties", "maxProperties")):
        if (schema.get(low) or 0) > (math.inf if schema.get(high) is None else schema[high]):
            raise InputError(f"{what} has {low} above {high}, which nothing can meet")
    bounds = [key for key in ("pattern", "format") if key in schema]
    bounds += ["minLength"] if {"minLength", "maxLength"} & set(schema) else []
    if kind == "type" and len(bounds) > 1:
        raise InputError(f"{what} has {bounds[0]!r} and {bounds[1]!r}; a grammar holds one of them")
    if (text_format := schema.get("format")) is not None and text_format not in _FORMATS:
        raise InputError(
            f"{what} has the format {text_format!r:.40}; a grammar holds {', '.join(_FORMATS)}"
        )
    values = schema["enum"] if kind == "enum" else [schema["const"]] if kind == "const" else []
    for name in _names([schema["properties"] if kind == "properties" else {}, *values]):
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            raise InputError(f"{what} has the name {name!r:.60}, which JSON escapes; take another")
    for value in _numbers(values):
        if not _LEAST <= value <= _MOST:
            raise InputError(
                f"{what} has the number {value!r:.40}, which would be written as another; stay "
                f"within {_LEAST} .. {_MOST}"
            )
    if types is not None:
        for value in values:
            if not any(_is(value, name) for name in names):
                article = "an" if str(names[0])[0] in "aeio" else "a"
                raise InputError(f"{what} has the value {value!r:.60}, not {article} {types}")


def _numbers(value: Any) -> Iterator[int | float]:
    """Yields the numbers in a JSON value; NaN is not within any bounds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value if isinstance(value, int) or not math.isfinite(value) else 0
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _names(values: Sequence[Any]) -> Iterator[str]:
    """Yields the names in JSON values, except in the parts of properties."""
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
