"""Forced acceptance: rounds that keep as many drafted tokens as asked for, whatever the model says.

The walk takes the steps and the bonus token that it would take if the target agreed. Only the text
is meaningless, so that no two forwards have to round alike.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

import jspec
from jspec.drafters.retrieval.token_recycling import fitted
from jspec.protocols import Drafter

RIGHT = 1
"""The token that counts as right; `jspec.Scripted` drafts another one where it is to be wrong."""


def right_token(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> tuple[Float[Array, " K"], Float[Array, " V"]]:
    """A node rule that keeps the right token and nothing else; the bonus token is the target's."""
    del q, noise
    return jnp.where(valid & (children == RIGHT), 1.0, 0.0), p


def drafter(vocab_size: int, nodes: int) -> Drafter:
    """Drafts Token Recycling's best tree of so many nodes."""
    return jspec.with_verifier(jspec.Scripted(vocab_size, fitted(nodes, 8)), right_token)


def script(batch: int, tokens_per_round: int) -> jspec.Script:
    """The `drafter_params` with which every round emits so many tokens."""
    return jspec.Script(
        tokens=jnp.full((batch, 1), RIGHT, jnp.int32), accepts=jnp.array([tokens_per_round - 1])
    )
