"""Trees that grow where a token is worth most, from one forward of the draft model per level."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec import tree as trees
from jspec.base import Feedback, PyTree, Tree
from jspec.drafters.draft_model.base import DraftModel
from jspec.drafters.growth.best_first import Offers, ValueFn, check, grow
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.errors import InputError
from jspec.verify import schemes


class GrowthLog(NamedTuple):
    """Memory between draft and update: the method's own, and all that was drawn."""

    memory: PyTree
    offers: Offers
    places: Int[Array, "B N"]

    def visited(self, feedback: Feedback) -> tuple[Offers, Bool[Array, "B P"]]:
        """The offers at each node of the walked path, and whether the node was scored here.

        In a merge, a node of another drafter was not.
        """
        path = feedback.verdict.path
        places = jnp.take_along_axis(self.places, jnp.maximum(path, 0), axis=1)
        row = jnp.maximum(places - 1, 0)[..., None]

        def at(array):
            return jnp.take_along_axis(array, row, axis=1)

        offers = jax.tree.map(at, self.offers)
        return offers, (places > 0) & (path >= 0)


@dataclass(frozen=True)
class BestFirst(DraftModel):
    """A draft model whose tree takes the shape that a method's `worth` gives it.

    Args:
        num_speculative_tokens: the budget, without the root.
        max_depth: most levels.
        beam: nodes scored per level and children drawn per node. The tree is the one-by-one
            heap's unless that wants more of either.
        min_gain: a level that can add no more than this share of the tokens that are expected is
            not grown; 0 grows all that the heap would. It saves forwards of the draft model, and
            only the coupled scheme is lossless with it.
        order: of the nodes, such as `jspec.tree.depth_first`; None is breadth first, as they grow.

    Raises:
        InputError: if an argument is out of range.
    """

    num_speculative_tokens: int = 16
    max_depth: int = 8
    beam: int = 8
    min_gain: float = 0.0
    order: Callable[[Tree], Int[Array, "B N"]] | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check(
            self.num_speculative_tokens,
            self.max_depth,
            self.beam,
            self.min_gain,
            self.model.vocab_size,
        )
        if self.min_gain > 0 and self.scheme != schemes.COUPLED:
            # The last drawn tokens decide whether a level is grown, and that decides whether their
            # own slots are among the best.
            raise InputError(
                f"min_gain is {self.min_gain} and the scheme is not the coupled one, whose rule "
                "alone allows it; choose min_gain=0"
            )
        if self.scheme == schemes.K_SEQ:
            raise InputError(
                "K-SEQ accepts by how many children there are, and here that depends on their "
                "tokens; take jspec.schemes.MULTI_ROUND, or draft with SpecTr or SpecInfer"
            )

    @property
    def depth(self) -> int:
        return self.max_depth

    @property
    def scored(self) -> int:
        return (self.max_depth - 1) * self.beam

    @property
    def least(self) -> float:
        """Slots that are worth no more are not drawn."""
        return 0.0

    @abstractmethod
    def value_fn(self, memory: PyTree) -> ValueFn:
        """How children are valued, by what was learnt."""

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, GrowthLog]:
        draft, offers = grow(
            scorer,
            self.scheme.draw,
            self.sampling,
            self.value_fn(memory),
            nodes=self.num_speculative_tokens,
            depth=self.max_depth,
            width=self.beam,
            threshold=self.least,
            gain=self.min_gain,
        )
        if self.order is not None:
            order = self.order(draft.tree)
            draft = draft._replace(
                tree=trees.reordered(draft.tree, order),
                places=jnp.take_along_axis(draft.places, order, axis=1),
            )
        return draft, GrowthLog(memory, offers, draft.places)

    def learn(self, memory: GrowthLog, feedback: Feedback) -> PyTree:
        del feedback
        return memory.memory
