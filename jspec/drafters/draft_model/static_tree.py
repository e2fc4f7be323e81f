"""Draft models whose trees have a shape that is known before anything is drawn."""

from abc import abstractmethod
from dataclasses import dataclass

from jspec.base import PyTree
from jspec.drafters.draft_model.base import DraftModel
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.drafters.growth.template import check_template, fill, scored
from jspec.tree import Template


@dataclass(frozen=True)
class StaticTree(DraftModel):
    """A draft model whose tokens fill a template."""

    def __post_init__(self):
        check_template(self.shape, self.model.vocab_size)

    @property
    @abstractmethod
    def shape(self) -> Template:
        """The shape of every tree."""

    @property
    def depth(self) -> int:
        return self.shape.depth

    @property
    def scored(self) -> int:
        return scored(self.shape)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        return fill(self.shape, scorer, self.scheme.draw, self.sampling), memory
