"""Grammars behind thoughts: every answer is thoughts and then a text of the grammar."""

import re

import numpy as np
import pytest

from jspec.processors.grammar import choices
from jspec.processors.grammar.thoughts import behind

# a b yes no, white space, three marks (the second reads as text too), an end token.
TOKENS = [b"a", b"b", b"yes", b"no", b"\n", None, b"</t>", None, None]
OPEN, CLOSE, MESSAGE, EOS = 5, 6, 7, 8
GRAMMAR = choices(["yes", "no", "a"], TOKENS)
FORM = "(?:2|3|0)"
THINK = OPEN, (CLOSE,), False
CASES = [
    (THINK, rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}4?)?{FORM}"),
    ((OPEN, (CLOSE,), True), rf"[^{CLOSE}]*{CLOSE}4?{FORM}"),
    # As Harmony: a channel, of which "1" is the final one, and its message.
    (
        (OPEN, (OPEN, 1, MESSAGE), False),
        rf"(?:{OPEN}(?:[^{OPEN}1][^{OPEN}]*{OPEN}|{OPEN})*1(?:[^{MESSAGE}])*{MESSAGE}4?)?{FORM}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lead", "pattern"), CASES)
def test_it_reads_what_an_expression_of_tokens_says(lead, pattern):
    made, rng = behind(GRAMMAR, lead, TOKENS), np.random.default_rng(0)
    table, classes = made.automaton.table, made.automaton.classes
    right = 0
    for _ in range(4000):
        text = rng.choice([0, 1, 2, 3, 4, OPEN, OPEN, CLOSE, MESSAGE], rng.integers(1, 7)).tolist()
        state = 0
        for token in text:
            state = table[state, classes[token]] if state >= 0 else -1
        wanted = bool(re.fullmatch(pattern, "".join(map(str, text))))
        assert (state >= 0 and bool(made.accepting[state])) == wanted, text
        right += wanted
    assert right > 5
    assert behind(GRAMMAR, None, TOKENS) is GRAMMAR
