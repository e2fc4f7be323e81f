"""What a schema allows and its grammar holds, by the official suite; the page says the same."""

import pytest
import schema_suite
from schema_suite import CASES, PAGE, accepts, count, spellings

pytest.importorskip("outlines_core")
QUICK = ("const", "maxLength", "additionalProperties", "prefixItems", "bignum")


def check(names):
    for name in names:
        found, wrong = count(name)
        assert not wrong, name
        row = found.row(name)
        assert row in PAGE.read_text("utf-8"), f"{name}: make the page by python -m schema_suite"


def test_no_grammar_holds_a_text_that_its_schema_refuses():
    check(QUICK)


@pytest.mark.slow
def test_nor_does_any_other_of_the_suite():
    check(set(CASES) - {*QUICK})


def test_texts_are_judged():
    made = schema_suite.json_schema({"const": ["é", 1]}, schema_suite.BYTES)
    assert any(accepts(made, text) for text in spellings(["é", 1]))
    assert not any(accepts(made, text) for text in spellings(["é", 2]))
