"""The official JSON-Schema-Test-Suite against grammars: schemas supported, and their texts.

PYTHONPATH=.:tests python -m schema_suite        # the table of docs/api/json_schemas.md
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jspec._validate.errors import InputError
from jspec.processors.grammar import Grammar, json_schema

CASES = json.loads((Path(__file__).parent / "json_schema_suite.json").read_text("utf-8"))["cases"]
PAGE = Path(__file__).parents[1] / "docs/api/json_schemas.md"
READ = {"type", "properties", "allOf", "anyOf", "oneOf", "prefixItems", "enum", "const", "$ref"}
KINDS: dict[str, Any] = {"string": str, "array": list, "object": dict}
BYTES = [bytes([byte]) for byte in range(256)]


@dataclass
class Count:
    """Results for the schemas of a file of the suite, and for their texts."""

    held: int = 0
    refused: int = 0
    written: int = 0
    """Right texts that the grammar holds."""
    left_out: int = 0
    """Right texts that it does not."""

    def row(self, name: str) -> str:
        """A row of the table, without its last column."""
        return f"| `{name}` | {self.held} | {self.refused} | {self.written} | {self.left_out} |"


def accepts(grammar: Grammar, text: str) -> bool:
    """Returns whether a text is one of a grammar over bytes."""
    state, automaton = 0, grammar.automaton
    for byte in text.encode():
        state = automaton.table[state, automaton.classes[byte]]
        if state < 0:
            return False
    return bool(grammar.accepting[state])


def spellings(value: Any) -> Iterator[str]:
    """A JSON value as text, with spaces and without, with escapes and without."""
    for separators in ((",", ":"), (", ", ": ")):
        yield json.dumps(value, separators=separators)
        spelled = json.dumps(value, separators=separators, ensure_ascii=False)
        if not re.search("[\ud800-\udfff]", spelled):
            yield spelled


def count(name: str) -> tuple[Count, list[str]]:
    """The result for a file's schemas, and what is wrong: texts that are held and may not be.

    Args:
        name: of the file.
    """
    found, wrong = Count(), []
    for case in CASES[name]:
        grammars = []
        for kind, schema in typed(case["schema"]):
            with suppress(InputError):
                grammars.append((kind, json_schema(json.dumps(schema), BYTES, max_seconds=900)))
        found.held += bool(grammars)
        found.refused += not grammars
        for description, value, right in case["tests"]:
            for kind, made in grammars:
                valid = right and (kind is None or isinstance(value, KINDS[kind]))
                held = any(accepts(made, text) for text in spellings(value))
                if held and not valid:
                    wrong.append(f"{name}, {case['description']}, {kind}: {description}")
                elif valid:
                    found.written += held
                    found.left_out += not held
    return found, wrong


def typed(schema: Any) -> Iterator[tuple[str | None, Any]]:
    """Yields a schema, with each type in turn if it has none, since grammars need a type."""
    yield None, schema
    if isinstance(schema, dict) and not READ & schema.keys():
        for kind in KINDS:
            yield kind, {**schema, "type": kind}


if __name__ == "__main__":
    for name in CASES:
        found, wrong = count(name)
        print(found.row(name), *wrong, flush=True)  # why, is written by hand
