"""The objective of a causal language model: the next token."""

from dataclasses import dataclass

import optax
from jaxtyping import Array, Float, Int

from jspec.arrays.ragged import sequence
from jspec.protocols import CausalLM
from jspec.training.loop import Metrics
from jspec.types import Output, PyTree


@dataclass(frozen=True)
class NextToken:
    """Mean nats of each token after the first, as a `jspec.training.loop.Objective`."""

    model: CausalLM

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Int[Array, "B T+1"]
    ) -> tuple[Float[Array, ""], Metrics]:
        del frozen
        return losses(self.model, params, batch).mean(), {}


def forward(model: CausalLM, params: PyTree, tokens: Int[Array, "B T"]) -> Output:
    """A causal forward over whole sequences."""
    return model.apply(params, tokens, *sequence(*tokens.shape), None)


def losses(model: CausalLM, params: PyTree, sequences: Int[Array, "B T+1"]) -> Float[Array, "B T"]:
    """Nats of each token after the first."""
    scores = forward(model, params, sequences[:, :-1]).logits
    return optax.softmax_cross_entropy_with_integer_labels(scores, sequences[:, 1:])
