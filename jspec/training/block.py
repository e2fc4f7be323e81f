"""The objective of one-pass block heads: many anchors of a text, their blocks in one forward."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache, Output, PyTree, TreeKV
from jspec.errors import InputError
from jspec.protocols import CausalLM
from jspec.training.loop import Metrics
from jspec.training.unroll import Batch, states_of


@dataclass(frozen=True)
class WithLast:
    """A target whose states are its tapped layers' and, behind these, the one its head reads.

    Both are wanted in training, and each forward of a model hands out one of them; compiled
    together they are one forward.

    Args:
        model: hands out the state that its head reads.
        tapped: the same model with taps.
    """

    model: Any
    tapped: Any

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context(self) -> int | None:
        return self.model.context

    @property
    def features(self) -> int:
        """The width of both together."""
        return self.tapped.features + self.model.features

    def init_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache of the model."""
        return self.model.init_cache(batch, slots)

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        cache: Cache | None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """The model's output, with both states."""
        inputs = tokens, positions, mask, cache, nodes
        output = self.model.apply(params, *inputs)
        tapped = self.tapped.apply(params, *inputs).hidden
        return output.replace(hidden=jnp.concatenate([tapped, output.hidden], axis=-1))


@dataclass(frozen=True)
class Blocks:
    """The loss of a block head at anchors drawn from the text, all in one forward.

    The block of an anchor at i sees the target's states before i and itself. Its k-th law q_k is
    held to the target's law p at i + k, after the text's own tokens, with a weight that falls with
    k, since a token counts only if all before it were right:

        exp(-k / decay) * (token_weight * CE(p, q_k) + distance_weight * |q_k - p|)

    and the confidence head, if there is one, to the overlap 1 - |q_k - p| / 2 of the two. The
    Markov map reads the text's token before. The sum is divided by that of the weights.

    Source: DSpark (arXiv:2607.05147), section 3, and DFlash; JetSpec's cross-entropy is that with
    the target's law too.

    Args:
        target: see `WithLast`; the head's taps and its own last state.
        head: what is trained, see `jspec.models.heads.block.BlockHead`.
        anchors: blocks of a sequence, drawn anew at every step.
        decay: of the weights, in tokens.
        token_weight: of the cross-entropy.
        distance_weight: of the distance of the two laws.
        confidence_weight: of the confidence head's cross-entropy.

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
            `overlap`, of the two laws, and `token_loss`; each has an entry per depth.
        """
        variables = {**frozen["borrowed"], "params": params}
        states = batch.hidden
        if states is None:
            states = states_of(self.target, frozen["target"], batch.tokens)
        states = jax.lax.stop_gradient(states.astype(jnp.float32))
        tapped, last = jnp.split(states, [self.head.features], axis=-1)

        at, chosen = draw_anchors(batch, self.anchors)
        tokens = jnp.take_along_axis(batch.tokens, at, axis=1)
        before = jnp.arange(batch.tokens.shape[1]) < at[..., None]
        blocks = self.head.apply(variables, tapped, tokens, at, before)
        live = self._live(batch.live, at) & chosen[..., None]

        def at_depth(depth: Int[Array, ""]) -> tuple[Array, ...]:
            """Losses and hits [B, A] of one depth: the scores of all would take much memory."""
            place = jnp.minimum(at + depth, batch.tokens.shape[1] - 1)
            state = jnp.take(blocks, depth, axis=2)
            true = jnp.take_along_axis(last, place[..., None], axis=1)
            p = jax.nn.softmax(self._scores(variables, true, None))
            token = jnp.take_along_axis(batch.tokens, place, axis=1)
            scores = self._scores(variables, state, token)
            distance = jnp.abs(jax.nn.softmax(scores) - p).sum(-1)
            odds = self.head.confidence(variables, state, token)
            overlap = jax.lax.stop_gradient(1 - distance / 2)
            crossed = optax.softmax_cross_entropy(scores, p)
            certainty = optax.sigmoid_binary_cross_entropy(odds, overlap)
            return crossed, distance, certainty, scores.argmax(-1) == p.argmax(-1)

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

    def _scores(
        self, variables: PyTree, states: Float[Array, "B A E"], tokens: Int[Array, "B A"] | None
    ) -> Float[Array, "B A V"]:
        """Scores of states, given the token before; None: of the target's own states."""
        scores = self.head.score(variables, states)
        if tokens is None:
            return jax.lax.stop_gradient(scores)
        return self.head.apply(variables, scores, tokens, method="informed")

    def _live(self, live: Bool[Array, "B T+1"], at: Int[Array, "B A"]) -> Bool[Array, "B A D"]:
        """The tokens after each anchor that are text, up to the first that is none."""
        size = live.shape[1]
        places = at[..., None] + 1 + jnp.arange(self.head.num_slots)
        inside = jax.vmap(lambda row, at: row[at])(live, jnp.minimum(places, size - 1))
        return jnp.cumprod(inside & (places < size), axis=-1) > 0


def draw_anchors(batch: Batch, count: int) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Draws positions of anchors in their order, without replacement, and says which are there.

    A position is an anchor's if it and the next hold text; a row with fewer has some absent.
    """
    assert batch.draws is not None, "training numbers its draws"
    follows = batch.live[:, :-1] & batch.live[:, 1:]

    def draw(number: Int[Array, ""], follows: Bool[Array, " T"]) -> tuple[Array, Array]:
        order = jax.random.uniform(jax.random.key(number), follows.shape)
        found, at = jax.lax.top_k(jnp.where(follows, order, -1.0), min(count, len(follows)))
        place = jnp.sort(jnp.where(found >= 0, at, len(follows)))
        there = place < len(follows)
        return jnp.where(there, place, 0), there

    return jax.vmap(draw)(batch.draws, follows)


def _mean(values: Array, live: Bool[Array, "B A D"]) -> Float[Array, " D"]:
    total = jnp.where(live, values, 0).sum((0, 1), dtype=jnp.float32)
    return total / jnp.maximum(live.sum((0, 1)), 1)
