"""The methods that the library knows by name, for benches that compare them."""

from collections.abc import Iterable
from typing import Any

from benchmarks.harness import console
from jspec import methods
from jspec.base import PyTree
from jspec.errors import InputError
from jspec.models import Loaded
from jspec.protocols import Drafter


def standalone() -> list[str]:
    """Names of the methods that need neither a draft model nor an option."""
    return [
        name
        for name, method in ((name, methods.describe(name)) for name in methods.names())
        if not method.needs_draft_model and not method.needs_options
    ]


def build(name: str, target: Loaded, **options: Any) -> tuple[Drafter, PyTree]:
    """A method's drafter for a target, and its weights, with the command line's defaults.

    Raises:
        InputError: if the method needs what is not there, such as a trained head.
    """
    _, drafter, drafter_params = methods.build(name, target, **options)
    return drafter, drafter_params


def build_those_there(names: Iterable[str], target: Loaded) -> dict[str, tuple[Drafter, PyTree]]:
    """Each method's drafter and weights; says which are left out, and why."""
    built = {}
    for name in names:
        try:
            built[name] = build(name, target)
        except InputError as reason:
            console.print(f"{name}: left out, {reason}")
    return built
