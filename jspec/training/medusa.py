"""The objective of Medusa's heads: the text's tokens, each head's one place further on."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from jspec.arrays.top_k import top_k
from jspec.protocols import CausalLM
from jspec.training.loop import Metrics
from jspec.training.unroll import Batch, draw_anchors, observe_batch
from jspec.types import PyTree


@dataclass(frozen=True)
class Ahead:
    """Medusa-1 (arXiv:2401.10774, section 2.2.1): the target is frozen, the heads learn alone.

    The sum over heads of decay^i * CE of head i at position j with the token at j + 2 + i. Heads
    that score some tokens alone learn from those, and of all others are wrong.

    Args:
        target: the model that drafts are for.
        head: the heads, see `jspec.models.heads.medusa.MedusaHeads`.
        decay: weight of each head against the one before.
        places: positions of a row that the heads are scored at, drawn anew at every step of the
            training; 0 is all. Their products with a large vocabulary are nearly all of the work.
    """

    target: CausalLM
    head: Any
    decay: float = 0.8
    places: int = 0

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the loss, and how often each head's likeliest token is right.

        Args:
            params: the heads' weights.
            frozen: `target`, the target's weights, not read where the batch has its states; and
                `borrowed`, the heads' other collections, if they have any.
            batch: text.

        Returns:
            The loss, and per head the metrics `accuracy`, of the likeliest token; `acceptance`, the
            same where all heads before it are right; and `token_loss`.
        """
        ahead = _ahead(self.target, self.head, params, frozen, batch, self.places)
        size = ahead.scores.shape[-1]
        inside = jnp.minimum(ahead.tokens, size - 1)
        losses = optax.softmax_cross_entropy_with_integer_labels(ahead.scores, inside)
        right, live = ahead.scores.argmax(-1) == ahead.tokens, ahead.live
        before = jnp.roll(jnp.cumprod(right, axis=2), 1, axis=2).at[:, :, 0].set(1) > 0
        token_loss = _mean(losses, live & (ahead.tokens < size))
        weights = self.decay ** jnp.arange(token_loss.shape[0])
        return (weights * token_loss).sum(), {
            "accuracy": _mean(right, live),
            "acceptance": _mean(right, live & before),
            "token_loss": token_loss,
        }


def accuracies(
    target: CausalLM, head: Any, params: PyTree, frozen: PyTree, batch: Batch, ranks: int
) -> Float[Array, "K R"]:
    """Returns the share of right tokens for each head and rank, which a tree is fitted to."""
    ahead = _ahead(target, head, params, frozen, batch)
    _, likely = top_k(ahead.scores, ranks)
    right = likely == ahead.tokens[..., None]
    return _mean(right, ahead.live[..., None])


class _Ahead(NamedTuple):
    """Scores of K heads at A positions per row, with their labels."""

    scores: Float[Array, "B A K d"]
    tokens: Int[Array, "B A K"]
    """The text's, as places among the d that the heads score; d for those that they do not."""
    live: Bool[Array, "B A K"]
    """True where a position is valid."""


def _ahead(
    target: CausalLM, head: Any, params: PyTree, frozen: PyTree, batch: Batch, places: int = 0
) -> _Ahead:
    """Returns the heads' scores at some positions of each row, drawn; 0: at all."""
    variables = {**frozen.get("borrowed", {}), "params": params}
    states, length = observe_batch(target, frozen, batch).hidden, batch.tokens.shape[1]
    anchors = jnp.broadcast_to(jnp.arange(length), batch.tokens.shape)
    valid = jnp.ones(anchors.shape, bool)
    if places:
        anchors, valid = draw_anchors(batch, places)
    scores = head.apply(variables, jnp.take_along_axis(states, anchors[..., None], axis=1))
    ahead = anchors[..., None] + 2 + jnp.arange(scores.shape[2])
    inside = jnp.minimum(ahead, length - 1)
    tokens, live = (
        jax.vmap(lambda row, index: row[index])(a, inside) for a in (batch.tokens, batch.live)
    )
    ids = head.scored(variables)
    of_token = jnp.full(head.vocab_size, len(ids)).at[ids].set(jnp.arange(len(ids)))
    return _Ahead(scores, of_token[tokens], live & (ahead < length) & valid[..., None])


def _mean(values: Array, live: Array) -> Array:
    """Returns the mean of live values over rows and positions."""
    live = jnp.broadcast_to(live, values.shape)
    total = jnp.where(live, values, 0).sum((0, 1), dtype=jnp.float32)
    return total / jnp.maximum(live.sum((0, 1)), 1)
