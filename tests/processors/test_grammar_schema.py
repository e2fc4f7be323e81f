"""Schemas that a grammar cannot hold are refused by keyword; the others hold JSON alone."""

import json
import re

import pytest

from jspec._validate.errors import InputError
from jspec.processors.grammar import references
from jspec.processors.grammar.ecma_patterns import json_text
from jspec.processors.grammar.references import unroll
from jspec.processors.grammar.schema import restrict_patterns

NULL = {"type": "null"}
PARTS = references._parts


def test_unsupported_keywords_are_refused_at_any_place():
    cases = [
        ({"type": "integer", "minimum": 0}, "'minimum'"),
        ({"type": "array", "items": NULL, "uniqueItems": True}, "'uniqueItems'"),
        ({"properties": {"a": NULL}, "anyOf": [NULL]}, "'anyOf'"),
        ({"properties": {"a": NULL}, "required": ["b"]}, "requires 'b'"),
        ({"properties": {'a"': NULL}}, "JSON escapes"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "holds one of them"),
        ({"type": "string", "pattern": 'a"'}, "quotation mark"),
        ({"type": "string", "format": "email"}, "'email'"),
        ({"$ref": "#/$defs/a", "maxLength": 0, "$defs": {"a": {"type": "string"}}}, "'maxLength'"),
        ({"enum": [1], "const": 2}, "'const'"),
        ({"enum": []}, "empty 'enum'"),
        ({"anyOf": [NULL, {"oneOf": []}]}, "empty 'oneOf'"),
        ({"type": []}, "empty 'type'"),
        ({"allOf": [NULL, NULL]}, "'allOf' of several"),
        ({"type": "integer", "enum": ["a"]}, "not an integer"),
        ({"type": "integer", "const": True}, "not an integer"),
        ({"const": [{"a\n": 1}]}, "JSON escapes"),
        ({"type": "array", "items": NULL, "minItems": 3, "maxItems": 1}, "nothing can meet"),
        # outlines-core writes one property more, and one fewer.
        ({"type": "object", "additionalProperties": NULL, "maxProperties": 1}, "'maxProperties'"),
        ({"type": "object", "minProperties": 1, "maxProperties": 0}, "nothing can meet"),
        ({"anyOf": [NULL], "const": False}, "'const'"),
        ({"enum": [None], "const": None}, "'const'"),
        ({"anyOf": [NULL], "additionalProperties": False}, "'additionalProperties'"),
        ({"type": "string", "properties": {"a": NULL}}, "'properties' and is not an object"),
        ({"type": "object", "prefixItems": [NULL]}, "'prefixItems' and is not an array"),
        ({"type": "string", "minLength": 2.0}, "minLength of the schema is 2.0"),
        ({"type": "string", "maxLength": True}, "maxLength of the schema is True"),
        ({"type": "array", "items": NULL, "minItems": -1}, "minItems of the schema is -1"),
        ({"const": 2**64}, "the number 18446744073709551616, which would be written as another"),
        ({"enum": [{"a": [float("nan")]}]}, "the number nan"),
        ({"type": "string", "pattern": "a\nb"}, "which JSON escapes"),
        ({"type": "string", "pattern": "a)|(b"}, "a parenthesis without its other one"),
        # What Rust knows and ECMA-262 does not, or reads otherwise.
        ({"type": "string", "pattern": "(?i)k"}, "which ECMA-262 does not know"),
        ({"type": "string", "pattern": "a(?s-u:.)"}, "s-u:., which ECMA-262 does not know"),
        ({"type": "string", "pattern": r"\Aa"}, "A., which ECMA-262 does not know"),
        ({"type": "string", "pattern": r"\<a"}, "<., which ECMA-262 does not know"),
        ({"type": "string", "pattern": "a{,3}"}, "'{,', which ECMA-262 does not know"),
        ({"type": "string", "pattern": r"a\B"}, "B, which no grammar holds"),
        ({"type": "string", "pattern": "[a[b-d]&&[^c]]"}, r"'\[' in a class"),
        ({"type": "string", "pattern": "[a--b]"}, "'--' in a class"),
        ({"type": "string", "pattern": "[]a]"}, "an empty class"),
    ]
    for schema, said in cases:
        for whole in (
            schema,
            {"type": "array", "items": schema},
            {"properties": {"x": schema}},
            {"anyOf": [NULL, schema]},
            {"$ref": "#/$defs/x", "$defs": {"x": schema}},
        ):
            with pytest.raises(InputError, match=said):
                restrict_patterns(whole, "the schema")


