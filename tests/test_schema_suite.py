"""What a schema allows and its grammar holds, by the official suite; the page says the same."""

import pytest
import schema_suite
from schema_suite import CASES, PAGE, accepts, count, spellings

pytest.importorskip("outlines_core")
QUICK = ("const", "maxLength", "additionalProperties", "prefixItems", "minProperties", "bignum")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_no_grammar_holds_a_text_that_its_schema_refuses(name):
    found, wrong = count(name)
    assert not wrong
    assert found.row(name) in PAGE.read_text("utf-8"), "the page is made by python -m schema_suite"


def test_texts_are_judged():
    made = schema_suite.json_schema({"const": ["é", 1]}, schema_suite.BYTES)
    assert any(accepts(made, text) for text in spellings(["é", 1]))
    assert not any(accepts(made, text) for text in spellings(["é", 2]))
