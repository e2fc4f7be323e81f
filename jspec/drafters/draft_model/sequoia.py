"""Sequoia (Chen et al. 2024): the tree that an acceptance vector says is best."""

from dataclasses import dataclass
from typing import ClassVar

from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.tree import Template
from jspec.verify.schemes import RECURSIVE


@dataclass(frozen=True)
class Sequoia(StaticTree):
    """Sequoia, a tree fitted to two models; verified by the coupled scheme unless asked.

    It fills a template that `jspec.drafters.draft_model.sequoia_tree` found (Chen et al. 2024,
    section 3.1). The paper draws children without replacement and verifies by recursive rejection
    (section 3.2), which `Sequoia.published(model, template=...)` does. The default is jspec's
    coupled scheme, whose tokens are those of plain decoding with the same key.

    Args:
        model: the draft model.
        template: the tree's shape, from `sequoia_tree.best_template` and an acceptance vector that
            `acceptance_vector.measure` found for this pair of models under the scheme.
        scheme: how children are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if the template is empty, or gives a node more children than there are tokens.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> template = jspec.tree.branching([3, 2])
        >>> jspec.Sequoia(draft, template).depth
        2
        >>> sequoia = jspec.Sequoia.published(draft, template=template)
        >>> sequoia.scheme == jspec.schemes.RECURSIVE
        True
    """

    template: Template

    paper_settings: ClassVar = {"scheme": RECURSIVE}

    @property
    def shape(self) -> Template:
        return self.template
