"""Schemas whose texts could break them are refused by the keyword; the others hold JSON alone."""

import json

import pytest

from jspec.errors import InputError
from jspec.grammar.schema import checked, json_text

NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer", "minimum": 0}, "'minimum'"),
        ({"type": ["string", "integer"], "maximum": 9}, "'maximum'"),
        ({"type": "number", "multipleOf": 5}, "'multipleOf'"),
        ({"type": "array", "items": NULL, "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "array", "contains": NULL}, "'contains'"),
        ({"properties": {"a": NULL}, "minProperties": 1}, "'minProperties'"),
        ({"properties": {"a": NULL}, "anyOf": [NULL]}, "'anyOf'"),
        ({"properties": {"a": NULL}, "required": ["b"]}, "requires 'b'"),
        ({"properties": {'a"': NULL}}, "JSON escapes"),
        ({"type": "object", "patternProperties": {"^a": NULL}}, "'patternProperties'"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "holds one of them"),
        ({"type": "string", "pattern": 'a"'}, "quotation mark"),
        ({"type": "string", "format": "email"}, "'email'"),
        ({"type": "string", "contentEncoding": "base64"}, "'contentEncoding'"),
        ({"$ref": "#/$defs/a", "maxLength": 0, "$defs": {"a": {"type": "string"}}}, "'maxLength'"),
        ({"enum": [1], "const": 2}, "'const'"),
        ({"enum": []}, "empty 'enum'"),
        ({"anyOf": [NULL, {"oneOf": []}]}, "empty 'oneOf'"),
        ({"type": []}, "empty 'type'"),
        ({"allOf": [NULL, NULL]}, "'allOf' of several"),
        ({"type": "integer", "enum": ["a"]}, "which is no integer"),
        ({"type": "integer", "const": True}, "which is no integer"),
        ({"const": [{"a\n": 1}]}, "JSON escapes"),
        ({"type": "array", "items": NULL, "minItems": 3, "maxItems": 1}, "nothing can meet"),
        ({"if": NULL, "then": NULL}, "'if'"),
    ],
)
def test_what_is_not_held_is_refused_wherever_it_stands(schema, said):
    for whole in (
        schema,
        {"type": "array", "items": schema},
        {"properties": {"x": schema}},
        {"anyOf": [NULL, schema]},
        {"$ref": "#/$defs/x", "$defs": {"x": schema}},
    ):
        with pytest.raises(InputError, match=said):
            checked(whole, "the schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": NULL}, "required": ["a"]},
        {"properties": {"a": NULL}, "additionalProperties": False, "title": "A", "default": {}},
        {"properties": {"minimum": {"enum": [1, None, {"a": "é"}]}}},
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        {"type": "array", "items": NULL, "uniqueItems": False},
        {"type": "array", "prefixItems": [NULL], "items": False},
        {"type": "object", "additionalProperties": NULL, "maxProperties": 1},
        {"type": ["string", "null"], "minLength": 1},
        {"type": "string", "format": "date"},
        {"type": "string", "enum": ['a "word"']},
        {"oneOf": [NULL, {"const": 3.0}]},
        {"$ref": "#/$defs/a", "$defs": {"a": NULL}, "$schema": "x", "description": "y"},
    ],
)
def test_what_is_held_stays_as_it_is(schema):
    assert checked(schema, "the schema") == schema


def test_patterns_hold_letters_that_json_does_not_escape():
    made = pytest.importorskip("outlines_core")
    for pattern, texts, others in (
        ("a.c", ("abc", "aéc"), ('a"c', "a\\c", "a\nc", "ac")),
        ("[^a]+", ("xyz", "é"), ('x"', "\\", "a")),
        (r"\S\s\W", ("x -",), ('" -', "x\n-", 'x "')),
        (r"[ -~]{2}", ("ab", "[]"), ('""', "\\n")),
        (r"[]a]\.\]", ("].]", "a.]"), ("b.]",)),
        (r"[a[b-d]&&[^c]]\x41\p{Lu}\u{e9}", ("dAÉé",), ("cAÉé", "dAéé")),
        (r"(?:a|b){2}", ("ab",), ("abc",)),
    ):
        held = f'"{json_text(pattern, "the schema")}"'
        index = made.Index(held, made.Vocabulary(256, {bytes([b]): [b] for b in range(256)}))

        def fits(text, index=index):
            state = index.get_initial_state()
            for byte in f'"{text}"'.encode():
                state = index.get_next_state(state, byte) if state is not None else None
            return state is not None and index.is_final_state(state)

        for text in texts:
            assert fits(text), (pattern, text)
            assert json.loads(f'"{text}"') == text
        for text in others:
            assert not fits(text), (pattern, text)
