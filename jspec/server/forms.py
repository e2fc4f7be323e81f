"""The forms that answers are to have, and the texts that end them, as automata."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jspec import grammar
from jspec.errors import InputError
from jspec.grammar.stops import StopStrings, stop_strings
from jspec.server.errors import APIError
from jspec.server.schemas import AsJSON

_KEPT = 64
"""Grammars and stop strings that are kept once they are made."""
_SECONDS = 10.0
"""In which a grammar has to be read."""


@dataclass(frozen=True)
class Bounds:
    """What a row has room for.

    Args:
        max_model_len: most tokens of a row, prompt and answer.
        max_logprobs: most likeliest tokens that are kept beside each; None: no log-probabilities.
        grammar_states: most states of a grammar; 0: there are no grammars.
        grammar_classes: most classes of tokens of one.
        stop_states: most states of stop strings.
        stop_classes: most classes of tokens of them.
        penalties: whether there is room for penalties, biases and a minimal length.
    """

    max_model_len: int
    max_logprobs: int | None
    grammar_states: int
    grammar_classes: int
    stop_states: int
    stop_classes: int
    penalties: bool = True


class Forms:
    """Makes automata, and keeps them; from any thread.

    Args:
        spelled: the bytes of each token.
        bounds: what a row has room for.
    """

    def __init__(self, spelled: Sequence[bytes | None], bounds: Bounds):
        self._spelled = spelled
        self._bounds = bounds
        self._grammar_of = lru_cache(_KEPT)(self._make_grammar)
        self._stop_of = lru_cache(_KEPT)(self._make_stop)

    def made(
        self, stops: Sequence[str], form: Any
    ) -> tuple[grammar.Grammar | None, StopStrings | None]:
        """The automata of a request.

        Args:
            stops: the texts that end an answer.
            form: a `StructuredOutputs`, an `AsJSON`, or the schema of a call; None: any text.

        Raises:
            APIError: 400, if there is no room for one, or none can be made.
        """
        param, kind, text = _form(form)
        found = stop = None
        try:
            if kind is not None:
                found = self._grammar_of(kind, text)
        except InputError as error:
            raise APIError(400, str(error), param) from None
        try:
            if stops:
                stop = self._stop_of(tuple(stops))
        except InputError as error:
            raise APIError(400, str(error), "stop") from None
        return found, stop

    def _make_grammar(self, kind: str, text: Any) -> grammar.Grammar:
        bounds = self._bounds
        if not bounds.grammar_states:
            raise InputError(
                "grammars are switched off on this server; start it with --max-grammar-states"
            )
        within: dict[str, Any] = {"max_states": bounds.grammar_states}
        if kind != "choices":
            within["max_seconds"] = _SECONDS
        known = getattr(grammar, kind)(text, self._spelled, **within)
        _check_room(known, bounds.grammar_states, bounds.grammar_classes, known.what)
        return known

    def _make_stop(self, strings: tuple[str, ...]) -> StopStrings:
        known = stop_strings(strings, self._spelled)
        bounds = self._bounds
        _check_room(known, bounds.stop_states, bounds.stop_classes, "all stop strings together")
        return known


def _form(form: Any) -> tuple[str, str | None, Any]:
    """The field that asks for a form, the maker of `jspec.grammar`, and what it is given."""
    if form is None:
        return "", None, None
    if isinstance(form, str):
        return "tools", "json_schema", form
    if isinstance(form, AsJSON):
        return "response_format", "json_schema", json.dumps(form.json_schema.schema_)
    if form.json_ is not None:
        text = form.json_ if isinstance(form.json_, str) else json.dumps(form.json_)
        return "structured_outputs", "json_schema", text
    if form.regex is not None:
        return "structured_outputs", "regex", form.regex
    return "structured_outputs", "choices", tuple(form.choice)


def _check_room(made: Any, states: int, classes: int, what: str) -> None:
    size = made.automaton.table.shape
    if size[0] > states or size[1] > classes:
        raise InputError(
            f"the automaton of {what} has {size[0]} states and {size[1]} classes of tokens, and a "
            f"row of this server has room for {states} and {classes}; make it smaller"
        )
