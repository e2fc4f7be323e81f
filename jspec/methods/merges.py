"""Methods that are merges of others: drafters propose side by side, and one tree is verified.

An option of a merge goes to all members that know it. `num_speculative_tokens` bounds the tree.
"""

from collections.abc import Mapping
from typing import Any

from jspec.methods.method import Built, Maker, Method, Models

MEMBER_TOKENS = 32
"""The fewest nodes that a member of a merge with a budget offers, however small the budget."""


def united(*members: Method) -> Maker:
    """The builder of a tree of all nodes that the members offer; a budget is not needed."""

    def make(models: Models, num_speculative_tokens: int | None = None, **options: Any) -> Built:
        built = [member.make(models, **_known(member, options)) for member in members]
        return _merged(built, num_speculative_tokens)

    return make


def competing(*members: Method) -> Maker:
    """The builder of a tree of the likeliest nodes of all that the members offer.

    Each member offers as many nodes as the budget by itself, and at least enough to choose from.
    """

    def make(models: Models, num_speculative_tokens: int | None = None, **options: Any) -> Built:
        from jspec.methods import device_defaults

        nodes = num_speculative_tokens or device_defaults.budget()
        built = []
        for member in members:
            own = _known(member, options)
            if member.member is not None:
                built.append(member.member(models, **own))
            else:
                offered = max(nodes, MEMBER_TOKENS)
                built.append(member.make(models, num_speculative_tokens=offered, **own))
        return _merged(built, nodes)

    return make


def _known(method: Method, options: Mapping[str, Any]) -> dict[str, Any]:
    known = {option.name for option in method.options}
    return {name: value for name, value in options.items() if name in known}


def _merged(built: list[Built], num_speculative_tokens: int | None) -> Built:
    from jspec.drafters.ensemble.merge import merge

    drafters = [one.drafter for one in built]
    params = tuple(one.drafter_params for one in built)
    made = merge(*drafters, num_speculative_tokens=num_speculative_tokens)
    # A head may read more of the target than the last state; at most one of the members has one.
    model = next((one.model for one in built if one.model != built[0].model), built[0].model)
    return Built(model, made, None if all(one is None for one in params) else params)
