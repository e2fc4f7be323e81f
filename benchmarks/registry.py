"""The methods that the library knows by name, for benches that compare them."""

from collections.abc import Iterable

from benchmarks.harness import console
from jspec import methods
from jspec._validate.errors import InputError
from jspec.methods import LLM
from jspec.models import Loaded


def standalone() -> list[str]:
    """Names of the methods that need neither a draft model nor an option."""
    return [
        name
        for name, method in ((name, methods.describe(name)) for name in methods.names())
        if not method.needs_draft_model and not method.needs_options
    ]


def build_those_there(names: Iterable[str], target: Loaded) -> dict[str, LLM]:
    """Returns each method's drafter, model to decode with and weights; says what is left out."""
    built = {}
    for name in names:
        try:
            built[name] = LLM(target, name)
        except InputError as reason:
            console.print(f"{name}: left out, {reason}")
    return built
