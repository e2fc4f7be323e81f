"""Stop strings before `min_tokens`, and those that contain the name of a special token."""

import numpy as np
import pytest
import tables

import jspec
from jspec.processors.grammar.spelling import TokenBytes
from jspec.processors.grammar.stops import stop_strings
from jspec.types import Status

TEXTS = ["a", "b", "c", "\n", "ab", "bc", "ca", "\n\n", "aab"]
NAMES = {9: b"<e>", 10: b"<i>"}
TOKENS = TokenBytes([*(text.encode() for text in TEXTS), None, None], NAMES)
SIZE, LIMIT, ROWS = len(TOKENS), 16, 6
MODEL = tables.Table(SIZE, context=64)
WEIGHTS = tables.logits(tables.distributions(np.random.default_rng(5), 1, SIZE, 1))
CALL = dict(
    prompt=[[row] for row in range(ROWS)], max_new_tokens=LIMIT, key=3,
    drafter=jspec.PromptLookup(num_speculative_tokens=3, whole=False),
    sampling=jspec.Sampling(temperature=np.array([0.0, 1.0, 1.5, 1.0, 2.0, 1.0])),
)  # fmt: skip


def first_stop(tokens, strings, least):
    """vLLM's rule: (tokens up to the stop, the text's bytes before the string), or None."""
    named = {n: name for n, name in NAMES.items() if any(name in s for s in strings)}
    text, shown = b"", []
    for count, token in enumerate(tokens, 1):
        before, name = len(text), named.get(token, b"")
        text += TOKENS[token] or name
        shown += [not name] * (len(text) - before)
        if count <= least:
            continue
        found = [
            (place + len(string), -len(string), place)
            for string in strings
            for place in range(len(text))
            if text.startswith(string, place) and place + len(string) > before
        ]
        if found:
            return count, sum(shown[: min(found)[2]])
    return None


@pytest.mark.parametrize(
    "strings",
    [["a<i>", "<e>\n", "cc"]]
    + [
        pytest.param(one, marks=pytest.mark.slow)
        for one in (["\n\n"], ["a"], ["aba", "bcab"], ["ab", "bc"])
    ],
)
def test_a_stop_string_ends_a_row_behind_min_tokens(strings):
    made = stop_strings(strings, TOKENS)
    never = stop_strings("ccccccccc\n\nccc", TOKENS)
    stopped = 0
    for key in range(2):
        for least in (np.array([0, 1, 2, 4, 7, 16]), 3):
            call = CALL | dict(key=key)
            ends = [jspec.Stopping(min_tokens=least, stop=stop) for stop in (never, made)]
            whole, found = (jspec.decode(MODEL, WEIGHTS, **call, stopping=one) for one in ends)
            for row in range(ROWS):
                tokens = whole.tokens[row].tolist()
                wait = least if isinstance(least, int) else int(least[row])
                stop = first_stop(tokens, [string.encode() for string in strings], wait)
                kept = found.tokens[row, : found.lengths[row]].tolist()
                assert kept == tokens[: len(kept)]
                assert (found.status[row] == Status.STOP) == (stop is not None)
                if stop is not None:
                    assert len(kept) == stop[0]
                    # A name is no text: what the detokeniser has of it is cut.
                    text = b"".join(TOKENS[token] or b"" for token in kept)
                    assert len(text) - int(found.stop_bytes[row]) == stop[1]
                    stopped += 1
    assert stopped > 5


def test_strings_are_passed_over_while_the_output_is_shorter():
    made = stop_strings("a", TOKENS)
    late, early = (
        jspec.decode(MODEL, WEIGHTS, **CALL, stopping=jspec.Stopping(min_tokens=least, stop=made))
        for least in (5, None)
    )
    assert (early.lengths < late.lengths).any()
