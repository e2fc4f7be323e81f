"""Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a chain from a draft model."""

from dataclasses import dataclass

from jspec.drafters.draft_model.static_tree import StaticTree
from jspec.tree import Template, chain


@dataclass(frozen=True)
class SpeculativeDecoding(StaticTree):
    """Drafts one token after the other, each from the draft model's distribution.

    `scheme=jspec.schemes.RECURSIVE` is the published method (with one child a node it is their
    rejection sampling), `BLOCK` decides about the whole chain at once.

    Args:
        num_speculative_tokens: drafted tokens (gamma in Leviathan et al., L in RSD).

    Raises:
        InputError: if the length is below 1.
    """

    num_speculative_tokens: int = 4

    @property
    def shape(self) -> Template:
        return chain(self.num_speculative_tokens)
