"""Grammars and stop strings of requests, compiled to automata."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jspec._validate.errors import InputError
from jspec.models.reasoning import Lead
from jspec.processors import grammar
from jspec.processors.grammar.stops import StopStrings
from jspec.request import Room
from jspec.serve.automaton_maker import AutomatonMaker
from jspec.serve.errors import APIError
from jspec.serve.limits import ServerLimits
from jspec.serve.schemas import AsJSON, AsObject
from jspec.serve.workers import Patience

_KEPT = 64
"""Grammars that are kept once they are made, and as many stop strings."""


def _any_object() -> str:
    """Returns the schema of `json_object`: as deep as 1,024 states hold."""
    plain = [{"type": kind} for kind in ("string", "number", "boolean", "null")]

    def lists(entry: Any) -> Any:
        return {"type": "array", "items": entry}

    def objects(entry: Any) -> Any:
        return {"type": "object", "additionalProperties": entry}

    flat = {"anyOf": plain}
    rows = lists({"anyOf": [*plain, objects(flat)]})
    inner = objects({"anyOf": [*plain, lists(flat)]})
    return json.dumps(objects({"anyOf": [*plain, rows, inner]}))


_OBJECT = _any_object()


@dataclass(frozen=True)
class FormSpec:
    """The automata that a request asks for."""

    stops: tuple[str, ...] = ()
    kind: str | None = None
    text: Any = None
    param: str = ""
    lead: Lead | None = None


Automata = tuple[grammar.Grammar | None, StopStrings | None]


class Forms:
    """Makes automata, and keeps them; from any thread."""

    def __init__(self, spelled: Sequence[bytes | None], room: Room, limits: ServerLimits):
        self._room = room
        self._limits = limits
        self._spelled = spelled
        self.maker = AutomatonMaker(spelled, limits.form_megabytes)
        self._lock = threading.Lock()
        self._grammars: OrderedDict[Any, grammar.Grammar] = OrderedDict()
        self._stops: OrderedDict[Any, StopStrings] = OrderedDict()

    def warm_up(self) -> None:
        """Starts the process that others are forked from, and in a thread the grammar that each
        `json_object` has, which takes seconds.
        """
        self.maker.warm_up()

        def make() -> None:
            patience = Patience(self._limits.form_seconds)
            with suppress(APIError):  # no room for it, or the server ends
                self.make(FormSpec(kind="json_schema", text=_OBJECT), patience)

        if self._room.grammar is not None:
            threading.Thread(target=make, name="jspec-json-object", daemon=True).start()

    def specify(self, stops: Sequence[str], form: Any, lead: Lead | None = None) -> FormSpec:
        """Returns what a request asks for, by its size."""
        param, kind, text = _form(form)
        limit = self._limits.form_kilobytes * 1024
        size = sum(map(len, text)) if kind == "choices" else len(text or "")
        if size > limit:
            raise APIError(
                400, f"{param} has a form of {size} letters, and the server takes {limit}; make it "
                "smaller, or start the server with more --form-kilobytes", param,
            )  # fmt: skip
        if kind is not None and self._room.grammar is None:
            raise APIError(
                400, "grammars are switched off on this server; start it with --max-grammar-states",
                param,
            )  # fmt: skip
        return FormSpec(tuple(stops), kind, text, param, lead)

    def find(self, spec: FormSpec) -> Automata | None:
        """Returns the automata, if none has to be made."""
        automaton = stop = None
        with self._lock:
            if spec.kind is not None:
                automaton = _look_up(self._grammars, (spec.kind, spec.text, spec.lead))
            if spec.stops:
                stop = _look_up(self._stops, spec.stops)
        missing = (spec.kind is not None and automaton is None) or (spec.stops and stop is None)
        return None if missing else (automaton, stop)

    def make(self, spec: FormSpec, patience: Patience) -> Automata:
        """Returns the automata."""
        automaton: Any = None
        stop: Any = None
        room = self._room
        if spec.kind is not None:
            key = *(source := (spec.kind, spec.text)), spec.lead
            cache = self._grammars
            automaton = self._one(cache, key, source, room.grammar, "grammar", spec.param, patience)
        if spec.stops:
            source = "stops", spec.stops
            stop = self._one(self._stops, spec.stops, source, room.stop, "stop", "stop", patience)
        return automaton, stop

    def _one(
        self,
        cache: "OrderedDict[Any, Any]",
        key: Any,
        source: tuple[str, Any],
        room: grammar.Capacity | None,
        option: str,
        param: str,
        patience: Patience,
    ) -> Any:
        """Returns one automaton, of those that are kept or a new one."""
        assert room is not None, "without room it is refused before"
        with self._lock:
            if (entry := _look_up(cache, key)) is not None:
                return entry
        try:
            (automaton,) = self.maker.make([(*source, room.states)], patience)
            if isinstance(automaton, grammar.Grammar):
                automaton = grammar.behind(automaton, key[-1], self._spelled)
            _check_room(automaton, room, option)
        except InputError as error:
            # The library's words for what is an option here.
            message = str(error)
            for phrase, here in (
                ("raise max_states", f"--max-{option}-states"),
                ("let this process take more memory", "--form-megabytes"),
            ):
                message = message.replace(phrase, f"start the server with more {here}")
            raise APIError(400, message, param) from None
        with self._lock:
            cache[key] = automaton
            while len(cache) > _KEPT:
                cache.popitem(last=False)
        return automaton


def _look_up(cache: "OrderedDict[Any, Any]", key: Any) -> Any:
    if (entry := cache.get(key)) is not None:
        cache.move_to_end(key)
    return entry


def _form(form: Any) -> tuple[str, str | None, Any]:
    """Returns the field that asks for a grammar, its maker, and its argument."""
    if form is None:
        return "", None, None
    if isinstance(form, str):
        return "tools", "json_schema", form
    if isinstance(form, AsObject):
        return "response_format", "json_schema", _OBJECT
    if isinstance(form, AsJSON):
        return "response_format", "json_schema", json.dumps(form.json_schema.schema_)
    if form.json_object:
        return "structured_outputs", "json_schema", _OBJECT
    if form.json_ is not None:
        text = form.json_ if isinstance(form.json_, str) else json.dumps(form.json_)
        return "structured_outputs", "json_schema", text
    if form.regex is not None:
        return "structured_outputs", "regex", form.regex
    return "structured_outputs", "choices", tuple(form.choice)


def _check_room(automaton: Any, room: grammar.Capacity, option: str) -> None:
    size, states, classes = automaton.automaton.table.shape, room.states, room.classes
    if size[0] > states or size[1] > classes:
        what = "all stop strings together" if option == "stop" else automaton.what
        raise InputError(
            f"the automaton of {what} has {size[0]} states and {size[1]} classes of tokens, and a "
            f"row of this server has room for {states} and {classes}; make it smaller, or start "
            f"the server with more --max-{option}-states and --max-{option}-classes"
        )
