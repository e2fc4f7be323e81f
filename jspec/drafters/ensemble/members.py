"""Base class of merges: calls the member drafters and maps feedback to each one's own tree."""

from dataclasses import dataclass

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec.drafters.growth.union import check_deterministic
from jspec.protocols import Drafter, Verifier
from jspec.round.own_view import MemberDraft, own_view
from jspec.tree.sanitize import check_tree, sanitize
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree
from jspec.verify.schemes import COUPLED


@struct.dataclass
class MemberDrafts:
    """A merge's record of its draft, for its update."""

    drafts: tuple[MemberDraft, ...]
    """Of each member."""
    members: tuple[PyTree, ...]
    """The `aux` of each member's draft."""


@dataclass(frozen=True)
class Members(Drafter):
    """Two or more drafters of deterministic proposals. Their params and their states are tuples.

    A member never learns that it has neighbours: it sees its own tree, in its own numbers, and
    everything else that was verified as `Feedback.scored`.
    """

    drafters: tuple[Drafter, ...]

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

    @property
    def verifier(self) -> Verifier | None:
        """The coupled rule if a member's children were chosen by the noise; else None."""
        own = (drafter.verifier for drafter in self.drafters)
        return next((verifier for verifier in own if verifier is not None), None)

    @property
    def context(self) -> int | None:
        """The longest row that all members can read, in tokens; None if there is no bound."""
        own = (drafter.context for drafter in self.drafters)
        return min((context for context in own if context is not None), default=None)

    @property
    def follows_text(self) -> bool:
        """True if rounds without a draft leave no gap in any member's memory."""
        return all(drafter.follows_text for drafter in self.drafters)

    def tells_rest(self, aux: MemberDrafts) -> bool:
        """Returns whether a member does: merges themselves learn nothing without drafts."""
        both = zip(self.drafters, aux.members, strict=True)
        return any(drafter.tells_rest(own) for drafter, own in both)

    def init_members(self, batch: int, capacity: int, earlier: PyTree | None) -> tuple[PyTree, ...]:
        """Returns the first states of all members, by their `init`."""
        states = self._each(earlier, "drafter_state")
        return tuple(
            drafter.init(batch, capacity, state)
            for drafter, state in zip(self.drafters, states, strict=True)
        )

    def prefill_members(
        self, params: PyTree, states: tuple[PyTree, ...], chunk: PromptChunk
    ) -> tuple[PyTree, ...]:
        """Returns the states of all members after a chunk of the prompt, by their `prefill`."""
        return tuple(
            drafter.prefill(weights, state, chunk)
            for drafter, weights, state in self._all(params, states)
        )

    def draft_members(
        self, params: PyTree, states: tuple[PyTree, ...], frame: Frame
    ) -> tuple[tuple[Tree, ...], tuple[PyTree, ...]]:
        """Returns all members' sanitized trees and their `aux`."""
        drafted, kept = [], []
        for drafter, weights, state in self._all(params, states):
            tree, aux = drafter.draft(weights, state, frame)
            check_tree(type(drafter).__name__, tree, len(frame.root))
            check_deterministic(tree)
            drafted.append(sanitize(tree, frame.root, grammar=frame.grammar))
            kept.append(aux)
        return tuple(drafted), tuple(kept)

    def update_members(
        self,
        params: PyTree,
        states: tuple[PyTree, ...],
        aux: MemberDrafts | None,
        feedback: Feedback,
    ) -> tuple[PyTree, ...]:
        """Returns all members' states after `update` with feedback on their own trees."""
        told: list[tuple[PyTree, Feedback]] = [(None, feedback)] * len(self.drafters)
        if aux is not None:
            plain = feedback.tree.tokens.shape[1] == 1
            told = [
                (
                    own,
                    own_view(draft, feedback) if drafter.tells_rest(own) or not plain else feedback,
                )
                for drafter, own, draft in zip(self.drafters, aux.members, aux.drafts, strict=True)
            ]
        return tuple(
            drafter.update(weights, state, *each)
            for (drafter, weights, state), each in zip(self._all(params, states), told, strict=True)
        )

    def _all(self, params: PyTree, states: tuple[PyTree, ...]):
        return zip(self.drafters, self._each(params, "drafter_params"), states, strict=True)

    def _each(self, given: PyTree, what: str) -> tuple[PyTree, ...]:
        """Returns the given values, one for each member; None stands for none of them."""
        count = len(self.drafters)
        if given is None:
            return (None,) * count
        if not (isinstance(given, tuple) and len(given) == count):
            size = f" of {len(given)}" if isinstance(given, tuple) else ""
            raise InputError(
                f"{what} is a {type(given).__name__}{size} and merge keeps a tuple of {count}, one "
                "for each of its drafters; pass one for each, or the state of a call with the same "
                "drafter"
            )
        return given
