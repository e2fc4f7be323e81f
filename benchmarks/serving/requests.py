"""Requests of all kinds, and what `jspec.decode` answers to each alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jspec
from jspec import processors
from jspec.models import Loaded
from jspec.models.detokenise import Detokeniser
from jspec.processors import grammar
from jspec.serve.jobs import RowSettings

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
    settings: RowSettings
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
    chosen: dict[str, Any] = {"limit": limit, "seed": int(rng.choice(SEEDS))}
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
    settings = RowSettings(**chosen)
    stream = bool(rng.random() < 0.4)
    body = {"model": name, "prompt": prompt, "stream": stream, "max_tokens": limit, **chosen}
    del body["limit"]
    if form is not None:
        body["structured_outputs"] = FORMS[form]
    if stop is not None:
        body["stop"] = STOPS[stop]
    leaves = int(rng.integers(0, 4)) if stream and rng.random() < 0.2 else None
    return Ask(body, prompt, settings, form, stop, stream, leaves)


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
    found = [""] * len(asks)
    for seed in SEEDS:  # a call has one
        places = [place for place, ask in enumerate(asks) if ask.settings.seed == seed]
        for begin in range(0, len(places), _BATCH):
            part = places[begin : begin + _BATCH]
            texts = _batch(target, [asks[place] for place in part], forms, stops, room, seed)
            for place, text in zip(part, texts, strict=True):
                found[place] = text
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
    seed: int,
) -> list[str]:
    size = _BATCH + max(len(forms), len(stops))
    missing = size - len(asks)
    rows = [ask.settings for ask in asks] + [RowSettings()] * missing
    prompt = np.zeros((size, room), np.int32)
    lengths, limits = np.ones(size, np.int32), np.zeros(size, np.int32)
    for place, ask in enumerate(asks):
        prompt[place, : len(ask.prompt)] = ask.prompt
        lengths[place], limits[place] = len(ask.prompt), ask.settings.limit
    grammars = [None if ask.form is None else forms[ask.form] for ask in asks]
    stopped = [None if ask.stop is None else stops[ask.stop] for ask in asks]

    def each(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows])

    result = jspec.decode(
        target.model,
        target.params,
        prompt,
        lengths,
        max_new_tokens=64,
        stopping=jspec.Stopping(
            max_tokens=limits,
            min_tokens=each("min_tokens"),
            eos=target.eos,
            stop=stopped + [None] * (missing - len(stops)) + [*stops],
        ),
        sampling=jspec.Sampling(*map(each, ("temperature", "top_k", "top_p", "min_p"))),
        key=seed,
        row_ids=np.zeros(size, np.int32),
        processors=[
            processors.repetition_penalty(each("repetition_penalty")),
            processors.frequency_penalty(each("frequency_penalty")),
            processors.presence_penalty(each("presence_penalty")),
            processors.logit_bias([row.logit_bias for row in rows]),
            grammars + [None] * (missing - len(forms)) + [*forms],
        ],
    )
    texts, stop_bytes = [], result.stop_bytes
    assert stop_bytes is not None, "some rows have stop strings"
    for place, ask in enumerate(asks):
        tokens = result.tokens[place, : result.lengths[place]].tolist()
        row = Detokeniser(target.tokenizer, ask.prompt)
        status, stops = int(result.status[place]), ask.settings.stop_token_ids
        texts.append(row.finish(tokens, int(stop_bytes[place]), status, stops))
    return texts
