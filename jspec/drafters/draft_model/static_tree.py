"""Draft models whose trees have a shape that is known before anything is drawn."""

from abc import abstractmethod
from dataclasses import dataclass

from jspec.drafters.draft_model.draft_model import DraftModel
from jspec.drafters.growth import template_trees as templates
from jspec.drafters.growth.scorer import Draft, Scorer
from jspec.tree import Template
from jspec.types import PyTree


@dataclass(frozen=True)
class StaticTree(DraftModel):
    """A draft model whose tokens fill a template."""

    def __post_init__(self):
        super().__post_init__()
        templates.check_template(self.shape, self.model.vocab_size)

    @property
    @abstractmethod
    def shape(self) -> Template:
        """The shape of every tree."""

    @property
    def depth(self) -> int:
        return self.shape.depth

    @property
    def num_scored(self) -> int:
        return templates.num_scored(self.shape)

    def grow(self, scorer: Scorer, memory: PyTree) -> tuple[Draft, PyTree]:
        del memory
        return templates.fill(self.shape, scorer, self.scheme.draw, self.sampling), ()
