"""Schemas and their grammars by the official suite; the page says the same."""

import pytest
import schema_suite
from schema_suite import CASES, PAGE, accepts, count, spellings

pytest.importorskip("outlines_core")
QUICK = (
    *("const", "maxLength", "additionalProperties", "prefixItems", "bignum"),
    *("format date", "format date-time", "format uuid"),
)


def check(names):
    page = PAGE.read_text("utf-8")
    for name in names:
        found, wrong = count(name)
        assert not wrong, name
        assert found.row(name) in page, "the page is made by python -m schema_suite"


def test_grammars_hold_no_text_that_a_schema_refuses():
    check(QUICK)


@pytest.mark.slow
def test_grammars_of_the_whole_suite_hold_no_text_that_a_schema_refuses():
    check(CASES)


def test_texts_are_judged():
    made = schema_suite.json_schema({"const": ["é", 1]}, schema_suite.BYTES)
    assert any(accepts(made, text) for text in spellings(["é", 1]))
    assert not any(accepts(made, text) for text in spellings(["é", 2]))
