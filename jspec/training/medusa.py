"""The objective of Medusa's heads: the text's tokens, each head's one place further on."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from jspec.base import PyTree
from jspec.protocols import CausalLM
from jspec.sampling import top_k
from jspec.training.loop import Metrics
from jspec.training.unroll import Batch, observed


@dataclass(frozen=True)
class Ahead:
    """Medusa-1 (arXiv:2401.10774, section 2.2.1): the target is frozen, the heads learn alone.

    The sum over heads of decay^i * CE of head i at position j with the token at j + 2 + i.

    Args:
        target: the model that drafts are for.
        head: the heads, see `jspec.models.heads.medusa.MedusaHeads`.
        decay: weight of each head against the one before.
    """

    target: CausalLM
    head: Any
    decay: float = 0.8

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """The loss, and how often each head's likeliest token is right.

        Args:
            params: the heads' weights.
            frozen: `target`, the target's weights; not read where the batch has its states.
            batch: text.

        Returns:
            The loss, and per head the metrics `accuracy`, of the likeliest token; `acceptance`, the
            same where all heads before it are right; and `token_loss`.
        """
        scores, tokens, live = _ahead(self.target, self.head, params, frozen, batch)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, tokens)
        right = scores.argmax(-1) == tokens
        before = jnp.roll(jnp.cumprod(right, axis=2), 1, axis=2).at[:, :, 0].set(1) > 0
        token_loss = _mean(losses, live)
        weights = self.decay ** jnp.arange(token_loss.shape[0])
        return (weights * token_loss).sum(), {
            "accuracy": _mean(right, live),
            "acceptance": _mean(right, live & before),
            "token_loss": token_loss,
        }


def accuracies(
    target: CausalLM, head: Any, params: PyTree, frozen: PyTree, batch: Batch, ranks: int
) -> Float[Array, "K R"]:
    """The share of right tokens for each head and rank, which a tree is fitted to."""
    scores, tokens, live = _ahead(target, head, params, frozen, batch)
    _, likely = top_k(scores, ranks)
    right = likely == tokens[..., None]
    return _mean(right, live[..., None])


def _ahead(
    target: CausalLM, head: Any, params: PyTree, frozen: PyTree, batch: Batch
) -> tuple[Float[Array, "B T K V"], Int[Array, "B T K"], Bool[Array, "B T K"]]:
    """Scores, the tokens that they are of, and which of these are there."""
    scores = head.apply({"params": params}, observed(target, frozen, batch).hidden)
    length, heads = batch.tokens.shape[1], scores.shape[2]
    places = jnp.arange(length)[:, None] + 2 + jnp.arange(heads)
    inside = jnp.minimum(places, length - 1)
    return scores, batch.tokens[:, inside], batch.live[:, inside] & (places < length)


def _mean(values: Array, live: Array) -> Array:
    """The mean of live values over rows and positions."""
    live = jnp.broadcast_to(live, values.shape)
    total = jnp.where(live, values, 0).sum((0, 1), dtype=jnp.float32)
    return total / jnp.maximum(live.sum((0, 1)), 1)
