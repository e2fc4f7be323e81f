"""Who offered the nodes of a tree: the drafters inside a drafter, found by what they leave for
their `update`.
"""

from collections.abc import Iterator
from typing import Any

from jspec import tree as trees
from jspec.protocols import Drafter
from jspec.types import PyTree, Tree


def names(drafter: Drafter) -> tuple[str, ...]:
    """The class names of the drafters that propose tokens, members of merges one by one.

    Example:
        >>> import jspec
        >>> names(jspec.merge(jspec.PromptLookup(), jspec.Suffix()))
        ('PromptLookup', 'Suffix')
        >>> names(jspec.merge(jspec.Suffix(4), jspec.Suffix(8)))
        ('Suffix', 'Suffix 2')
    """
    found: list[str] = []
    for leaf in _leaves(drafter):
        name = type(leaf).__name__
        number = 1 + sum(other.split(" ")[0] == name for other in found)
        found.append(name if number == 1 else f"{name} {number}")
    return tuple(found)


def offers(drafter: Drafter, tree: Tree, drafting: PyTree) -> tuple[Tree, ...]:
    """The tree of each of `names(drafter)`, in the same order.

    Args:
        drafter: that drafted.
        tree: what it drafted.
        drafting: the state that it left for `update`.
    """
    inner, state = _unwrapped(drafter, drafting)
    members = getattr(inner, "drafters", None)
    if members is None:
        return (tree,)
    parts = zip(members, _offers(state), state.members, strict=True)
    return tuple(one for part, offer, own in parts for one in offers(part, offer.tree, own))


def unpruned(drafter: Drafter, drafting: PyTree) -> Tree | None:
    """All that the members of a merge with a budget offered, with its estimates; None if the
    drafter is none.
    """
    _, state = _unwrapped(drafter, drafting)
    nodes = getattr(getattr(state, "pending", None), "nodes", None)
    if nodes is None:
        return None
    depth = max(offer.tree.depth for offer in state.pending.own)
    return Tree(
        tokens=nodes.tokens,
        parents=nodes.parents,
        valid=nodes.valid,
        depth=depth,
        width=sum(offer.tree.width for offer in state.pending.own),
        value=trees.chances(nodes.parents, state.pending.probs, depth),
    )


def _unwrapped(drafter: Drafter, drafting: PyTree) -> tuple[Any, Any]:
    """The drafter inside those that change how its trees are verified, and what it left.

    Such a wrapper has the drafter as `drafter`, and its state as `drafter`, `inner` or its own.
    """
    while (inside := getattr(drafter, "drafter", None)) is not None:
        own = getattr(drafting, "inner", drafting)
        drafter, drafting = inside, getattr(drafting, "drafter", own)
    return drafter, drafting


def _leaves(drafter: Drafter) -> Iterator[Drafter]:
    inner, _ = _unwrapped(drafter, None)
    members = getattr(inner, "drafters", None)
    if members is None:
        yield inner
    else:
        for member in members:
            yield from _leaves(member)


def _offers(state: Any) -> Any:
    """The offers of a merge, with a budget or without."""
    return state.pending.own if hasattr(state, "pending") else state.offers
