"""Grammars of rows: a regular expression, a JSON schema or a choice of texts, over tokens."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jspec._validate.arguments import shorten
from jspec._validate.errors import InputError
from jspec._validate.kinds import to_utf8
from jspec.processors.grammar import byte_machine, references
from jspec.processors.grammar import schema as schemas
from jspec.processors.grammar.automaton import NONE, Bounds, TokenAutomaton, read_tokens
from jspec.processors.grammar.byte_machine import ByteMachine
from jspec.processors.grammar.masks import END, Grammar
from jspec.processors.grammar.spelling import token_bytes


def regex(
    pattern: str,
    tokenizer: Any,
    *,
    max_states: int = 20_000,
    max_megabytes: int = 256,
    max_seconds: float = 20.0,
) -> Grammar:
    """Returns the grammar of a regular expression, which all of the output matches.

    Args:
        pattern: in the syntax of Rust's `regex`: no lookaround, no references.
        tokenizer: see `jspec.grammar.token_bytes`.
        max_states: the most states of the automaton.
        max_megabytes: the most memory of its table.
        max_seconds: the most time to read the expression.

    Raises:
        InputError: if it is unreadable, too large, or not writable with this vocabulary.

    Example:
        >>> made = regex("[0-9]{1,3}", [b"1", b"23", b"x", None])  # doctest: +SKIP
        >>> made.automaton.table.shape  # doctest: +SKIP
        (4, 3)
    """
    if not isinstance(pattern, str):
        raise InputError(f"the regular expression is {pattern!r:.80}; pass text")
    what = f"the regular expression {pattern!r:.60}"
    machine = byte_machine.of_regex(pattern, what, max_states, max_seconds)
    return _grammar(machine, tokenizer, what, Bounds(max_states, max_megabytes))


def json_schema(
    schema: str | Mapping[str, Any],
    tokenizer: Any,
    *,
    max_states: int = 20_000,
    max_megabytes: int = 256,
    max_seconds: float = 20.0,
) -> Grammar:
    """Returns the grammar of the JSON texts of a schema.

    What `outlines-core` knows of JSON Schema holds: objects with their properties in the order of
    the schema, arrays, enums, `anyOf`, bounds of lengths, references, nested in themselves up to
    three times (`jspec.grammar.references`). There is at most one space between two parts. What it
    does not know, such as `minimum`, is refused: every text of the grammar is JSON of the schema.

    Args:
        schema: the schema, as JSON or as what `json.loads` makes of it.
        tokenizer: see `jspec.grammar.token_bytes`.
        max_states: the most states of the automaton.
        max_megabytes: the most memory of its table.
        max_seconds: the most time to read the schema.

    Raises:
        InputError: if not a schema, unmeetable, too large, or not writable with this vocabulary.
    """
    label = shorten(schema if isinstance(schema, str) else type(schema).__name__)
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        document = json.loads(text)
    except (ValueError, TypeError) as error:
        raise InputError(f"the JSON schema {label} is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"the JSON schema {label} is nested too deep; make it flatter") from None
    if not isinstance(document, dict):
        raise InputError(f"the JSON schema is {shorten(text)}; pass an object")
    what = f"the JSON schema {shorten(text)}"
    try:
        schema_text = json.dumps(schemas.restrict_patterns(references.unroll(document, what), what))
    except RecursionError:
        raise InputError(f"{what} is nested too deep; make it flatter") from None
    except (TypeError, AttributeError):
        raise InputError(
            f"{what} is not a schema: a keyword has a value of the wrong kind"
        ) from None
    machine = byte_machine.of_schema(schema_text, what, max_states, max_seconds)
    return _grammar(machine, tokenizer, what, Bounds(max_states, max_megabytes))


def choices(
    texts: Sequence[str], tokenizer: Any, *, max_states: int = 20_000, max_megabytes: int = 256
) -> Grammar:
    """Returns the grammar of a few texts, one of which the output is.

    Args:
        texts: one or more.
        tokenizer: see `jspec.grammar.token_bytes`.
        max_states: the most states of the automaton.
        max_megabytes: the most memory of its table.

    Raises:
        InputError: if there is none, one is empty, or they are too large or not writable.

    Example:
        >>> made = choices(["yes", "no"], [b"yes", b"n", b"o", b"no", None])
        >>> made.automaton.table[0, made.automaton.classes].tolist()
        [1, 2, -1, 1, -1]
        >>> made.accepting.tolist()
        [False, True, False]
    """
    if isinstance(texts, str) or not texts:
        raise InputError(f"the choices are {texts!r:.80}; pass a list of at least one text")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InputError(f"a choice is {text!r:.80}; pass text of at least one letter")
    rows: list[dict[int, int]] = [{}]
    final = len(rows)
    rows.append({})  # the state of all texts that nothing can follow
    ends = {final}
    spelled = sorted({to_utf8("a choice", text) for text in texts})
    what = f"the choices {list(texts)!r:.60}"
    for text, following in zip(spelled, [*spelled[1:], b""], strict=True):
        state, longer = 0, following.startswith(text)  # sorted, a longer one is the next
        for place, byte in enumerate(text, 1):
            if byte not in rows[state]:
                last = place == len(text)
                rows[state][byte] = final if last and not longer else len(rows)
                if not last or longer:
                    rows.append({})
                if len(rows) > max_states:
                    raise InputError(
                        f"the automaton of {what} has more than {max_states} states; make it "
                        "smaller, or raise max_states"
                    )
            state = rows[state][byte]
        ends.add(state)
    step = np.full((len(rows), 256), NONE, np.int32)
    for state, row in enumerate(rows):
        step[state, list(row)] = list(row.values())
    machine = ByteMachine(step, np.isin(np.arange(len(rows)), list(ends)))
    return _grammar(machine, tokenizer, what, Bounds(max_states, max_megabytes))


def _grammar(machine: ByteMachine, tokenizer: Any, what: str, bounds: Bounds) -> Grammar:
    tokens = token_bytes(tokenizer)
    automaton = read_tokens(machine.step, tokens, what, bounds)
    accepting = machine.accepting[automaton.origins]
    live = _can_end(automaton.table, accepting)
    if not live[0]:
        raise InputError(f"{what} can be written with no tokens of this vocabulary; take another")
    # A token after which no text can be finished is never allowed.
    table = np.where((automaton.table >= 0) & live[automaton.table], automaton.table, NONE)
    pruned = TokenAutomaton(table, automaton.classes, automaton.origins)
    return Grammar(what, pruned, accepting, _find_forced(machine, pruned, accepting, tokens))


def _can_end(
    table: Int[np.ndarray, "states classes"], accepting: Bool[np.ndarray, " states"]
) -> Bool[np.ndarray, " states"]:
    """Returns the states from which an accepting one can be reached."""
    # Imported where it is needed: to import jspec shall not take its time.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    size = len(table)
    before, column = np.nonzero(table >= 0)
    after = table[before, column]
    # Backwards from a node after all accepting states.
    ends = np.flatnonzero(accepting)
    heads = np.concatenate([after, np.full(len(ends), size)])
    tails = np.concatenate([before, ends])
    graph = csr_array((np.ones(len(heads), np.int8), (heads, tails)), shape=(size + 1, size + 1))
    reached = breadth_first_order(graph, size, return_predecessors=False)
    return np.isin(np.arange(size), reached)


def _find_forced(
    machine: ByteMachine,
    automaton: TokenAutomaton,
    accepting: Bool[np.ndarray, " states"],
    tokens: Sequence[bytes | None],
) -> Int[np.ndarray, " states"]:
    """Returns the token to draft in each state. Bytes are forced more often than tokens are:
    what one token spells several short ones spell too, and the longest is what a model mostly
    writes.
    """
    number = {text: token for token, text in enumerate(tokens) if text}
    longest = max(map(len, number), default=0)
    going = machine.step >= 0
    only = np.where(going.sum(1) == 1, going.argmax(1), NONE)
    forced = np.full(len(automaton.table), NONE, np.int32)
    for state, origin in enumerate(automaton.origins.tolist()):
        allowed = np.flatnonzero(automaton.table[state] >= 0)
        if accepting[state]:
            forced[state] = END if not len(allowed) else NONE
            continue
        spelled, best = bytearray(), NONE
        while len(spelled) < longest and only[origin] >= 0:
            spelled.append(only[origin])
            origin = machine.step[origin, only[origin]]
            best = number.get(bytes(spelled), best)
            if machine.accepting[origin]:
                break
        if best >= 0 and automaton.table[state, automaton.classes[best]] >= 0:
            forced[state] = best
        elif len(allowed) == 1 and (automaton.classes == allowed[0]).sum() == 1:
            forced[state] = np.flatnonzero(automaton.classes == allowed[0])[0]
    return forced
