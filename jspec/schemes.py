"""Draws and the verifiers that make them lossless, in pairs: one without the other is biased."""

from dataclasses import dataclass

from jspec import draws, rules
from jspec.base import Verifier
from jspec.block import BlockVerification
from jspec.draws import Draw
from jspec.verify import Walk


@dataclass(frozen=True)
class Scheme:
    """How a drafter draws children, and what decides about children drawn like that."""

    draw: Draw
    verifier: Verifier


COUPLED = Scheme(draws.coupled, Walk(rules.coupled))
"""Children drawn with the noise that decides the target's token: the tokens depend on the key
alone, not on the drafter."""
RECURSIVE = Scheme(draws.without_replacement, Walk(rules.recursive))
"""Recursive rejection (RSD; Jeon et al. 2024), as Sequoia and DySpec verify. With one child a node
it is speculative decoding (Leviathan et al. 2023; Chen et al. 2023)."""
MULTI_ROUND = Scheme(draws.with_replacement, Walk(rules.multi_round))
"""Multi-round rejection (SpecInfer; Miao et al. 2023)."""
K_SEQ = Scheme(draws.with_replacement, Walk(rules.k_seq))
"""K-SEQ (SpecTr; Sun et al. 2023)."""
BLOCK = Scheme(draws.with_replacement, BlockVerification())
"""Block verification of a chain (Sun et al. 2024)."""
