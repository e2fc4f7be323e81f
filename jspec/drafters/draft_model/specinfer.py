"""SpecInfer (Miao et al. 2023): a branching tree of independent draws from one draft model."""

from dataclasses import dataclass

from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.drafters.growth.template import check_branching
from jspec.tree import Template, branching


@dataclass(frozen=True)
class SpecInfer(StaticTree):
    """Gives every node of depth l `branching[l]` children.

    `scheme=jspec.schemes.MULTI_ROUND` is the published method: independent draws, equal ones
    kept. (The paper tries children in random order; independent draws are in one.)

    Args:
        branching: children per level, the paper's expansion configuration <k1, k2, ..>.

    Raises:
        InputError: if it is empty, has a number below 1 or above the vocabulary.
    """

    branching: tuple[int, ...] = (3, 1, 1, 1)

    def __post_init__(self):
        check_branching(self.branching)
        super().__post_init__()

    @property
    def shape(self) -> Template:
        return branching(self.branching)
