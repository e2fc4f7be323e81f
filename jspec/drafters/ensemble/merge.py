"""The union of point-mass trees at one root: what one method misses another may find."""

from dataclasses import dataclass
from functools import reduce

from jaxtyping import Array, Int

from jspec.base import Feedback, Frame, Output, PyTree, Tree
from jspec.drafters.ensemble.budgeted_merge import BudgetedMerge
from jspec.drafters.ensemble.members import Members
from jspec.drafters.growth.union import union
from jspec.protocols import Drafter


@dataclass(frozen=True)
class Merge(Members):
    """Drafts the trees of its drafters together, equal paths once. Make it with `merge`.

    Params and state are tuples. A drafter's nodes follow those of the drafters before it.
    """

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> tuple[PyTree, ...]:
        return self.started(batch, slots, earlier)

    def prefill(
        self,
        params: PyTree,
        state: tuple[PyTree, ...],
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> tuple[PyTree, ...]:
        return self.prepared(params, state, prompt, lengths, output)

    def draft(
        self, params: PyTree, state: tuple[PyTree, ...], frame: Frame
    ) -> tuple[Tree, tuple[PyTree, ...]]:
        drafts, kept = self.drafted(params, state, frame)
        return reduce(union, drafts), kept

    def update(
        self, params: PyTree, state: tuple[PyTree, ...], feedback: Feedback
    ) -> tuple[PyTree, ...]:
        return self.taught(params, state, feedback)


def merge(*drafters: Drafter, num_speculative_tokens: int | None = None) -> Merge | BudgetedMerge:
    """A drafter that proposes what any of its drafters would. None may report a distribution
    (`Tree.q`).

    Args:
        drafters: two or more.
        num_speculative_tokens: drafted nodes in all, shared out by what the target has been taking
            of each drafter's, see `jspec.drafters.ensemble.budgeted_merge`; None: each drafter's
            tree is there as a whole.

    Raises:
        InputError: if there are fewer than two drafters, or the budget is out of range.
    """
    return (
        Merge(drafters)
        if num_speculative_tokens is None
        else BudgetedMerge(drafters, num_speculative_tokens)
    )
