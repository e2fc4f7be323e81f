"""The objective of draft heads over hidden states: the target's next states, several ahead."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from jspec.protocols import CausalLM
from jspec.training.distributions import Observed, observe
from jspec.training.loop import Metrics
from jspec.types import Output, PyTree


@struct.dataclass
class Batch:
    """Tokens of text, and what the target makes of them."""

    tokens: Int[Array, "B T+1"]
    live: Bool[Array, "B T+1"]
    """True where a token is to be foretold; prompts and the padding behind the text are not."""
    observed: Observed | None = None
    """The target's states over the tokens if they are at hand; None: computed on the fly."""
    draws: Int[Array, " B"] | None = None
    """A number for each row, others at each step, for objectives that draw; None: they do not."""


@dataclass(frozen=True)
class Unrolled:
    """The loss of a draft head that goes on from its own states, as it will when it drafts.

    Step 1 reads the target's true state at every position j and predicts the one at j + 1. Step i
    reads what step i - 1 predicted at j, and is held to the target's state at j + i. It sees the
    true pairs up to j and its own earlier steps, as when it drafts (the training-time test of
    EAGLE-3, arXiv:2503.01840; HASS). One step is EAGLE-1's teacher forcing; unrolling stands
    in for the noise that EAGLE-1 adds to true states.

    The distributions are of all tokens, also where a head has token info of the hot ones alone
    (Lyanna section 6.1). Of a head that drafts nothing but hot tokens only their scores are
    compared, as distributions of these alone, and it is right nowhere else.

    Per step, with h, l of the head and H, L of the target (Lyanna section 4.1, EAGLE section 4.2):

        state_weight * state_loss(h, H) + token_weight * CE(softmax(l), softmax(L))

    Args:
        target: the model that drafts are for.
        head: what is trained, with the methods of `jspec.models.heads.base.TransformerHead`.
        steps: of the unrolling; as many as the trees will be deep.
        state_loss: of predicted and true states, by element.
        state_weight: alpha.
        token_weight: beta.
        decay: weight of each step against the one before.
        places: of a row at which tokens are scored and steps after the first are made, drawn anew
            at every step of the training; 0 is all. The first step's states are made and compared
            at all. A product with a large vocabulary is most of the work, and a further step's
            pair sees the true ones and itself alone, so a few places cost a few places' time.
    """

    target: CausalLM
    head: Any
    steps: int = 3
    state_loss: Callable[[Array, Array], Array] = optax.losses.squared_error
    state_weight: float = 1.0
    token_weight: float = 0.1
    decay: float = 0.8
    places: int = 0

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the loss, and the acceptance per step given the steps before.

        Args:
            params: the head's weights.
            frozen: `target`, the target's weights, and `borrowed`, the head's other collections.
            batch: text.

        Returns:
            The loss, and `acceptance`, `state_loss` and `token_loss`, with one entry per step.
        """
        variables = {**frozen["borrowed"], "params": params}
        states = observe_batch(self.target, frozen, batch).hidden
        anchors, valid = self._scored_places(batch)
        placed = partial(_gather, index=anchors)
        # Where the text goes on with a token that is not hot, hot ones have nothing to learn.
        learnable, hot = jnp.ones(batch.tokens.shape, bool), self.head.hot(variables)
        if hot is not None:
            learnable = jnp.zeros(self.head.vocab_size, bool).at[hot].set(True)[batch.tokens]
        right = jnp.ones(anchors.shape, bool)
        weight, total, metrics = 1.0, jnp.float32(0), []
        for step, output in enumerate(self.predictions(variables, states, batch.tokens, anchors)):
            assert output.hidden is not None, "a head predicts states"
            every = ahead(states, step), _there(batch, step)
            true, live = placed(every[0]), placed(every[1]) & valid
            # The first step's states are made of all pairs, and compared at all of them.
            compared = every if step == 0 else (true, live)
            state_loss = _mean(self.state_loss(output.hidden, compared[0]).mean(-1), compared[1])
            hidden = placed(output.hidden) if step == 0 else output.hidden
            tokens = ahead(batch.tokens, step)
            probs, logits = self._scored(variables, true, hidden, placed(tokens))
            told_of = placed(ahead(learnable, step + 1))
            crossed = optax.softmax_cross_entropy(logits, probs)
            losses = state_loss, _mean(crossed, live & told_of)
            total += weight * (self.state_weight * losses[0] + self.token_weight * losses[1])
            weight *= self.decay
            before, right = right, right & told_of & (logits.argmax(-1) == probs.argmax(-1))
            metrics.append((_mean(right, live & before), *losses))
        names = "acceptance", "state_loss", "token_loss"
        return total, dict(zip(names, map(jnp.stack, zip(*metrics, strict=True)), strict=True))

    def _scored_places(self, batch: Batch) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
        """Returns the pairs whose tokens are scored, and which of them are there."""
        if self.places:
            return draw_anchors(batch, self.places)
        rows, pairs = batch.tokens.shape[0], batch.tokens.shape[1] - 1
        return jnp.broadcast_to(jnp.arange(pairs), (rows, pairs)), jnp.ones((rows, pairs), bool)

    def _scored(
        self,
        variables: PyTree,
        true: Float[Array, "B A E"],
        hidden: Float[Array, "B A E"],
        tokens: Int[Array, "B A"],
    ) -> tuple[Float[Array, "B A d"], Float[Array, "B A d"]]:
        """Returns the target's distribution after true states, and the head's scores."""
        head = self.head
        if head.hot(variables) is not None:
            distribution = jax.nn.softmax(head.score_hot(variables, true))
            return distribution, head.score_hot(variables, hidden, tokens)
        distribution = jax.nn.softmax(head.score(variables, true))
        return distribution, head.inform(variables, head.score(variables, hidden), tokens)

    def predictions(
        self,
        variables: PyTree,
        states: Float[Array, "B T+1 F"],
        tokens: Int[Array, "B T+1"],
        at: Int[Array, "B A"],
    ) -> Iterator[Output]:
        """Yields the head's outputs by step: of every first pair, then of some.

        Step s (from 0) of pair j is at position j + s and predicts the state at j + 1 + s.

        Args:
            variables: the head's.
            states: the target's.
            tokens: the text.
            at: the pairs of the steps after the first.
        """
        rows, pairs = tokens.shape[0], tokens.shape[1] - 1
        every = jnp.broadcast_to(jnp.arange(pairs), (rows, pairs))
        causal = jnp.tril(jnp.ones((pairs, pairs), bool))
        output = self.head.apply(
            *(variables, states[:, :-1], ahead(tokens, 0), every),
            jnp.broadcast_to(causal, (rows, pairs, pairs)),
        )
        yield output
        nodes = output.tentative
        hidden = jnp.take_along_axis(output.hidden, at[..., None], axis=1)
        identity = jnp.eye(at.shape[1], dtype=bool)
        identity = jnp.broadcast_to(identity, (rows, *identity.shape))
        mask = causal[at]
        for step in range(1, self.steps):
            mask = jnp.concatenate([mask, identity], axis=-1)
            following = jnp.take_along_axis(ahead(tokens, step), at, axis=1)
            output = self.head.apply(
                *(variables, hidden, following, at + step, mask, None, nodes), method="further"
            )
            yield output
            nodes = nodes.concat(output.tentative)
            hidden = output.hidden


def draw_anchors(batch: Batch, count: int) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Draws positions of anchors in their order, without replacement, and says which are there.

    A position is an anchor's if the next token is to be foretold; a row with fewer has some absent.
    """
    assert batch.draws is not None, "training numbers its draws"
    follows = batch.live[:, 1:]

    def draw(number: Int[Array, ""], follows: Bool[Array, " T"]) -> tuple[Array, Array]:
        order = jax.random.uniform(jax.random.key(number), follows.shape)
        scores, index = jax.lax.top_k(jnp.where(follows, order, -1.0), min(count, len(follows)))
        place = jnp.sort(jnp.where(scores >= 0, index, len(follows)))
        valid = place < len(follows)
        return jnp.where(valid, place, 0), valid

    return jax.vmap(draw)(batch.draws, follows)


