"""The methods that the command line offers. One entry here is all that a new one needs.

The `methods` command, `--method` and `--speculative-config` all derive from `METHODS`. Nothing here
imports JAX before a drafter is built, so that a typing error is answered at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jspec.app.options import Flag, Integer, Option, Paths

if TYPE_CHECKING:
    from jspec.base import Drafter, PyTree
    from jspec.models import Loaded

DEFAULT = "token_recycling"


@dataclass(frozen=True)
class Models:
    """What a drafter may be built from."""

    target: "Loaded"
    draft: "Loaded | None" = None
    """Given if and only if the method needs one; its vocabulary is the target's."""


Build = Callable[..., "tuple[Drafter, PyTree]"]
"""`build(models, **options)` gives the drafter and its weights."""


@dataclass(frozen=True)
class Method:
    """A way to draft.

    Args:
        name: for `--method`.
        summary: what it proposes, in a few words.
        build: gets the options that were given; for the others the drafter's own defaults hold.
        options: the keys that `--speculative-config` takes.
        needs_draft_model: whether `--draft-model` has to be given.
        needs_training: whether its weights are trained for one target.
        exact: whether sampled tokens follow the target's law exactly.
    """

    name: str
    summary: str
    build: Build
    options: tuple[Option, ...] = ()
    needs_draft_model: bool = False
    needs_training: bool = False
    exact: bool = True


def _autoregressive(models: Models) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.autoregressive import Autoregressive

    return Autoregressive(), None


def _token_recycling(
    models: Models,
    num_speculative_tokens: int | None = None,
    template: tuple[tuple[int, ...], ...] | None = None,
    **options: Any,
) -> "tuple[Drafter, PyTree]":
    from jspec.app import trees
    from jspec.drafters.token_recycling import TokenRecycling
    from jspec.tree import Template

    if template is None:
        tree = trees.recycling(num_speculative_tokens, options.get("k"))
    elif num_speculative_tokens is None:
        tree = Template(template)
    else:
        raise ValueError(
            "template and num_speculative_tokens were both given; the template has its own number "
            "of nodes, so leave one of them out"
        )
    return TokenRecycling(models.target.model.vocab_size, template=tree, **options), None


def _prompt_lookup(models: Models, **options: Any) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.prompt_lookup import PromptLookup

    return PromptLookup(**options), None


def _merged(models: Models, **options: Any) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.merge import merge

    lookup = {name: options.pop(name) for name in list(options) if name in _names(_LOOKUP)}
    recycling, _ = _token_recycling(models, **options)
    other, _ = _prompt_lookup(models, **lookup)
    return merge(recycling, other), None


def _names(options: tuple[Option, ...]) -> set[str]:
    return {option.name for option in options}


_NODES = Option("num_speculative_tokens", Integer(1, 1024), "drafted nodes of a tree made to fit")
_RECYCLING = (
    Option("template", Paths(), "the tree, node by node"),
    Option("k", Integer(1), "candidates kept per token"),
    Option("update_on_prefill", Flag(), "learn from the prompt too"),
    Option("per_row", Flag(), "a matrix for each row of the batch"),
)
_LOOKUP = (
    Option("prompt_lookup_max", Integer(1), "longest n-gram to look for"),
    Option("prompt_lookup_min", Integer(1), "shortest n-gram to look for"),
    Option("num_speculative_tokens", Integer(1), "tokens drafted after the match"),
    Option("whole", Flag(), "only matches with that many tokens after them"),
    Option("latest", Flag(), "the last match instead of the first"),
)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("autoregressive", "nothing: plain decoding", _autoregressive),
        Method(
            "token_recycling",
            "a tree of what earlier forwards thought likely",
            _token_recycling,
            options=(_NODES, *_RECYCLING),
        ),
        Method(
            "prompt_lookup",
            "what followed the last tokens when they stood in the text before",
            _prompt_lookup,
            options=_LOOKUP,
        ),
        Method(
            "token_recycling+prompt_lookup",
            "both, in one tree",
            _merged,
            options=(*_RECYCLING, *_LOOKUP),
        ),
    )
}
