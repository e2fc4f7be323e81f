"""Merges several drafters' trees into their union at one root."""

from dataclasses import dataclass

import jax.numpy as jnp

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec.drafters.ensemble.budgeted_merge import BudgetedMerge
from jspec.drafters.ensemble.members import MemberDrafts, Members
from jspec.drafters.growth.union import union
from jspec.protocols import Drafter
from jspec.round.own_view import MemberDraft
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree


@struct.dataclass
class MergeState:
    """The memories of the members."""

    members: tuple[PyTree, ...]


@dataclass(frozen=True)
class Merge(Members):
    """Drafts the trees of its drafters together, equal paths once.

    Made by `merge`, which says what it refuses. Params are a tuple; nodes come in its order.
    """

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> MergeState:
        if earlier is not None and not isinstance(earlier, MergeState):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and a merge keeps a MergeState; pass "
                "the state of a call with the same drafter"
            )
        known = None if earlier is None else earlier.members
        return MergeState(self.init_members(batch, capacity, known))

    def prefill(self, params: PyTree, state: MergeState, chunk: PromptChunk) -> MergeState:
        return MergeState(self.prefill_members(params, state.members, chunk))

    def draft(self, params: PyTree, state: MergeState, frame: Frame) -> tuple[Tree, MemberDrafts]:
        trees, members = self.draft_members(params, state.members, frame)
        whole, first = trees[0], trees[0].tokens.shape
        own_numbers = jnp.arange(first[1], dtype=jnp.int32)
        drafts = [MemberDraft(whole, jnp.broadcast_to(own_numbers, first))]
        for tree in trees[1:]:
            whole, number = union(whole, tree)
            drafts.append(MemberDraft(tree, number))
        return whole, MemberDrafts(tuple(drafts), members)

    def update(
        self, params: PyTree, state: MergeState, aux: MemberDrafts | None, feedback: Feedback
    ) -> MergeState:
        return MergeState(self.update_members(params, state.members, aux, feedback))


def merge(*drafters: Drafter, num_speculative_tokens: int | None = None) -> Merge | BudgetedMerge:
    """Merges drafters into one whose tree is the union of theirs, or the best nodes of it.

    Every drafter keeps its own memory and sees its own tree; what others drafted reaches it as
    `Feedback.scored`. No member may be a drafter that samples its children and reports `q`.

    Args:
        drafters: two or more.
        num_speculative_tokens: drafted nodes in all, shared out by what the target has been taking
            of each drafter's, see `jspec.drafters.ensemble.budgeted_merge`; None: each drafter's
            tree is there as a whole.

    Returns:
        A drafter whose `drafter_params` are a tuple, one each; `None` leaves all empty.

    Raises:
        InputError: for fewer than two drafters, one with its own rule, or a budget out of range.

    Example:
        >>> import jspec
        >>> lookup, suffix = jspec.PromptLookup(), jspec.Suffix()
        >>> jspec.merge(lookup, suffix, num_speculative_tokens=8).drafters == (lookup, suffix)
        True
    """
    if num_speculative_tokens is None:
        return Merge(drafters)
    return BudgetedMerge(drafters, num_speculative_tokens)
