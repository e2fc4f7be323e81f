"""SpecInfer (Miao et al. 2023): a branching tree of independent draws from one draft model."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jspec._validate.kinds import COUNT, Several
from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.drafters.growth.template_trees import check_branching
from jspec.tree import Template, branching
from jspec.verify.schemes import MULTI_ROUND


@dataclass(frozen=True)
class SpecInfer(StaticTree):
    """SpecInfer's expansion-based tree; verified by the coupled scheme unless asked.

    Every node of depth l has `branching[l]` children (Miao et al. 2023, section 3). The paper draws
    them independently and verifies by multi-step speculative sampling, which
    `SpecInfer.published(model)` does: equal draws are kept, and independent draws already have the
    paper's random order of children. The default is jspec's coupled scheme, whose tokens are those
    of plain decoding with the same key.

    Args:
        model: the draft model.
        branching: children per node by level, the paper's expansion configuration <k1, ..>.
        scheme: how children are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if `branching` is empty, has a number out of range, or makes too many nodes.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> len(jspec.SpecInfer(draft, (3, 1, 1)).shape.paths)  # drafted tokens per round
        9
        >>> jspec.SpecInfer.published(draft).scheme == jspec.schemes.MULTI_ROUND
        True
    """

    branching: Annotated[tuple[int, ...], Several(COUNT, "[3, 1, 1]")] = (3, 1, 1, 1)

    paper_settings: ClassVar = {"scheme": MULTI_ROUND}

    def __post_init__(self):
        check_branching(self.branching)
        super().__post_init__()

    @property
    def shape(self) -> Template:
        return branching(self.branching)
