"""Every drafting method by its name, with defaults that fit the device.

A program gets with `build` what the command line gets with `--method`. `jspec methods` prints this.
JAX is imported when a drafter's options are asked for or it is built, not before.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec._validate.options import Option, unknown
from jspec.methods.llm import LLM, Completions
from jspec.methods.method import BUNDLED, BUNDLED_DRAFT, Method
from jspec.methods.registry import DEFAULT, GONE, METHODS

if TYPE_CHECKING:
    from jspec.models import Loaded

__all__ = [
    "BUNDLED",
    "BUNDLED_DRAFT",
    "DEFAULT",
    "LLM",
    "METHODS",
    "Completions",
    "Method",
    "Option",
    "build",
    "describe",
    "names",
]


def names() -> tuple[str, ...]:
    """Returns the names of all methods.

    Returns:
        The names that `build` and `--method` take, in the order of `jspec methods`.

    Example:
        >>> from jspec import methods
        >>> "token_recycling" in methods.names()
        True
    """
    return tuple(METHODS)


def describe(name: str) -> Method:
    """Returns the entry of one method: what it drafts, what it needs, and its options.

    Args:
        name: one of `names()`.

    Returns:
        The `Method`, which has `summary`, `options`, `needs_draft_model` and `needs_training`.

    Raises:
        InputError: if no method has that name, or none any more.

    Example:
        >>> from jspec import methods
        >>> methods.describe("coupled_tree").needs_draft_model
        True
        >>> [option.name for option in methods.describe("rsd_c").options]
        ['branching', 'scheme', 'draft_temperature', 'widths']
    """
    if name in GONE:
        raise InputError(f"method {name} is gone; use {GONE[name]}")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def build(
    name: str,
    target: "Loaded | str | Path",
    *,
    draft: "Loaded | str | Path | None" = None,
    **options: Any,
) -> LLM:
    """Builds the drafter of a method for a target, and gives both as one object that decodes.

    Options that are not given have the defaults of the command line: trees that the default device
    scores cheaply, and for a bundled target the bundled head or draft model. The costs of rounds
    are a guess; `jspec.costs.measure` knows them.

    Args:
        name: one of `names()`. "auto" is what is recommended.
        target: the model that is to be decoded from: what `jspec.models.load` takes or gives, or
            for a model of your own `jspec.models.Loaded(model, params)`.
        draft: the draft model of a method that needs one, likewise. If it is not given, the bundled
            draft model serves every target that has its vocabulary.
        options: the fields of `describe(name).options`. They are checked as `--speculative-config`
            is.

    Returns:
        The target with its drafter, the policy and what it knows.

    Raises:
        InputError: if the method or an option is unknown, a value is of the wrong kind or out of
            range, or the method needs what is not there. Nothing has been compiled then.

    Example:
        >>> import jspec
        >>> llm = jspec.methods.build("prompt_lookup", "jspec-800k", num_speculative_tokens=4)
        >>> llm.drafter.num_speculative_tokens
        4
        >>> answers = llm.decode(["Once upon a time", "The"], max_new_tokens=8)  # doctest: +SKIP
        >>> model = jspec.testing.PrefixLM()  # a model that jspec has not loaded
        >>> llm = jspec.methods.build("auto", jspec.models.Loaded(model, model.init()))
        >>> llm.decode([[1, 2, 1, 2, 1]], max_new_tokens=8).result.tokens.shape  # doctest: +SKIP
        (1, 8)
    """
    return describe(name).build(target, draft, **options)
