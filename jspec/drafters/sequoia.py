"""Sequoia (Chen et al. 2024): the tree that an acceptance vector says is best."""

from dataclasses import dataclass

from jspec.drafters.static_tree import StaticTree
from jspec.tree import Template


@dataclass(frozen=True)
class Sequoia(StaticTree):
    """Fills a template that `jspec.optimal` found, drawing without replacement.

    `scheme=jspec.schemes.RECURSIVE` is the published method.

    Args:
        tree: its shape, from `jspec.optimal.best_template` and an acceptance vector that
            `jspec.acceptance.measure` found for this pair of models.

    Raises:
        ValueError: if it is empty, or gives a node more children than there are tokens.
    """

    tree: Template

    @property
    def template(self) -> Template:
        return self.tree
