"""Node rules: what to accept among drafted children, as probabilities. Nothing here draws.

Losslessness of a rule is an identity that tests check by enumeration: summed over the draws of
the children, accepted mass plus left-over mass times residual is p.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.sampling import argmax, one_hot

Verdicts = tuple[Float[Array, " K"], Float[Array, " V"]]


def point_mass(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> Verdicts:
    """Children that were not drawn at random: draw from p, and keep the token if it was drafted.

    Child k is accepted with p(x_k) / (1 - p of the earlier ones); what is left is p without the
    children. A token that stands twice counts once. Lossless for any children that do not depend
    on the call's key: with a hot start or a script from an earlier run, give each call its own.
    """
    del q, noise
    order = jnp.arange(children.shape[0])
    earlier = (children[:, None] == children) & (order < order[:, None]) & valid
    mass = jnp.where(valid & ~earlier.any(-1), p[children], 0.0)
    left = p.at[jnp.where(valid, children, p.shape[0])].set(0.0, mode="drop")
    # Sums of what remains, not 1 - sums of what is gone: nothing cancels, and the last child of
    # an exhausted law is accepted with exactly 1.
    remaining = jnp.cumsum(mass[::-1])[::-1] + left.sum()
    accept = jnp.where(mass > 0, mass / jnp.where(remaining > 0, remaining, 1.0), 0.0)
    return accept, _normalised(left, p)


def coupled(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> Verdicts:
    """`point_mass` on the target's law *given the position's noise*, which is one certain token.

    The token is argmax(log p + noise), a draw from p (Gumbel-max) that no draft can influence:
    lossless for any proposal, and the same tokens with and without speculation.
    """
    token = argmax(jnp.log(p) + noise)
    return point_mass(one_hot(token, p.shape[0]), q, children, valid, noise)


def _normalised(left: Float[Array, " V"], fallback: Float[Array, " V"]) -> Float[Array, " V"]:
    """`left` as a law; `fallback` where nothing is left (and the residual is never drawn from)."""
    total = left.sum()
    return jnp.where(total > 0, left / jnp.where(total > 0, total, 1.0), fallback)
