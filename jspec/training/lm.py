"""Causal forward passes over whole sequences."""

import optax
from jaxtyping import Array, Float, Int

from jspec.arrays.ragged import sequence
from jspec.protocols import CausalLM
from jspec.types import Output, PyTree


def forward(model: CausalLM, params: PyTree, tokens: Int[Array, "B T"]) -> Output:
    """Returns a causal forward pass over whole sequences."""
    return model.apply(params, tokens, *sequence(*tokens.shape), None)


def losses(model: CausalLM, params: PyTree, sequences: Int[Array, "B T+1"]) -> Float[Array, "B T"]:
    """Returns nats of each token after the first."""
    scores = forward(model, params, sequences[:, :-1]).logits
    return optax.softmax_cross_entropy_with_integer_labels(scores, sequences[:, 1:])
