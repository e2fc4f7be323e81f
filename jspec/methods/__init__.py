"""Every drafting method by its name, with defaults that fit the device.

A program gets with `jspec.LLM` what the command line gets with `--method`. `jspec methods` prints
this. JAX is imported when a drafter's options are asked for or it is built, not before.
"""

from typing import Any

from jspec._validate.errors import InputError
from jspec._validate.options import Option, unknown
from jspec.methods.builders import COUPLED
from jspec.methods.llm import LLM, Completions
from jspec.methods.method import BUNDLED, BUNDLED_DRAFT, Method
from jspec.methods.registry import DEFAULT, GONE, METHODS, VLLM_NAMES

__all__ = [
    "BUNDLED",
    "BUNDLED_DRAFT",
    "COUPLED",
    "DEFAULT",
    "LLM",
    "METHODS",
    "Completions",
    "Method",
    "Option",
    "describe",
    "names",
]


def names() -> tuple[str, ...]:
    """Returns the names of all methods.

    Returns:
        The names that `jspec.LLM` and `--method` take, in the order of `jspec methods`.

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
    if not isinstance(name, str):
        raise InputError(
            f"method is {name!r:.80}; pass a name of jspec.methods.names(), or drafter=.. for a "
            "drafter of your own"
        )
    if name in GONE:
        raise InputError(f"method {name} is gone; use {GONE[name]}")
    if name in VLLM_NAMES:
        raise InputError(f"method {name} of vLLM is {VLLM_NAMES[name]} here; use that")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def __getattr__(name: str) -> Any:
    if name == "build":
        raise AttributeError("jspec.methods.build is gone; use jspec.LLM(model, method, ..)")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
