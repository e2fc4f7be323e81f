"""Plain decoding: the tree with one node. The baseline shares every line but the tree."""

from dataclasses import dataclass

from jspec import tree as trees
from jspec.protocols import Drafter
from jspec.types import Frame, PyTree, Tree


@dataclass(frozen=True)
class Autoregressive(Drafter):
    """Drafts nothing; each round emits the one token that the target draws after the root.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> jspec.tree.root_only(jnp.array([5])).tokens.tolist()  # its tree, in every round
        [[5]]
    """

    def draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, None]:
        del params, state
        return trees.root_only(frame.root), None
