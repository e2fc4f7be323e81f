"""The objective of a draft model: its target's distributions."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.protocols import CausalLM
from jspec.training.distributions import forward
from jspec.training.loop import Metrics
from jspec.training.unroll import Batch, observe_batch
from jspec.types import PyTree


@dataclass(frozen=True)
class NextDistribution:
    """The cross-entropy of a draft model's distributions against its target's (distillation).

    A token of text is one draw from the target's distribution; the distribution itself tells as
    much as many draws. As DistillSpec (Zhou et al. 2024, section 3) with the forward pass
    divergence, on text that may be the target's own or not.
    """

    model: CausalLM
    target: CausalLM
    num_target_tokens: int
    drawn: int = 0

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns mean nats of a place, and how alike the two distributions are."""
        distributions = observe_batch(
            self.target, frozen, batch, self.num_target_tokens
        ).distributions
        assert distributions is not None, "an objective that reads distributions asks for some"
        tokens, probs = distributions.tokens[:, :-1], distributions.probs[:, :-1]
        output = forward(self.model, params, batch.tokens[:, :-1])
        if self.drawn:
            assert output.hidden is not None, "a draft model gives its states"
            rows = params["params"]["embed"]
            target_scores = jnp.einsum("bte,btke->btk", output.hidden, rows[tokens])
            counted, scores = self._counted(output.hidden, rows, frozen["hot"], batch)
        else:
            scores = output.logits
            counted = jnp.arange(scores.shape[-1])
            target_scores = jnp.take_along_axis(scores, tokens, axis=-1)
        nats = jax.nn.logsumexp(scores, axis=-1, keepdims=True) - target_scores
        live = batch.live[:, 1:]

        def mean(values: Float[Array, "B T"]) -> Float[Array, ""]:
            return jnp.where(live, values, 0).sum() / jnp.maximum(live.sum(), 1)

        same = counted[scores.argmax(-1)] == tokens[..., 0]
        metrics = {
            "agreement": mean(same.astype(jnp.float32)),
            "overlap": mean(jnp.minimum(jnp.exp(-nats), probs).sum(-1)),
        }
        return mean((probs * nats).sum(-1)), jax.lax.stop_gradient(metrics)

    def _counted(
        self,
        hidden: Float[Array, "B T E"],
        rows: Float[Array, "V E"],
        hot: Int[Array, " H"],
        batch: Batch,
    ) -> tuple[Int[Array, " H+D"], Float[Array, "B T H+D"]]:
        """Returns the tokens of the denominator, their scores and weights."""
        assert batch.draws is not None, "training numbers its draws"
        cold = len(rows) - len(hot)
        # The i-th token that is not hot: i + h, h the number of hot ones before it.
        gaps = jnp.sort(hot) - jnp.arange(len(hot))
        places = jax.random.randint(jax.random.key(batch.draws[0]), (self.drawn,), 0, cold)
        drawn = places + jnp.searchsorted(gaps, places, side="right")
        counted = jnp.concatenate([hot, drawn.astype(hot.dtype)])
        weight = jnp.log(cold / self.drawn) * (jnp.arange(len(counted)) >= len(hot))
        return counted, hidden @ rows[counted].T + weight