def test_patterns_hold_letters_that_json_does_not_escape():
    made = pytest.importorskip("outlines_core")
    for pattern, texts, others in (
        ("a.c", ("abc", "aéc"), ('a"c', "a\\c", "a\nc", "ac")),
        ("[^a]+", ("xyz", "é"), ('x"', "\\", "a")),
        (r"\S\s\W", ("x -",), ('" -', "x\n-", 'x "')),
        (r"[ -~]{2}", ("ab", "[]"), ('""', "\\n")),
        (r"[\]a]\.\]", ("].]", "a.]"), ("b.]",)),
        (r"[ab-d]\x41\p{Lu}\u{e9}", ("dAÉé",), ("eAÉé", "dAéé")),
        # What ECMA-262 means, and not Rust: any digit, letter or space is one there.
        (r"\d{4}", ("2026",), ("٢٠٢٦",)),
        (r"\w+", ("aZ_9",), ("ü", "a\u0301")),
        (r"a\sb", ("a\u2003b", "a\ufeffb"), ("a\u0085b", "a\u180eb")),
        (r"\D\W\S", ("ü-x", "٣٣٣"), ("3-x", "xax", "x- ")),
        (r"[^\d]", ("٣", "a"), ("3",)),
        (r"[\w.-]+@[^\W_]+", ("a.b-c@d",), ("ä@d", "a@_")),
        (r"a\b.b", ("a-b", "aéb"), ("a_b",)),
        ("a.c", ("a\u0085c".replace("\u0085", "-"),), ("a\u2028c",)),
        (r"(?:a|b){2}", ("ab",), ("abc",)),
        ("a|b", ("a", "b"), ('a"', "ab")),
        ("^a|b$", ("a", "b"), ("ab",)),
        (r"^a\$", ("a$",), ("a",)),
        (r"[(]\)", ("()",), ("",)),
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


LIST = {"properties": {"v": NULL, "n": {"anyOf": [NULL, {"$ref": "#"}]}}, "required": ["v", "n"]}
KIDS = {"type": "array", "items": {"$ref": "#/$defs/tree~1"}}
TREE = {
    "$ref": "#/$defs/tree~1",
    "$defs": {"tree/": {"properties": {"kids": KIDS}, "required": ["kids"]}},
}


def test_recursive_schemas_end_with_whole_texts():
    cases = [
        (
            LIST,
            ('{"v":null,"n":null}', '{"v":null,"n":{"v":null,"n":{"v":null,"n":null}}}'),
            ('{"v":null,}', '{"v":null}', '{"v":null,"n":{"v":null,"n":{"v":null,}}}'),
        ),
        (
            TREE,
            ('{"kids":[]}', '{"kids":[{"kids":[]},{"kids":[{"kids":[]}]}]}'),
            ("{}", '{"kids":[{}]}', '{"kids":[{"kids":[{}]}]}'),
        ),
        (
            {"properties": {"n": {"$ref": "#"}, "v": NULL}, "required": ["v"]},
            ('{"v":null}', '{"n":{"v":null},"v":null}'),
            ("{}", '{"n":{},"v":null}'),
        ),
        (
            {"type": "object", "additionalProperties": {"$ref": "#"}},
            ("{}", '{"a":{"b":{}}}'),
            ('{"a":null}', '{"a":}'),
        ),
    ]
    for schema, texts, others in cases:
        made = pytest.importorskip("outlines_core")
        held = json.dumps(restrict_patterns(unroll(schema, "the schema"), "the schema"))
        pattern = made.json_schema.build_regex_from_schema(held)
        for text in texts:
            assert re.fullmatch(pattern, text), text
        for text in others:
            assert not re.fullmatch(pattern, text), text


CAT, DOG = (
    {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
    for kind in ("cat", "dog")
)


def test_branches_of_oneof_are_apart_or_refused():
    cases = [
        ([{"type": "string"}, {"type": "integer"}, NULL], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"const": 1}, {"enum": [2, "a"]}, {"type": "boolean"}], True),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"const": [1]}, {"const": [1.0]}], False),
        ([{"enum": ["a"]}, {"type": "string", "pattern": "b"}], False),
        ([CAT, DOG], True),
        ([CAT, {**DOG, "required": []}], False),
        # Values that are not objects match both; a grammar has none, and their schemas refuse them.
        ([{"properties": DOG["properties"], "required": ["kind"]}, CAT], False),
        ([{"properties": DOG["properties"]}, {"type": "string"}], False),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], True),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/cat"}], False),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "elsewhere"}], False),
        ([{"anyOf": [CAT, NULL]}, {"allOf": [DOG]}], True),
        ([{"anyOf": [CAT, NULL]}, {"type": ["string", "null"]}], False),
    ]
    for branches, apart in cases:
        for schema in ({"oneOf": branches}, {"type": "array", "items": {"oneOf": branches}}):
            whole = {**schema, "$defs": {"cat": CAT, "dog": DOG}}
            if apart:
                assert restrict_patterns(whole, "the schema") == whole
            else:
                with pytest.raises(InputError, match="'oneOf' and a text may have both its"):
                    restrict_patterns(whole, "the schema")


