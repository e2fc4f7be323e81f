"""Requests of all kinds, and what `jspec.decode` answers to each alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import jspec
from jspec.models import Loaded
from jspec.models.detokenise import Detokeniser
from jspec.processors import grammar

TEXTS = Path(__file__).resolve().parents[1] / "texts.txt"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Tom", "Lily", "Ben"]},
        "pet": {"enum": ["dog", "cat", "small bird"]},
        "happy": {"type": "boolean"},
    },
    "required": ["name", "pet", "happy"],
}
FORMS: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"regex": "(yes|no)( and (yes|no)){0,3}"},
    {"choice": ["a dog", "a cat", "a small bird"]},
]
STOPS = [["."], ["the", "\n"]]
SEEDS = [0, 1, -7, 2**40]
_BATCH = 16
_HEAD = 40
"""Words."""


@dataclass(frozen=True)
class Ask:
    """A request, as the API has it and as numbers."""

    body: dict[str, Any]
    prompt: list[int]
    request: jspec.Request
    form: int | None
    """Its form among `FORMS`."""
    stop: int | None
    """Its stop strings among `STOPS`."""
    stream: bool
    leaves_after: int | None
    """The client goes away after so many events of the stream; None: it stays."""


def mixed(count: int, target: Loaded, name: str, seed: int, room: int) -> list[Ask]:
    """Requests of mixed lengths, samplings, seeds and forms; some clients go away.

    Args:
        count: how many.
        target: the model.
        name: as requests write it.
        seed: of the mixture.
        room: most tokens of prompt and answer.
    """
    words = TEXTS.read_text("utf-8").split()
    rng = np.random.default_rng(seed)
    return [_one(rng, words, target, name, room) for _ in range(count)]


def _one(rng: np.random.Generator, words: list[str], target: Loaded, name: str, room: int) -> Ask:
    begin = int(rng.integers(len(words) // 2))
    text = " ".join(words[begin : begin + int(rng.integers(2, 60))])
    if rng.random() < 0.3:  # some begin alike, as behind a system prompt
        text = " ".join([*words[-_HEAD:], text])
    prompt = target.tokenizer.encode(text).ids[: room // 2]
    form = int(rng.integers(len(FORMS))) if rng.random() < 0.25 else None
    stop = int(rng.integers(len(STOPS))) if form is None and rng.random() < 0.25 else None
    limit = 64 if form is not None else int(rng.integers(1, min(64, room // 2)))
    chosen: dict[str, Any] = {"max_tokens": limit, "seed": int(rng.choice(SEEDS))}
    if rng.random() < 0.4:
        chosen["temperature"] = 0.0
    else:
        chosen["temperature"] = float(rng.choice([0.6, 1.0]))
        chosen["top_p"] = float(rng.choice([0.8, 1.0]))
        chosen["top_k"] = int(rng.choice([0, 20]))
        chosen["min_p"] = float(rng.choice([0.0, 0.05]))
    if rng.random() < 0.25:
        chosen["repetition_penalty"] = 1.25
        chosen["frequency_penalty"] = 0.5
        chosen["presence_penalty"] = -0.25
        chosen["min_tokens"] = 3 if form is None else 0
        chosen["logit_bias"] = {int(rng.integers(300, 600)): -50.0}
    request = jspec.Request(**chosen)
    stream = bool(rng.random() < 0.4)
    body = {"model": name, "prompt": prompt, "stream": stream, **chosen}
    if form is not None:
        body["structured_outputs"] = FORMS[form]
    if stop is not None:
        body["stop"] = STOPS[stop]
    leaves = int(rng.integers(0, 4)) if stream and rng.random() < 0.2 else None
    return Ask(body, prompt, request, form, stop, stream, leaves)


def answers(target: Loaded, asks: Sequence[Ask], room: int) -> list[str]:
    """Returns what `jspec.decode` answers, without drafts, some requests at a time.

    All batches are one program: each holds all forms and stop strings, in rows that write nothing.

    Args:
        target: the model.
        asks: the requests.
        room: most tokens of a prompt.
    """
    spelled = grammar.token_bytes(target.tokenizer)
    forms = [_made(form, spelled) for form in FORMS]
    stops = [jspec.stop_strings(strings, spelled) for strings in STOPS]
    found = []
    for begin in range(0, len(asks), _BATCH):
        found += _batch(target, asks[begin : begin + _BATCH], forms, stops, room)
    return found


def _made(form: dict[str, Any], spelled: Sequence[bytes | None]) -> jspec.grammar.Grammar:
    if "json" in form:
        return grammar.json_schema(form["json"], spelled)
    if "regex" in form:
        return grammar.regex(form["regex"], spelled)
    return grammar.choices(form["choice"], spelled)


def _batch(
    target: Loaded,
    asks: Sequence[Ask],
    forms: Sequence[jspec.grammar.Grammar],
    stops: Sequence[Any],
    room: int,
) -> list[str]:
    """Returns the texts of some requests, in a batch with all forms and stop strings."""
    idle = [
        jspec.Request(
            max_tokens=0, eos=target.eos, repetition_penalty=1.1, frequency_penalty=0.1,
            presence_penalty=0.1, logit_bias={0: 1.0}, min_tokens=1, temperature=1.0, seed=0,
            grammar=form, stop=stop,
        )
        for form, stop in zip_longest(forms, stops)
    ]  # fmt: skip
    rows = [
        replace(
            ask.request, eos=target.eos,
            grammar=None if ask.form is None else forms[ask.form],
            stop=None if ask.stop is None else stops[ask.stop],
        )
        for ask in asks
    ]  # fmt: skip
    rows += [idle[0]] * (_BATCH - len(asks)) + idle
    prompt, lengths = np.zeros((len(rows), room), np.int32), np.ones(len(rows), np.int32)
    for place, ask in enumerate(asks):
        prompt[place, : len(ask.prompt)], lengths[place] = ask.prompt, len(ask.prompt)
    model, params = target.model, target.params
    result = jspec.decode(model, params, prompt, lengths, request=rows, max_new_tokens=64)
    texts, stop_bytes = [], result.stop_bytes
    assert stop_bytes is not None, "some rows have stop strings"
    for place, ask in enumerate(asks):
        tokens = result.tokens[place, : result.lengths[place]].tolist()
        row = Detokeniser(target.tokenizer, ask.prompt)
        status, stops_of = int(result.status[place]), ask.request.stop_token_ids
        texts.append(row.finish(tokens, int(stop_bytes[place]), status, stops_of))
    return texts
