"""The policy without a choice: as many nodes in every round."""

from dataclasses import dataclass

import jax.numpy as jnp

from jspec._validate.arguments import check_integer
from jspec.protocols import WidthPolicy
from jspec.types import Frame, PyTree, Tree, WidthChoice


@dataclass(frozen=True)
class FixedWidth(WidthPolicy):
    """Verifies a fixed number of drafted nodes per round; by default all.

    With `FixedWidth(0)` the drafter is not asked, and rounds are plain decoding. It goes on with
    the state of any policy.

    Args:
        num_speculative_tokens: most drafted nodes of a row that a round verifies: by largest value,
            or the first where the drafter gives no values. None: all.

    Raises:
        InputError: if it is not a number of nodes.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> ask = dict(prompt=[[1, 2, 1, 2, 1]], max_new_tokens=6, drafter=jspec.PromptLookup())
        >>> result = jspec.decode(model, model.init(), **ask, policy=FixedWidth(2))
        >>> result.stats.widths
        (2,)
    """

    num_speculative_tokens: int | None = None

    def __post_init__(self):
        if self.num_speculative_tokens is not None:
            check_integer("num_speculative_tokens", self.num_speculative_tokens, 0, None)

    @property
    def widths(self) -> tuple[int, ...]:
        width = self.num_speculative_tokens
        return () if width is None else (int(width),)

    def should_draft(self, params: PyTree, state: PyTree) -> bool:
        del params, state
        return self.num_speculative_tokens != 0

    def choose(self, params: PyTree, state: PyTree, tree: Tree, frame: Frame) -> WidthChoice:
        del params, state, tree, frame
        return WidthChoice(index=jnp.int32(0))
