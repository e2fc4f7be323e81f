"""Grammars that begin behind what a model thinks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jspec.processors.grammar.automaton import NONE, TokenAutomaton
from jspec.processors.grammar.masks import Grammar

if TYPE_CHECKING:
    from jspec.models.reasoning import Lead


def behind(made: Grammar, lead: "Lead | None", tokens: Sequence[bytes | None]) -> Grammar:
    """Returns a grammar of what follows thoughts, or of the whole answer if it opens none.

    Thoughts are any tokens but an end. One token of white space may follow them.
    """
    if lead is None:
        return made
    old, marks = made.automaton, list(dict.fromkeys((lead.opening, *lead.closing)))
    # Marks and white space have classes of their own.
    kinds = np.zeros(len(old.classes), np.int64)
    kinds[[number for number, text in enumerate(tokens) if text and text.isspace()]] = 1
    kinds[marks] = np.arange(len(marks)) + 2
    width = len(marks) + 2
    pairs, classes = np.unique(old.classes * width + kinds, return_inverse=True)
    kinds, was = pairs % width, pairs // width
    kind = {token: number for number, token in enumerate(marks, 2)}
    # The first state if thoughts are yet to be opened, one for each closing token, the state
    # behind these, and the grammar's own.
    first, size = int(not lead.inside), len(lead.closing)
    space = first + size
    own = np.where(old.table[:, was] >= 0, old.table[:, was] + space + 1, NONE)
    rows = [own[:1]] * first
    for place, token in enumerate(lead.closing):
        # Any other channel's name leads back; a name that fits may have words behind it.
        row = np.full((1, len(pairs)), first + (0 if place == 1 else place))
        row[:, kinds == kind[lead.closing[0]]] = first + (size > 1)
        row[:, kinds == kind[token]] = first + place + 1
        rows.append(row)
    if first:
        rows[0] = np.where(
            kinds == kind[lead.opening], rows[1][:, kinds == kind[lead.opening]][:, :1], own[:1]
        )
    rows.append(np.where(kinds == 1, space + 1, own[:1]))
    table = np.concatenate([*rows, own]).astype(np.int32)
    before = np.zeros(space + 1, np.int32)
    return Grammar(
        made.what,
        TokenAutomaton(table, classes.astype(np.int32), np.concatenate([before, old.origins])),
        np.concatenate([before > 0, made.accepting]),
        np.concatenate([before + NONE, made.forced]),
    )
