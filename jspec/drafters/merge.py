"""Merges several drafters' trees into their union at one root, or the best nodes of it."""

from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT
from jspec._validate.options import check_fields
from jspec.drafters.growth.union import check_deterministic, union
from jspec.protocols import Drafter, Verifier
from jspec.round.own_view import MemberDraft, own_view
from jspec.tree.sanitize import check_tree, sanitize
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree
from jspec.verify.schemes import COUPLED


@struct.dataclass
class MergeState:
    """The memories of the members."""

    members: tuple[PyTree, ...]


@struct.dataclass
class MemberDrafts:
    """A merge's record of its draft, for its update."""

    drafts: tuple[MemberDraft, ...]
    """Of each member."""
    members: tuple[PyTree, ...]
    """The `aux` of each member's draft."""


@dataclass(frozen=True)
class Merge(Drafter):
    """Drafts the trees of its drafters together, equal paths once; made by `merge`.

    Params are a tuple. A member never learns that it has neighbours: it sees its own tree, in its
    own numbers, and everything else that was verified as `Feedback.scored`.
    """

    drafters: tuple[Drafter, ...]
    num_speculative_tokens: Annotated[int | None, COUNT] = None

    def __post_init__(self):
        if len(self.drafters) < 2:
            raise InputError(
                f"merge got {len(self.drafters)} drafter; pass two or more, or use the one as it is"
            )
        for drafter in self.drafters:
            if isinstance(drafter, type) or not isinstance(drafter, Drafter):
                raise InputError(
                    f"merge got {drafter!r:.80}; pass instances such as jspec.PromptLookup()"
                )
            if drafter.verifier not in (None, COUPLED.verifier):
                raise InputError(
                    f"merge got {drafter!r:.80}, whose draws have a verifier of their own; merge "
                    "drafters without one, or give this one scheme=jspec.schemes.COUPLED"
                )
        check_fields(self)

    @property
    def verifier(self) -> Verifier | None:
        """The coupled rule if a member's children were chosen by the noise; else None."""
        verifiers = (drafter.verifier for drafter in self.drafters)
        return next((verifier for verifier in verifiers if verifier is not None), None)

    @property
    def context(self) -> int | None:
        """The longest row that all members can read, in tokens; None if there is no bound."""
        contexts = (drafter.context for drafter in self.drafters)
        return min((context for context in contexts if context is not None), default=None)

    @property
    def follows_text(self) -> bool:
        """True if rounds without a draft leave no gap in any member's memory."""
        return all(drafter.follows_text for drafter in self.drafters)

    def tells_rest(self, aux: MemberDrafts) -> bool:
        """Returns whether a member does."""
        both = zip(self.drafters, aux.members, strict=True)
        return any(drafter.tells_rest(member) for drafter, member in both)

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> MergeState:
        if earlier is not None and not isinstance(earlier, MergeState):
            raise InputError(
                f"drafter_state is a {type(earlier).__name__} and a merge keeps a MergeState; pass "
                "the state of a call with the same drafter"
            )
        states = self._each(None if earlier is None else earlier.members, "drafter_state")
        return MergeState(
            tuple(
                drafter.init(batch, capacity, state)
                for drafter, state in zip(self.drafters, states, strict=True)
            )
        )

    def prefill(self, params: PyTree, state: MergeState, chunk: PromptChunk) -> MergeState:
        return MergeState(
            tuple(
                drafter.prefill(weights, memory, chunk)
                for drafter, weights, memory in self._all(params, state)
            )
        )

    def draft(self, params: PyTree, state: MergeState, frame: Frame) -> tuple[Tree, MemberDrafts]:
        """Returns the union, or its nodes of largest value where it has more than the budget."""
        members, records = [], []
        for drafter, weights, memory in self._all(params, state):
            tree, aux = drafter.draft(weights, memory, frame)
            check_tree(type(drafter).__name__, tree, len(frame.root))
            check_deterministic(tree)
            members.append(sanitize(tree, frame.root, grammar=frame.grammar))
            records.append(aux)
        joint, first = members[0], members[0].tokens.shape
        numbers = [jnp.broadcast_to(jnp.arange(first[1], dtype=jnp.int32), first)]
        for tree in members[1:]:
            joint, number = union(joint, tree)
            numbers.append(number)
        budget = self.num_speculative_tokens
        if budget is not None and budget < joint.tokens.shape[1] - 1:
            best = trees.best_nodes(joint, budget)
            joint = trees.take_nodes(joint, best)
            numbers = [_among(best, number) for number in numbers]
        drafts = tuple(map(MemberDraft, members, numbers))
        return joint, MemberDrafts(drafts, tuple(records))

    def update(
        self, params: PyTree, state: MergeState, aux: MemberDrafts | None, feedback: Feedback
    ) -> MergeState:
        feedbacks: list[tuple[PyTree, Feedback]] = [(None, feedback)] * len(self.drafters)
        if aux is not None:
            plain = feedback.tree.tokens.shape[1] == 1
            feedbacks = [
                (
                    member,
                    own_view(draft, feedback)
                    if drafter.tells_rest(member) or not plain
                    else feedback,
                )
                for drafter, member, draft in zip(
                    self.drafters, aux.members, aux.drafts, strict=True
                )
            ]
        return MergeState(
            tuple(
                drafter.update(weights, memory, *each)
                for (drafter, weights, memory), each in zip(
                    self._all(params, state), feedbacks, strict=True
                )
            )
        )

    def _all(self, params: PyTree, state: MergeState):
        each = self._each(params, "drafter_params")
        return zip(self.drafters, each, state.members, strict=True)

    def _each(self, values: PyTree, what: str) -> tuple[PyTree, ...]:
        """Returns the given values, one for each member; None stands for none of them."""
        count = len(self.drafters)
        if values is None:
            return (None,) * count
        if not (isinstance(values, tuple) and len(values) == count):
            size = f" of {len(values)}" if isinstance(values, tuple) else ""
            raise InputError(
                f"{what} is a {type(values).__name__}{size} and merge keeps a tuple of {count}, "
                "one for each of its drafters; pass one for each, or the state of a call with the "
                "same drafter"
            )
        return values


def _among(best: Int[Array, "B n"], number: Int[Array, "B N"]) -> Int[Array, "B N"]:
    """Returns the places of nodes among the best ones; n where a node is not one of them."""
    place = trees.places(best, number)
    node = jnp.take_along_axis(best, place, axis=1, mode="fill", fill_value=-1)
    return jnp.where(node == number, place, best.shape[1])


def merge(*drafters: Drafter, num_speculative_tokens: int | None = None) -> Merge:
    """Merges drafters into one whose tree is the union of theirs, or the best nodes of it.

    Every drafter keeps its own memory and sees its own tree; what others drafted reaches it as
    `Feedback.scored`. No member may be a drafter that samples its children and reports `q`.

    Args:
        drafters: two or more.
        num_speculative_tokens: the most drafted nodes in all: those of largest `Tree.value`,
            whoever drafted them; None: each drafter's tree is there as a whole.

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
    return Merge(drafters, num_speculative_tokens)
