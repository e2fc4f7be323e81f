"""RSD-C (Jeon et al. 2024, section 3.2.1): constant branching, sampled without replacement."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jspec._validate.kinds import COUNT, Several
from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.drafters.growth.template_trees import check_branching
from jspec.tree import Template, branching
from jspec.verify.schemes import RECURSIVE


@dataclass(frozen=True)
class RSDC(StaticTree):
    """RSD-C, a tree of constant branching factors; verified by the coupled scheme unless asked.

    Every node of depth l has `branching[l]` children (Jeon et al. 2024, section 3.2.1). The paper
    draws them without replacement by the Gumbel-top-k trick and verifies by recursive rejection
    (Algorithms 3 and 4), which `RSDC.published(model)` does. The default is jspec's coupled scheme,
    whose tokens are those of plain decoding with the same key.

    Args:
        model: the draft model.
        branching: children of a node, level by level, b in the paper.
        scheme: how children are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if `branching` is empty, has a number out of range, or makes too many nodes.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> len(jspec.RSDC(draft, (2, 2, 2)).shape.paths)  # drafted tokens per round
        14
        >>> jspec.RSDC.published(draft).scheme == jspec.schemes.RECURSIVE
        True
    """

    branching: Annotated[tuple[int, ...], Several(COUNT, "[3, 1, 1]")] = (2, 2, 2)

    paper_settings: ClassVar = {"scheme": RECURSIVE}

    def __post_init__(self):
        check_branching(self.branching)
        super().__post_init__()

    @property
    def shape(self) -> Template:
        return branching(self.branching)
