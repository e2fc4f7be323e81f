"""Trees that grow best first, with one draft forward pass per level."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Number
from jspec.drafters.draft_model.draft_model import Drafted, DraftModel
from jspec.drafters.growth import best_first
from jspec.drafters.growth.best_first import ValueFn
from jspec.drafters.growth.pool import DrawnChildren
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.types import Feedback, PyTree, Tree
from jspec.verify import schemes

_AS_DRAWN = (None, trees.depth_first, trees.breadth_first)
"""The orders that are known to leave siblings as they were drawn."""


def draws_along_path(aux: Drafted, feedback: Feedback) -> tuple[DrawnChildren, Bool[Array, "B P"]]:
    """Returns the children drawn at each node of the accepted path, and where there are any."""
    path = feedback.verdict.path  # -1 for a node of another drafter
    kv_index = jnp.take_along_axis(aux.kv_index, jnp.maximum(path, 0), axis=1)
    row = jnp.maximum(kv_index - 1, 0)[..., None]
    drawn = jax.tree.map(lambda array: jnp.take_along_axis(array, row, axis=1), aux.grown)
    return drawn, (path >= 0) & (kv_index > 0)


@dataclass(frozen=True)
class BestFirst(DraftModel):
    """A draft model whose tree takes the shape that a method's values give it."""

    num_speculative_tokens: Annotated[int, COUNT] = 16
    max_depth: Annotated[int, COUNT] = 8
    beam: Annotated[int, COUNT] = 8
    min_gain: Annotated[float, Number(0, 1, below_high=True)] = 0.0
    order: Callable[[Tree], Int[Array, "B N"]] | None = field(default=None, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        best_first.check(
            self.num_speculative_tokens,
            self.max_depth,
            self.beam,
            self.model.vocab_size,
        )
        if self.min_gain > 0 and self.scheme.verifier != schemes.COUPLED.verifier:
            # The last draws decide whether a level is grown, which decides on their own slots.
            raise InputError(
                f"min_gain is {self.min_gain} and the scheme's rule is not the coupled one, which "
                "alone allows it; choose min_gain=0"
            )
        if self.scheme == schemes.K_SEQ:
            raise InputError(
                "K-SEQ accepts by how many children there are, and here that depends on their "
                "tokens; take jspec.schemes.MULTI_ROUND, or draft with SpecTr or SpecInfer"
            )
        if self.order is not None and not callable(self.order):
            raise InputError(
                f"order is {self.order!r:.80}; pass a function of the tree such as "
                "jspec.tree.depth_first, or None"
            )
        if self.order not in _AS_DRAWN and self.scheme.verifier != schemes.COUPLED.verifier:
            raise InputError(
                f"order is {self.order!r:.80}, which may move siblings, and the scheme's rule goes "
                "by the order in which they were drawn; take jspec.tree.depth_first, "
                "jspec.tree.breadth_first or None, or scheme=jspec.schemes.COUPLED"
            )

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def num_scored(self) -> int:
        return (self.max_depth - 1) * self.beam

    @property
    def slot_threshold(self) -> float:
        """The value at or below which slots are not drafted."""
        return 0.0

    @abstractmethod
    def value_fn(self, memory: PyTree) -> ValueFn:
        """Returns the function that values children, given the method's memory."""

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, DrawnChildren]:
        draft, drawn = best_first.grow(
            scorer,
            self.scheme.draw,
            self.sampling,
            self.value_fn(memory),
            num_speculative_tokens=self.num_speculative_tokens,
            max_depth=self.max_depth,
            beam=self.beam,
            threshold=self.slot_threshold,
            min_gain=self.min_gain,
        )
        if self.order is not None:
            order = self.order(draft.tree)
            draft = draft._replace(
                tree=trees.reorder(draft.tree, order),
                kv_index=jnp.take_along_axis(draft.kv_index, order, axis=1),
            )
        return draft, drawn
