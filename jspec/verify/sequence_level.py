"""Helpers of sequence-level verification, which judges a draft as a whole, not node by node."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import sampling as samplings
from jspec.types import Frame
from jspec.verify.tree_verifier import UNIFORMS


def distributions_and_uniforms(
    logits: Float[Array, "B P V"], frame: Frame, tests: int
) -> tuple[Float[Array, "B P V"], Float[Array, "B U"]]:
    """Returns the target's distributions, and a uniform for each test."""
    batch, _, size = logits.shape
    if frame.sampling is None or frame.keys is None:
        return samplings.one_hot(samplings.argmax(logits), size), jnp.zeros((batch, tests))
    # All uniforms from the root's position. `TreeVerifier` tosses one per position and stops at the
    # first that refuses; here tokens behind the last kept one were tested too, and the next round,
    # whose root is among them, would toss those uniforms again, knowing how they fell.
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (tests,), jnp.float32))(
        samplings.fork(frame.keys, frame.positions, UNIFORMS)
    )
    return samplings.node_probabilities(logits, frame.sampling), uniforms


def next_token(
    accepted: Int[Array, " B"], residual: Float[Array, "B V"], frame: Frame
) -> Int[Array, " B"]:
    """Draws the token after the kept ones, by the noise of its position."""
    noise = jnp.zeros_like(residual)
    if frame.sampling is not None and frame.keys is not None:
        noise = samplings.gumbel(frame.keys, frame.positions + accepted, residual.shape[-1])
    return samplings.argmax(jnp.log(residual) + noise)
