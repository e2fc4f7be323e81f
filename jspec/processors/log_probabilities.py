"""Log-probabilities of emitted tokens, from the logits of nodes that were verified anyway."""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import sampling as samplings
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.arrays.ragged import append
from jspec.arrays.top_k import top_k
from jspec.protocols import LogitsProcessor, PrefillInfo, StepInfo
from jspec.types import Logprobs, Sampling

RAW = "raw_logprobs"
"""Of the model alone."""
PROCESSED = "processed_logprobs"
"""Of the distribution that tokens are drawn from: after processors, grammar, temperature and
filters. In greedy rows temperature and filters are left out, as they leave one token."""
TEMP_SCALED = "temp_scaled_logprobs"
"""Of the model alone, with logits over the temperature: what trainers compute of a text."""
MODES = RAW, PROCESSED, TEMP_SCALED


@dataclass(frozen=True)
class LogprobsSpec:
    """The kind of log-probabilities to record; see `logprobs`."""

    num_top: int
    mode: str
    read: Bool[np.ndarray, " B"] | None = None
    """The rows in which someone reads them; None: all."""

    def init(self, batch: int, vocab_size: int, end_tokens: Any) -> "RecordedLogprobs":
        """Starts the records of B rows. Raises InputError if the vocabulary has fewer tokens."""
        del batch, end_tokens
        check_integer("logprobs", self.num_top, 0, vocab_size, "the vocabulary")
        read: Any = self.read
        return RecordedLogprobs(RecordedRows(None, read), num_top=int(self.num_top), mode=self.mode)


def logprobs(num_top: int = 0, mode: str = RAW) -> LogprobsSpec:
    """Records the log-probability of each emitted token, and the likeliest tokens at its place,
    in `Result.logprobs`. Changes nothing.

    Args:
        num_top: so many likeliest tokens.
        mode: "raw_logprobs": of the model alone. "processed_logprobs": of the distribution that
            tokens are drawn from, after processors, temperature and filters; the last two are left
            out in greedy rows. Both as in vLLM. "temp_scaled_logprobs": log_softmax(logits / T) of
            the model alone, without processors and filters, T being 1 in greedy rows, as in SGLang;
            what a trainer such as tunix or TRL computes of the same text.

    Raises:
        InputError: for a negative number, an unknown mode, or more tokens than the vocabulary.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> result = jspec.decode(
        ...     model, model.init(), [[1, 2, 3]], max_new_tokens=4,
        ...     processors=jspec.processors.logprobs(2),
        ... )
        >>> result.logprobs.top_logprobs.shape
        (1, 4, 2)
    """
    check_integer("logprobs", num_top, 0, None)
    if mode not in MODES:
        raise InputError(
            f"mode is {mode!r:.40}; pass {', '.join(map(repr, MODES[:-1]))} or {MODES[-1]!r}"
        )
    return LogprobsSpec(num_top, mode)


@struct.dataclass
class RecordedRows:
    """Log-probabilities recorded per row."""

    logprobs: Logprobs | None
    read: Bool[Array, " B"] | None
    """The rows whose log-probabilities someone reads; None: all."""


@struct.dataclass
class RecordedLogprobs(LogitsProcessor):
    """The log-probabilities of the output."""

    rows: RecordedRows
    shared: None = None
    num_top: int = struct.field(pytree_node=False, default=0)
    mode: str = struct.field(pytree_node=False, default=RAW)

    is_single = True

    @property
    def logprobs(self) -> Logprobs | None:
        return self.rows.logprobs

    def begin(self, info: PrefillInfo) -> Self:
        """Allocates room for the whole output."""
        return self._with(_empty(self.num_top, len(info.prompt_lengths), info.size))

    def advance(self, info: StepInfo) -> Self:
        """Adds the log-probabilities of the round's tokens."""
        read = self.rows.read

        def of_this() -> Logprobs:
            logits = info.processed if self.mode == PROCESSED else info.logits
            node_logits = jnp.take_along_axis(logits, info.path[..., None], axis=1)
            scores = _scores(self.mode, node_logits, info.sampling)
            return vary(_of_round(self.num_top, scores, info.emitted), info)

        if read is None:
            new = of_this()
        else:
            # Passes over the vocabulary, so they wait until someone reads what they give.
            shapes = jax.eval_shape(of_this)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            reading = (read & ~info.had_ended).any()
            new = jax.lax.cond(reading, of_this, lambda: vary(nothing, info))
        assert self.rows.logprobs is not None, "it has begun"

        def put(buffer: Array, new: Array) -> Array:
            return append(buffer, info.begins, new, info.counts)

        return self._with(jax.tree.map(put, self.rows.logprobs, new))

    def _with(self, records: Logprobs) -> Self:
        return replace(self, rows=replace(self.rows, logprobs=records))


def _empty(num_top: int, batch: int, size: int) -> Logprobs:
    """Allocates the log-probabilities of `size` tokens per row."""
    top = (batch, size, num_top)
    return Logprobs(
        token_logprobs=jnp.zeros(top[:2], jnp.float32),
        top_tokens=jnp.zeros(top, jnp.int32) if num_top else None,
        top_logprobs=jnp.zeros(top, jnp.float32) if num_top else None,
    )


def _of_round(num_top: int, scores: Float[Array, "B P V"], emitted: Int[Array, "B P"]) -> Logprobs:
    """Returns the log-probabilities of a round's tokens."""
    token_scores = jnp.take_along_axis(scores, emitted[..., None], axis=-1)[..., 0]
    if not num_top:
        return Logprobs(token_scores, None, None)
    values, tokens = top_k(scores, num_top)
    return Logprobs(token_scores, tokens, values)


def _scores(
    mode: str, logits: Float[Array, "B P V"], sampling: Sampling | None
) -> Float[Array, "B P V"]:
    """Returns the log-probabilities of logits in a mode."""
    if mode == RAW or sampling is None:
        return jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    temperature = jnp.asarray(sampling.temperature)
    # Greedy rows are over 1 there.
    scaled = jax.nn.log_softmax(samplings.over_temperature(logits, temperature), axis=-1)
    if mode == TEMP_SCALED:
        return scaled
    # A probability has no logarithm below 1e-38: only rows that have filters need it.
    cut = samplings.has_filter(sampling, logits.shape[-1]) & (temperature != 0)
    cut = jnp.broadcast_to(cut, logits.shape[:1])[:, None, None]
    return jnp.where(cut, jnp.log(samplings.node_probabilities(logits, sampling)), scaled)
