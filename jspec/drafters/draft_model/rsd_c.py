"""RSD-C (Jeon et al. 2024, section 3.2.1): constant branching, sampled without replacement."""

from dataclasses import dataclass

from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.drafters.growth.template import check_branching
from jspec.tree import Template, branching


@dataclass(frozen=True)
class RSDC(StaticTree):
    """Gives every node of depth l `branching[l]` children by Gumbel-top-k (Algorithms 3 and 4).

    `scheme=jspec.schemes.RECURSIVE` is the published method.

    Args:
        branching: children per level, b in the paper.

    Raises:
        InputError: if it is empty, has a number below 1 or above the vocabulary.
    """

    branching: tuple[int, ...] = (2, 2, 2)

    def __post_init__(self):
        check_branching(self.branching)
        super().__post_init__()

    @property
    def shape(self) -> Template:
        return branching(self.branching)
