"""`--method` and `--speculative-config`: which method, with which options."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jspec.app import options
from jspec.app.methods import DEFAULT, METHODS, Method
from jspec.app.text import shown


@dataclass(frozen=True)
class Choice:
    """A method and the options that were given for it."""

    method: Method
    options: Mapping[str, Any]


def choose(method: str | None, config: str | None) -> Choice:
    """The choice that the command line describes.

    Args:
        method: `--method`, if given.
        config: `--speculative-config`, if given: a JSON object as in vLLM, the method and its
            options by name.

    Raises:
        ValueError: if a name is unknown, a value is of the wrong kind, or the two disagree.
    """
    given = {} if config is None else _parse(config)
    named = given.pop("method", None)
    if named is not None and not isinstance(named, str):
        raise ValueError(f"method in --speculative-config is {shown(named)}; pass a name")
    if named is not None and method is not None and named != method:
        raise ValueError(
            f"--method is {method} and --speculative-config says {named}; give one, or the same"
        )
    name = method or named or DEFAULT
    if name not in METHODS:
        raise options.unknown("method", name, METHODS)
    chosen = METHODS[name]
    known = {option.name: option for option in chosen.options}
    for key in given:
        if key not in known:
            raise options.unknown(f"--speculative-config key of {name}", key, ["method", *known])
    return Choice(chosen, {key: known[key].read(value) for key, value in given.items()})


def check_draft_model(choice: Choice, draft_model: str | None) -> None:
    """Raises ValueError if a draft model was given in vain or is missing."""
    name = choice.method.name
    if choice.method.needs_draft_model and draft_model is None:
        raise ValueError(
            f"method {name} needs a draft model and none was given; "
            "pass --draft-model with a folder or a hub id"
        )
    if draft_model is not None and not choice.method.needs_draft_model:
        users = [method.name for method in METHODS.values() if method.needs_draft_model]
        others = f"choose one of {', '.join(users)}" if users else "no method takes one yet"
        raise ValueError(
            f"--draft-model is {shown(draft_model)} and method {name} uses none; leave it out "
            f"({others})"
        )


def _parse(config: str) -> dict[str, Any]:
    example = """'{"method": "prompt_lookup", "num_speculative_tokens": 10}'"""
    try:
        parsed = json.loads(config)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise ValueError(
            f"--speculative-config is {shown(config)}, which is no JSON ({error}); "
            f"pass an object such as {example}"
        ) from error
    if not isinstance(parsed, dict):
        raise ValueError(
            f"--speculative-config is {shown(parsed)}; pass a JSON object such as {example}"
        )
    return parsed
