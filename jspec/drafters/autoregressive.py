"""Plain decoding: the tree with one node. The baseline shares every line but the tree."""

from dataclasses import dataclass

from jspec import tree as trees
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree


@dataclass(frozen=True)
class Autoregressive:
    """Drafts nothing; each round emits the one token that the target draws after the root.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> jspec.tree.root_only(jnp.array([5])).tokens.tolist()  # its tree, in every round
        [[5]]
    """

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> PyTree:
        del batch, capacity, earlier
        return ()

    def prefill(self, params: PyTree, state: PyTree, chunk: PromptChunk) -> PyTree:
        del params, chunk
        return state

    def draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, None]:
        del params
        return trees.root_only(frame.root), None

    def update(self, params: PyTree, state: PyTree, aux: None, feedback: Feedback) -> PyTree:
        del params, aux, feedback
        return state
