"""Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a chain."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jspec._validate.kinds import COUNT
from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.tree import Template, chain
from jspec.verify.schemes import RECURSIVE


@dataclass(frozen=True)
class SpeculativeDecoding(StaticTree):
    """Speculative decoding with a draft model; verified by the coupled scheme unless asked.

    It drafts one token after the other, each from the draft model's distribution (Leviathan et al.
    2023, Algorithm 1; Chen et al. 2023, Algorithm 2). The papers verify by rejection sampling,
    which `SpeculativeDecoding.published(model)` does: with one child a node, recursive rejection is
    their rule. The default is jspec's coupled scheme, whose tokens are those of plain decoding with
    the same key. `scheme=jspec.schemes.BLOCK` decides about the whole chain at once.

    Args:
        model: the draft model.
        num_speculative_tokens: tokens of the chain (gamma in Leviathan et al., K in Chen et al.).
        scheme: how tokens are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.SpeculativeDecoding(draft, 4).depth
        4
        >>> jspec.SpeculativeDecoding.published(draft).scheme == jspec.schemes.RECURSIVE
        True
    """

    num_speculative_tokens: Annotated[int, COUNT] = 4

    paper_settings: ClassVar = {"scheme": RECURSIVE}

    @property
    def shape(self) -> Template:
        return chain(self.num_speculative_tokens)
