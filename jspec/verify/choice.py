"""The verifier for a drafter's draws, and the tokens that it decided."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec.protocols import Drafter, Verifier
from jspec.types import Tree, Verdict
from jspec.verify import rules
from jspec.verify.tree_verifier import TreeVerifier

COUPLED_VERIFIER = TreeVerifier(rules.coupled)
"""The verifier of every drafter that has none of its own."""


def verifier_of(drafter: Drafter) -> Verifier:
    """Returns the verifier of a drafter's draws: its own `verifier`, or the coupled rule."""
    return COUPLED_VERIFIER if drafter.verifier is None else drafter.verifier


def takes_parts(drafter: Drafter) -> bool:
    """Returns whether the engine may verify some of the drafter's nodes alone: true for the
    coupled rule; sampled trees must be verified whole.
    """
    return verifier_of(drafter) == COUPLED_VERIFIER


def tokens(tree: Tree, verdict: Verdict) -> Int[Array, "B P"]:
    """Returns the tokens of a round: the first `Verdict.path_lengths` of each row are the
    accepted ones and the next; what follows is never read.

    Args:
        tree: that was verified.
        verdict: of it.
    """
    steps = jnp.arange(verdict.path.shape[1])[None]
    # Token i of the round is node i + 1 of the path; behind the last node comes the bonus.
    below = jnp.roll(verdict.path, -1, axis=1)
    drafted = jnp.take_along_axis(tree.tokens, below, axis=1)
    last = steps == verdict.path_lengths[:, None] - 1
    return jnp.where(last, verdict.bonus[:, None], drafted)
