"""The method that `--method`, `--speculative-config` and `--draft-model` choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jspec import methods
from jspec._validate import plain_json
from jspec._validate.arguments import shorten
from jspec._validate.errors import InputError
from jspec.methods import BUNDLED, BUNDLED_DRAFT, COUPLED, DEFAULT, METHODS, Method


@dataclass(frozen=True)
class Choice:
    """A method and the options that were given for it."""

    method: Method
    options: Mapping[str, Any]

    @property
    def scheme(self) -> str:
        """The name of the scheme by which drafted tokens are verified."""
        return self.options.get("scheme", COUPLED)


def choose(method: str | None, config: str | None) -> Choice:
    """Returns the choice that the command line describes."""
    options = {} if config is None else _parse(config)
    name = options.pop("method", None)
    if name is not None and not isinstance(name, str):
        raise InputError(f"method in --speculative-config is {shorten(name)}; pass a name")
    if name is not None and method is not None and name != method:
        raise InputError(
            f"--method is {method} and --speculative-config says {name}; give one, or the same"
        )
    description = methods.describe(method or name or DEFAULT)
    return Choice(description, description.check(options))


def draft_model(choice: Choice, model: str | None, path: str | None) -> str | None:
    """Returns the draft model to load, if the method needs one."""
    name = choice.method.name
    if path is None and not choice.method.needs_draft_model:
        return None
    if not (choice.method.needs_draft_model or choice.method.takes_draft_model):
        users = [
            name
            for name, method in METHODS.items()
            if method.needs_draft_model or method.takes_draft_model
        ]
        raise InputError(
            f"--draft-model is {shorten(path)} and method {name} uses none; leave it out "
            f"(choose one of {', '.join(users)})"
        )
    if path is None and model in (None, BUNDLED):
        return BUNDLED_DRAFT
    if path is None:
        raise InputError(
            f"method {name} needs a draft model and none was given; "
            "pass --draft-model with a folder or a hub id"
        )
    return path


def _parse(config: str) -> dict[str, Any]:
    example = """'{"method": "prompt_lookup", "num_speculative_tokens": 10}'"""
    try:
        parsed = plain_json.parse(config)
    except ValueError as error:
        raise InputError(
            f"--speculative-config is {shorten(config)}, which is not JSON ({error}); "
            f"pass an object such as {example}"
        ) from error
    if not isinstance(parsed, dict):
        raise InputError(
            f"--speculative-config is {shorten(parsed)}; pass a JSON object such as {example}"
        )
    return parsed
