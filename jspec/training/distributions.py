"""The target's distributions, cut to their likeliest tokens."""

import jax
from flax import struct
from jaxtyping import Array, Float, Int

from jspec.arrays.ragged import sequence
from jspec.arrays.top_k import top_k
from jspec.protocols import CausalLM
from jspec.types import Output, PyTree


@struct.dataclass
class Distributions:
    """Distributions over K tokens each, the likeliest first.

    Of a vocabulary of 49,152 tokens the first 16 hold nearly all of a distribution's mass, and take
    a thousandth of its memory and of the time to compare it with another.
    """

    tokens: Int[Array, "*S K"]
    probs: Float[Array, "*S K"]
    """Their probabilities, which sum to 1: all other tokens' probabilities count as 0."""


@struct.dataclass
class Observed:
    """The target's outputs that train a head, over the tokens of a batch."""

    hidden: Float[Array, "B T F"]
    """Its states."""
    distributions: Distributions | None = None
    """Its distributions of the next token, for the objectives that read them."""


def likeliest(scores: Float[Array, "*S V"], size: int) -> Distributions:
    """Returns the distributions of scores, cut to so many tokens; to all where there are fewer.

    Example:
        >>> import jax.numpy as jnp
        >>> distributions = likeliest(jnp.log(jnp.array([0.1, 0.6, 0.3])), 2)
        >>> distributions.tokens.tolist(), [round(p, 3) for p in distributions.probs.tolist()]
        ([1, 2], [0.667, 0.333])
    """
    values, tokens = top_k(scores, min(size, scores.shape[-1]))
    return Distributions(tokens, jax.nn.softmax(values, axis=-1))


def forward(model: CausalLM, params: PyTree, tokens: Int[Array, "B T"]) -> Output:
    """Returns a causal forward pass over whole sequences."""
    return model.apply(params, tokens, *sequence(*tokens.shape), None)


def observe(target: CausalLM, params: PyTree, tokens: Int[Array, "B T"], size: int) -> Observed:
    """Returns the target's states over sequences, and distributions cut to `size`; 0: none."""
    output = forward(target, params, tokens)
    assert output.hidden is not None, "a target of draft heads gives its states"
    return Observed(output.hidden, likeliest(output.logits, size) if size else None)
