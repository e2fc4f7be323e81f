"""The objective of one-pass block heads: many anchors of a text, their blocks in one forward."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec.protocols import CausalLM
from jspec.training.distributions import Distributions
from jspec.training.loop import Metrics
from jspec.training.unroll import Batch, draw_anchors, observed
from jspec.types import PyTree


@dataclass(frozen=True)
class TrainingBlocks:
    """The loss of a block head at anchors drawn from the text, all in one forward.

    The block of an anchor at i sees the target's states before i and itself. Its k-th distribution
    q_k is held to the target's distribution p at i + k, after the text's own tokens, with a weight
    that falls with k, since a token counts only if all before it were right. Of p the likeliest
    tokens are kept, see `jspec.training.distributions`, and q is of the tokens that the head
    scores:

        exp(-k / decay) * (token_weight * CE(p, q_k) + distance_weight * |q_k - p|)

    and the confidence head, if there is one, to the overlap 1 - |q_k - p| / 2 of the two. The
    Markov map reads the text's token before. The sum is divided by that of the weights.

    Source: DSpark (arXiv:2607.05147), section 3, and DFlash; JetSpec's cross-entropy is that with
    the target's distribution too.

    Args:
        target: the model, handing out the states that the head taps.
        head: what is trained, see `jspec.models.heads.block.BlockHead`.
        anchors: blocks of a sequence, drawn anew at every step.
        decay: of the weights, in tokens.
        token_weight: of the cross-entropy.
        distance_weight: of the distance of the two distributions.
        confidence_weight: of the confidence head's cross-entropy.
        num_target_tokens: the tokens that the target's distributions are cut to.

    Raises:
        InputError: if the decay is none.
    """

    target: CausalLM
    head: Any
    anchors: int = 32
    decay: float = 4.0
    token_weight: float = 0.1
    distance_weight: float = 0.9
    confidence_weight: float = 1.0
    num_target_tokens: int = 16

    def __post_init__(self):
        if not 0 < self.decay < float("inf"):
            raise InputError(f"decay is {self.decay}; use a finite one > 0")

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """The loss, and what is accepted.

        Args:
            params: the head's weights.
            frozen: `target`, the target's weights, and `borrowed`, the head's other collections.
            batch: text, with the numbers that anchors are drawn by.

        Returns:
            The loss, and the metrics `acceptance`, of the likeliest token where all before it held,
            `overlap`, of the two distributions, and `token_loss`; each has an entry per depth.
        """
        variables = {**frozen["borrowed"], "params": params}
        seen = observed(self.target, frozen, batch, self.num_target_tokens)
        assert seen.distributions is not None, "they were kept with the states"
        distributions: Distributions = seen.distributions
        at, blocks, live = self._blocks(variables, seen.hidden, batch)
        ids = self.head.scored(variables)
        # Of each token its place among those that the head scores; one behind the last for others.
        places = jnp.full(self.head.vocab_size, len(ids)).at[ids].set(jnp.arange(len(ids)))

        def at_depth(depth: Int[Array, ""]) -> tuple[Array, ...]:
            """Losses and hits [B, A] of one depth: the scores of all would take much memory."""
            place = jnp.minimum(at + depth, batch.tokens.shape[1] - 1)
            state = jnp.take(blocks, depth, axis=2)
            likely, p = (
                jnp.take_along_axis(values, place[..., None], axis=1)
                for values in (distributions.tokens, distributions.probs.astype(jnp.float32))
            )
            token = jnp.take_along_axis(batch.tokens, place, axis=1)
            scores = self.head.inform(variables, self.head.score(variables, state), token)
            crossed, distance = compare(p, scores, places[likely])
            odds = self.head.confidence(variables, state, token)
            overlap = jax.lax.stop_gradient(1 - distance / 2)
            certainty = optax.sigmoid_binary_cross_entropy(odds, overlap)
            return crossed, distance, certainty, ids[scores.argmax(-1)] == likely[..., 0]

        depths = jnp.arange(self.head.num_slots)
        crossed, distance, certainty, right = (
            jnp.moveaxis(values, 0, -1) for values in jax.lax.map(at_depth, depths)
        )
        weights = jnp.where(live, jnp.exp(-depths / self.decay), 0.0)
        losses = self.token_weight * crossed + self.distance_weight * distance
        losses += self.confidence_weight * certainty if self.head.config.confidence_width else 0.0
        held = jnp.cumprod(right, axis=-1)
        tried = live & (jnp.pad(held[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=1) > 0)
        return (weights * losses).sum() / jnp.maximum(weights.sum(), 1e-9), {
            "acceptance": _mean(right, tried),
            "overlap": _mean(1 - distance / 2, live),
            "token_loss": _mean(crossed, live),
        }

    def drafted(
        self, variables: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, "D B A E"], Bool[Array, "D B A"]]:
        """The states of the anchors' blocks, by depth, and which are there; see `loss`."""
        hidden = observed(self.target, frozen, batch).hidden
        _, *both = self._blocks(variables, hidden, batch)
        states, live = (jnp.moveaxis(values, 2, 0) for values in both)
        return states, live

    def _blocks(
        self, variables: PyTree, hidden: Float[Array, "B T+1 F"], batch: Batch
    ) -> tuple[Int[Array, "B A"], Float[Array, "B A D E"], Bool[Array, "B A D"]]:
        """The anchors drawn, the states of their blocks, and which of these are there."""
        at, chosen = draw_anchors(batch, self.anchors)
        tokens = jnp.take_along_axis(batch.tokens, at, axis=1)
        before = jnp.arange(batch.tokens.shape[1]) < at[..., None]
        blocks = self.head.apply(variables, hidden, tokens, at, before)
        return at, blocks, self._live(batch.live, at) & chosen[..., None]

    def _live(self, live: Bool[Array, "B T+1"], at: Int[Array, "B A"]) -> Bool[Array, "B A D"]:
        """The tokens after each anchor that are to be foretold, up to the first that is not."""
        size = live.shape[1]
        places = at[..., None] + 1 + jnp.arange(self.head.num_slots)
        inside = jax.vmap(lambda row, at: row[at])(live, jnp.minimum(places, size - 1))
        return jnp.cumprod(inside & (places < size), axis=-1) > 0


def compare(
    p: Float[Array, "*S K"], scores: Float[Array, "*S d"], places: Int[Array, "*S K"]
) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
    """Cross-entropy and sum of distances of p and the softmax of scores.

    Args:
        p: a distribution over K tokens, and 0 elsewhere.
        scores: of d tokens; no others have a share of q.
        places: of the K tokens among the d; d for one that is not scored, which adds p to the
            distance and nothing to the cross-entropy.
    """
    size = scores.shape[-1]
    scored = places < size
    there = jnp.take_along_axis(scores, jnp.minimum(places, size - 1), axis=-1)
    log_q = there - jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    q = jnp.where(scored, jnp.exp(log_q), 0.0)
    crossed = -jnp.where(scored, p * log_q, 0.0).sum(-1)
    return crossed, jnp.abs(p - q).sum(-1) + jnp.maximum(1 - q.sum(-1), 0.0)


def _mean(values: Array, live: Bool[Array, "B A D"]) -> Float[Array, " D"]:
    total = jnp.where(live, values, 0).sum((0, 1), dtype=jnp.float32)
    return total / jnp.maximum(live.sum((0, 1)), 1)
