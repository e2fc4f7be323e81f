"""Sequoia (Chen et al. 2024): the tree that an acceptance vector says is best."""

from dataclasses import dataclass

from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.tree import Template


@dataclass(frozen=True)
class Sequoia(StaticTree):
    """Fills a template that `jspec.sequoia_tree` found, drawing without replacement.

    `scheme=jspec.schemes.RECURSIVE` is the published method.

    Args:
        template: its shape, from `jspec.sequoia_tree.best_template` and an acceptance vector that
            `jspec.acceptance_vector.measure` found for this pair of models.

    Raises:
        InputError: if it is empty, or gives a node more children than there are tokens.
    """

    template: Template

    @property
    def shape(self) -> Template:
        return self.template