def _gather(values: Shaped[Array, "B T *S"], index: Int[Array, "B A"]) -> Shaped[Array, "B A *S"]:
    return jax.vmap(lambda row, index: row[index])(values, index)


def _there(batch: Batch, step: int) -> Bool[Array, "B T"]:
    """Returns which pairs have a token to foretell so many steps further on."""
    pairs = batch.tokens.shape[1] - 1
    return ahead(batch.live, step) & (jnp.arange(pairs) < pairs - step)


def ahead(array: Shaped[Array, "B T+1 *S"], step: int) -> Shaped[Array, "B T *S"]:
    """Returns the entries `step + 1` places further on; the last `step` places wrap around."""
    return jnp.roll(array, -1 - step, axis=1)[:, :-1]


def observe_batch(
    target: CausalLM, frozen: PyTree, batch: Batch, num_target_tokens: int = 0
) -> Observed:
    """Returns what the target makes of a batch, in float32 and without gradients.

    Args:
        target: the model, of the weights `frozen["target"]`.
        frozen: see `jspec.training.loop.Objective`.
        batch: read where it holds the target's states already.
        num_target_tokens: tokens that the target's distributions are cut to; 0: no distributions.
    """
    seen = batch.observed or observe(target, frozen["target"], batch.tokens, num_target_tokens)
    seen = jax.lax.stop_gradient(seen)
    return replace(seen, hidden=seen.hidden.astype(jnp.float32))


def _mean(values: Array, live: Bool[Array, "B T"]) -> Float[Array, ""]:
    return jnp.where(live, values, 0).sum() / jnp.maximum(live.sum(), 1)
