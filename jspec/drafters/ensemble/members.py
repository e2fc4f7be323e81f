"""Several drafters as one: what every way of joining their trees has in common."""

from dataclasses import dataclass

from jaxtyping import Array, Int

from jspec.base import Feedback, Frame, Output, PyTree, Tree
from jspec.drafters.growth.union import check_deterministic
from jspec.errors import InputError
from jspec.protocols import Drafter


@dataclass(frozen=True)
class Members:
    """Two or more drafters that report no distribution. Their params and their states are tuples.

    Raises:
        InputError: if there are fewer than two, or one is no drafter.
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

    def started(self, batch: int, slots: int, earlier: PyTree | None) -> tuple[PyTree, ...]:
        """What each member's call begins with."""
        states = self._each(earlier, "drafter_state")
        return tuple(
            drafter.init(batch, slots, state)
            for drafter, state in zip(self.drafters, states, strict=True)
        )

    def prepared(
        self,
        params: PyTree,
        states: tuple[PyTree, ...],
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> tuple[PyTree, ...]:
        """What each member knows before the first round."""
        return tuple(
            drafter.prefill(weights, state, prompt, lengths, output)
            for drafter, weights, state in self._all(params, states)
        )

    def drafted(
        self, params: PyTree, states: tuple[PyTree, ...], frame: Frame
    ) -> tuple[tuple[Tree, ...], tuple[PyTree, ...]]:
        """Each member's tree and state.

        Raises:
            InputError: if a tree was sampled. Its siblings would no longer be draws from its
                distribution.
        """
        drafts = [
            drafter.draft(weights, state, frame)
            for drafter, weights, state in self._all(params, states)
        ]
        for tree, _ in drafts:
            check_deterministic(tree)
        return tuple(tree for tree, _ in drafts), tuple(state for _, state in drafts)

    def taught(
        self, params: PyTree, states: tuple[PyTree, ...], feedback: Feedback
    ) -> tuple[PyTree, ...]:
        """Each member's state after a round over the joint tree."""
        return tuple(
            drafter.update(weights, state, feedback)
            for drafter, weights, state in self._all(params, states)
        )

    def _all(self, params: PyTree, states: tuple[PyTree, ...]):
        return zip(self.drafters, self._each(params, "drafter_params"), states, strict=True)

    def _each(self, given: PyTree, what: str) -> tuple[PyTree, ...]:
        """One for each member; None stands for none of them."""
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
