"""Methods that merge others, whose proposals share one tree.

An option of a merge goes to all members that know it. `num_speculative_tokens` bounds the tree.
"""

from collections.abc import Mapping
from typing import Any

from jspec.methods import device_defaults
from jspec.methods.llm import LLM
from jspec.methods.method import Maker, Method, Models

MEMBER_TOKENS = 32
"""The fewest nodes that a member of a merge with a budget offers, however small the budget."""


def build_merge(*members: Method) -> Maker:
    """Returns the builder of a tree of the likeliest nodes of all that the members offer."""

    def make(models: Models, num_speculative_tokens: int | None = None, **options: Any) -> LLM:
        nodes = num_speculative_tokens or device_defaults.budget()
        return _merge(
            models, [_member(member, models, nodes, options) for member in members], nodes
        )

    return make


def build_auto(first: Method, draft_model: Method, heads: Mapping[str, Method]) -> Maker:
    """Returns the builder of a method, or of its merge with a draft model and a head, if given."""

    def make(
        models: Models, num_speculative_tokens: int, head: str | None = None, **options: Any
    ) -> LLM:
        nodes = num_speculative_tokens
        built = [first.make(models, num_speculative_tokens=nodes, **options)]
        if models.draft is not None:
            built.append(_member(draft_model, models, nodes, {}))
        if head is not None:
            from jspec.models import heads as trained

            kind = trained.kind_of(trained.load(head, models.target).head)
            built.append(_member(heads[kind], models, nodes, {"head": head}))
        return built[0] if len(built) == 1 else _merge(models, built, nodes)

    return make


def _member(method: Method, models: Models, nodes: int, options: Mapping[str, Any]) -> LLM:
    """Returns a member with the options that it knows, which offers the budget or more."""
    member_options = _filter_options(method, options)
    nodes = max(nodes, MEMBER_TOKENS) if method.most is None else method.most(**member_options)
    return method.make(models, num_speculative_tokens=nodes, **member_options)


def _filter_options(method: Method, options: Mapping[str, Any]) -> dict[str, Any]:
    names = method.read_options()
    return {name: value for name, value in options.items() if name in names}


def _merge(models: Models, built: list[LLM], num_speculative_tokens: int | None) -> LLM:
    from jspec.drafters.merge import merge

    drafters = [llm.drafter for llm in built]
    params = tuple(llm.drafter_params for llm in built)
    drafter_params = None if all(value is None for value in params) else params
    drafter = merge(*drafters, num_speculative_tokens=num_speculative_tokens)
    # A head may read more of the target than the last state; at most one of the members has one.
    plain = models.target
    target = next((llm.target for llm in built if llm.model != plain.model), plain)
    return LLM(target, drafter=drafter, drafter_params=drafter_params)
