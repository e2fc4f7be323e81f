"""What a causal language model is trained for: the next token."""

from dataclasses import dataclass

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jspec.base import CausalLM, PyTree
from jspec.training.loop import Metrics


@dataclass(frozen=True)
class NextToken:
    """Mean nats of each token after the first, as a `jspec.training.loop.Objective`."""

    model: CausalLM

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Int[Array, "B T+1"]
    ) -> tuple[Float[Array, ""], Metrics]:
        del frozen
        return losses(self.model, params, batch).mean(), {}


def logits(model: CausalLM, params: PyTree, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """A causal forward over whole sequences."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
    return model.apply(params, tokens, positions, mask, None).logits


def losses(model: CausalLM, params: PyTree, sequences: Int[Array, "B T+1"]) -> Float[Array, "B T"]:
    """Nats of each token after the first."""
    scores = logits(model, params, sequences[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(scores, sequences[:, 1:])
