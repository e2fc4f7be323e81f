"""Settings of `jspec bench`, checked before anything is loaded and without JAX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jspec import methods
from jspec._validate import plain_json
from jspec._validate.errors import InputError
from jspec.methods import DEFAULT, METHODS
from jspec.sessions import method_choice
from jspec.sessions.method_choice import Choice
from jspec.sessions.run_settings import RunSettings

PLAIN = "plain decoding"
"""The name of what everything is compared with."""

_USUAL = (DEFAULT, "token_recycling", "prompt_lookup")
_OF_DRAFT_MODELS = ("coupled_tree",)


@dataclass(frozen=True)
class BenchSettings:
    """The settings of a bench besides models, methods and questions."""

    run: RunSettings
    repeats: int = 3
    limit: int | None = None
    turns: int = 1
    cold: bool = False
    raw: bool = False

    def __post_init__(self):
        for name, value in (
            ("--repeats", self.repeats),
            ("--limit", self.limit),
            ("--turns", self.turns),
        ):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; pass at least 1")


@dataclass(frozen=True)
class BenchOptions:
    """The measurements asked for on the command line."""

    model: str | None
    """None is the bundled model."""
    draft_model: str | None
    head: str | None
    dtype: str | None
    """None is the device's default."""
    kv_dtype: str | None
    """Of keys and values; None: `dtype`."""
    choices: Mapping[str, Choice]
    """The methods, by the label of their column."""
    settings: BenchSettings


def choices(
    names: str | None, configs: Sequence[str], head: str | None, draft_model: str | None
) -> dict[str, Choice]:
    """Returns the methods to measure, by the label of their column."""
    if names is None:
        usual = (*_USUAL, *_OF_DRAFT_MODELS) if draft_model else _USUAL
        method_names = () if configs else tuple(dict.fromkeys(usual))
    else:
        method_names = tuple(name.strip() for name in names.split(",") if name.strip())
    if not method_names and not configs:
        raise InputError(f"--methods is {names!r}; name one or more of {', '.join(METHODS)}")
    by_label: dict[str, Choice] = {}
    for name in method_names:
        method = methods.describe(name)
        option_names = {option.name for option in method.options}
        options = {"head": head} if head is not None and "head" in option_names else {}
        _put(by_label, Choice(method, method.check(options)), head)
    for config in configs:
        if (parsed := json_object(config)) is not None and "method" not in parsed:
            raise InputError(
                f'--speculative-config is {config} and names no method; add "method": "suffix", say'
            )
        _put(by_label, method_choice.choose(None, config), head)
    if head is not None and not any("head" in choice.options for choice in by_label.values()):
        raise InputError(
            f"--head is {head!r} and {_none_of(by_label)} has a head; add eagle2 to --methods, say"
        )
    return by_label


def json_object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object of a text, or None if it is not one."""
    try:
        parsed = plain_json.parse(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def draft_model(by_label: dict[str, Choice], model: str | None, name: str | None) -> str | None:
    """Returns the draft model to load, if a method needs one."""
    for choice in by_label.values():
        is_used = choice.method.takes_draft_model and name is not None
        if choice.method.needs_draft_model or is_used:
            return method_choice.draft_model(choice, model, name)
    if name is not None:
        raise InputError(
            f"--draft-model is {name!r} and {_none_of(by_label)} uses one; add "
            "coupled_tree to --methods, say, or leave it out"
        )
    return None


def _none_of(by_label: Mapping[str, Choice]) -> str:
    return f"none of {', '.join(by_label)}" if by_label else "not plain decoding"


def _put(by_label: dict[str, Choice], choice: Choice, head: str | None) -> None:
    """Adds a method under the label of its options; options of `--head` are not in it."""
    # The baseline is there in any case.
    if not choice.method.drafts:
        return
    usual = {"head": head}
    options = {
        name: value for name, value in choice.options.items() if usual.get(name, ...) != value
    }
    label = choice.method.name
    if options:
        label += " " + ", ".join(f"{name}={value}" for name, value in options.items())
    by_label[label] = choice
