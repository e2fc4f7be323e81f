"""Schemes: a way to draw children paired with the verifier that makes it lossless."""

from dataclasses import dataclass
from typing import Any

from jspec._validate.errors import InputError
from jspec.protocols import Verifier
from jspec.verify import proposals, rules
from jspec.verify.block_verification import BlockVerification
from jspec.verify.choice import COUPLED_VERIFIER
from jspec.verify.proposals import ChildSampler
from jspec.verify.traversal_verification import TraversalVerification
from jspec.verify.tree_verifier import TreeVerifier


@dataclass(frozen=True)
class Scheme:
    """A way to draw children, together with the verifier of children drawn like that.

    Args:
        draw: draws the children of nodes.
        verifier: decides about children that were drawn like that.

    Example:
        >>> import jspec
        >>> str(jspec.schemes.RECURSIVE.verifier)
        'recursive'
    """

    draw: ChildSampler
    verifier: Verifier


COUPLED = Scheme(proposals.coupled, COUPLED_VERIFIER)
"""Children drawn with the target's noise: tokens depend on the key alone, not the drafter."""
GUMBEL_LIST = Scheme(proposals.gumbel_list, TreeVerifier(rules.coupled))
"""Independent children, each drawn with its own noise; the target's noise is their largest
(Rowan et al. 2025). The tokens are those of `COUPLED`, which keeps children more often.
"""
RECURSIVE = Scheme(proposals.without_replacement, TreeVerifier(rules.recursive))
"""Recursive rejection (RSD; Jeon et al. 2024), as Sequoia and DySpec verify. With one child
per node it is speculative decoding (Leviathan et al. 2023; Chen et al. 2023)."""
MULTI_ROUND = Scheme(proposals.with_replacement, TreeVerifier(rules.multi_round))
"""Multi-round rejection (SpecInfer; Miao et al. 2023)."""
K_SEQ = Scheme(proposals.with_replacement, TreeVerifier(rules.k_seq))
"""K-SEQ (SpecTr; Sun et al. 2023)."""
BLOCK = Scheme(proposals.with_replacement, BlockVerification())
"""Block verification of a chain (Sun et al. 2024)."""


TRAVERSAL = Scheme(proposals.without_replacement, TraversalVerification())
"""Traversal verification (Weng et al. 2025): `RECURSIVE`'s draws, judged from the leaves."""


def check(scheme: Any) -> None:
    """Raises InputError unless it is a scheme."""
    if not isinstance(scheme, Scheme):
        raise InputError(
            f"scheme is {scheme!r:.80}; pass a draw with its verifier, such as "
            "jspec.schemes.RECURSIVE"
        )
