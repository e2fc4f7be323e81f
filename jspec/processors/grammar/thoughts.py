"""Grammars that begin behind what a model thinks."""

from collections.abc import Sequence

import numpy as np

from jspec.processors.grammar.automaton import NONE, TokenAutomaton
from jspec.processors.grammar.masks import Grammar


def behind(
    grammar: Grammar,
    lead: tuple[int, tuple[int, ...], bool] | None,
    tokens: Sequence[bytes | None],
) -> Grammar:
    """Returns a grammar of what follows thoughts, or of the whole answer if it opens none.

    Args:
        grammar: of the answer.
        lead: the token that opens thoughts, those that close them in their order, and whether the
            prompt has opened them; None: the model does not think.
        tokens: the bytes of each token, of `token_bytes`.
    """
    if lead is None:
        return grammar
    opening, closing, is_open = lead
    old, marks = grammar.automaton, list(dict.fromkeys((opening, *closing)))
    kind = {token: number for number, token in enumerate(marks, 2)}
    kinds = np.array([1 if text and text.isspace() else 0 for text in tokens])
    kinds[marks] = list(kind.values())
    # A class of tokens is divided by what they are to thoughts.
    pairs, classes = np.unique(old.classes * 8 + kinds, return_inverse=True)
    kinds = pairs % 8
    # States: the first, if thoughts may open; one for each closing token; the one behind all.
    first, size = int(not is_open), len(closing)
    again, space = first + (size > 1), first + size
    body = np.where(old.table[:, pairs // 8] >= 0, old.table[:, pairs // 8] + space + 1, NONE)
    inner = again if opening == closing[0] else first
    rows = [np.where(kinds == kind[opening], inner, body[0])] * first
    for place, token in enumerate(closing):
        # The name of another channel leads back; behind the right one there may be more words.
        row = np.where(kinds == kind[closing[0]], again, first + place * (place != 1))
        rows.append(np.where(kinds == kind[token], first + place + 1, row))
    rows.append(np.where(kinds == 1, space + 1, body[0]))
    before = np.zeros(len(rows), np.int32)
    table = np.concatenate([rows, body]).astype(np.int32)
    origins = np.concatenate([before, old.origins])
    return Grammar(
        grammar.what,
        TokenAutomaton(table, classes.astype(np.int32), origins),
        np.concatenate([before > 0, grammar.accepting]),
        np.concatenate([before + NONE, grammar.forced]),
    )
