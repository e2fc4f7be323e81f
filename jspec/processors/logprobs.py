"""Log-probabilities of emitted tokens, from the logits of nodes that were verified anyway."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import sampling as samplings
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla.ragged import append
from jspec.types import Logprobs, Sampling

RAW = "raw_logprobs"
"""Of the model alone."""
PROCESSED = "processed_logprobs"
"""Of the distribution that tokens are drawn from: after processors, grammar, temperature and
filters. In greedy rows temperature and filters are left out, as they leave one token."""


@dataclass(frozen=True)
class Asked:
    """Which log-probabilities are recorded."""

    num_top: int
    """The number of likeliest tokens at each place."""
    mode: str
    """`RAW` or `PROCESSED`, in the words of vLLM."""


def asked(logprobs: Any, mode: Any, vocab_size: int) -> Asked | None:
    """The checked arguments `logprobs` and `logprobs_mode` of `decode`.

    Raises:
        InputError: if the number is no integer in 0 .. V, or the mode is none of the two.
    """
    if mode not in (RAW, PROCESSED):
        raise InputError(f"logprobs_mode is {mode!r:.40}; pass {RAW!r} or {PROCESSED!r}")
    if logprobs is None:
        return None
    check_integer("logprobs", logprobs, 0, vocab_size, "the vocabulary")
    return Asked(int(logprobs), mode)


def empty(asked: Asked, batch: int, size: int) -> Logprobs:
    """Room for the log-probabilities of `size` tokens a row."""
    top = (batch, size, asked.num_top)
    return Logprobs(
        emitted=jnp.zeros(top[:2], jnp.float32),
        top_tokens=jnp.zeros(top, jnp.int32) if asked.num_top else None,
        top=jnp.zeros(top, jnp.float32) if asked.num_top else None,
    )


def of_round(num_top: int, scores: Float[Array, "B P V"], emitted: Int[Array, "B P"]) -> Logprobs:
    """Those of a round's tokens.

    Args:
        num_top: the number of likeliest tokens at each place.
        scores: log-probabilities of the token after each node of the path.
        emitted: the round's tokens.
    """
    own = jnp.take_along_axis(scores, emitted[..., None], axis=-1)[..., 0]
    if not num_top:
        return Logprobs(own, None, None)
    values, tokens = samplings.top_k(scores, num_top)
    return Logprobs(own, tokens, values)


def record(
    known: Logprobs, lengths: Int[Array, " B"], new: Logprobs, counts: Int[Array, " B"]
) -> Logprobs:
    """Adds those of a round.

    Args:
        known: before the round.
        lengths: tokens of each row before the round.
        new: of the round, see `of_round`.
        counts: how many they are.
    """
    return jax.tree.map(lambda buffer, new: append(buffer, lengths, new, counts), known, new)


def scores(logits: Float[Array, "B P V"], sampling: Sampling | None) -> Float[Array, "B P V"]:
    """The log-probabilities that logits stand for; those drawn from, if `sampling` is given."""
    plain = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    if sampling is None:
        return plain
    drawn = jnp.log(samplings.node_probabilities(logits, sampling))
    greedy = jnp.asarray(sampling.temperature) == 0
    return jnp.where(greedy[:, None, None], plain, drawn)
