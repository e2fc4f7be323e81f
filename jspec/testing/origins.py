"""Attributes the nodes of a tree to the drafters inside a drafter that drafted them."""

from collections.abc import Iterator
from typing import Any

from jspec.drafters.merge import Merge
from jspec.drafters.wrapper import DrafterWrapper
from jspec.protocols import Drafter
from jspec.types import PyTree, Tree


def names(drafter: Drafter) -> tuple[str, ...]:
    """Returns the class names of the drafters that propose tokens, members of merges one by one."""
    labels: list[str] = []
    for leaf in _leaves(drafter):
        name = type(leaf).__name__
        number = 1 + sum(other.split(" ")[0] == name for other in labels)
        labels.append(name if number == 1 else f"{name} {number}")
    return tuple(labels)


def member_trees(drafter: Drafter, tree: Tree, aux: PyTree) -> tuple[Tree, ...]:
    """Returns the tree of each of `names(drafter)`, in the same order."""
    inner, aux = _unwrap(drafter, aux)
    if not isinstance(inner, Merge):
        return (tree,)
    if aux is None:  # nobody was asked
        return (tree,) * len(names(drafter))
    parts = zip(inner.drafters, aux.drafts, aux.members, strict=True)
    return tuple(
        member
        for part, draft, member_aux in parts
        for member in member_trees(part, draft.tree, member_aux)
    )


def _unwrap(drafter: Drafter, aux: PyTree) -> tuple[Any, Any]:
    """Returns the drafter inside verification wrappers, and its `aux`."""
    while isinstance(drafter, DrafterWrapper):
        drafter, aux = drafter.drafter, getattr(aux, "inner", aux)
    return drafter, aux


def _leaves(drafter: Drafter) -> Iterator[Drafter]:
    inner, _ = _unwrap(drafter, None)
    if isinstance(inner, Merge):
        for member in inner.drafters:
            yield from _leaves(member)
    else:
        yield inner