def test_schemas_without_entries_or_of_any():
    one = {"type": "array", "items": False, "maxItems": 3}
    assert restrict_patterns(one, "the schema") == {"type": "array", "maxItems": 0}
    assert restrict_patterns({"type": "array", "items": {}}, "the schema") == {"type": "array"}
    for schema, said in (
        ({"properties": {"a": {}}}, "has a part of any kind, {}, which no automaton holds"),
        ({"anyOf": [NULL, {"title": "a"}]}, "has a part of any kind"),
        ({"properties": {"a": True}}, "has the part true; describe what it holds"),
        ({"type": "array", "items": False, "minItems": 1}, "which nothing can meet"),
        ({"oneOf": [{"const": n} for n in range(600)]}, "'oneOf' of 600 parts; write 512 at most"),
    ):
        with pytest.raises(InputError, match=said):
            restrict_patterns(schema, "the schema")


def test_schemas_without_recursion_stay():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": NULL, "b": LIST}}
    assert unroll(schema, "the schema") is schema
    # Nor is a part gone through twice: here there are 2^60 ways to the last one.
    chain = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)}
    schema = {"$ref": "#/$defs/0", "$defs": chain | {"60": NULL}}
    assert unroll(schema, "the schema") is schema
    # By a name and not by a place, which is for outlines-core to refuse.
    named = {"properties": {"a": {"$ref": "#name"}}}
    assert unroll(named, "the schema") is named


def test_unrepresentable_schemas_are_refused():
    cases = [
        ({"properties": {"n": {"$ref": "#"}}, "required": ["n"]}, "refers to itself"),
        ({"$ref": "#"}, "refers to itself"),
        ({"anyOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"items": {"$ref": "#"}, "minItems": 1}, "refers to itself"),
        ({"properties": {"n": {"$ref": "#"}, "m": {"$ref": "#/$defs/x"}}}, "which is not there"),
        ({"properties": {name: {"$ref": "#"} for name in "abcdefghijklmnopqrstuvwxyzABC"}}, "more"),
    ]
    for schema, said in cases:
        with pytest.raises(InputError, match=said):
            unroll(schema, "the schema")


def test_references_are_followed_once_however_they_are_spelled(monkeypatch):
    seen = []
    monkeypatch.setattr(references, "_parts", lambda one: seen.append(1) or PARTS(one))
    spelled = [f"#/$defs/{'%61' * n}{'a' * (12 - n)}" for n in range(12)]
    schema = {
        "$defs": {"a" * 12: {"anyOf": [{"enum": [n]} for n in range(50)]}},
        "anyOf": [{"$ref": place} for place in spelled],
    }
    assert unroll(schema, "the schema") is schema
    assert len(seen) == 52, "the root, what all refer to, and its parts"


def test_parts_are_walked_once_however_deep_references_begin(monkeypatch):
    seen = []
    monkeypatch.setattr(references, "_parts", lambda one: seen.append(1) or PARTS(one))
    deep = {"anyOf": [{"enum": [n]} for n in range(50)]}
    for _ in range(20):
        deep = {"items": deep}
    places = ["#/$defs/a" + "/items" * depth for depth in range(20)]
    schema = {"$defs": {"a": deep}, "anyOf": [{"$ref": place} for place in places]}
    assert unroll(schema, "the schema") is schema
    assert len(seen) == 1 + 20 + 51
