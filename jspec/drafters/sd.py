"""Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a chain from a draft model."""

from dataclasses import dataclass

from jspec.drafters.static_tree import StaticTree
from jspec.tree import Template, chain


@dataclass(frozen=True)
class SpeculativeDecoding(StaticTree):
    """Drafts one token after the other, each from the draft model's law.

    `scheme=jspec.schemes.RECURSIVE` is the published method (with one child a node it is their
    rejection sampling), `BLOCK` decides about the whole chain at once.

    Args:
        length: drafted tokens (gamma in Leviathan et al., L in RSD).

    Raises:
        ValueError: if the length is below 1.
    """

    length: int = 4

    @property
    def template(self) -> Template:
        return chain(self.length)
