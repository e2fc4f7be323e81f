"""The edge: arguments in, checked arrays out. Everything wrong is said here, before tracing."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from jspec.base import CausalLM, Sampling


class Prepared(NamedTuple):
    """A call in arrays, padded to bucket sizes so that calls alike share one compiled program."""

    prompt: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    limits: Int[Array, " B"]
    eos: Int[Array, "B X"]
    sampling: Sampling | None
    key: jax.Array | None
    rows: Int[Array, " B"]
    size: int
    """Of the output buffer; a bucket at or above what was asked for."""
    slots: int


def prepare(
    model: CausalLM,
    prompt: ArrayLike,
    lengths: ArrayLike | None,
    max_new_tokens: int,
    limits: ArrayLike | None,
    sampling: Sampling | None,
    eos: int | Sequence[int] | ArrayLike | None,
    key: jax.Array | int | None,
    rows: ArrayLike | None,
) -> Prepared:
    """Checks and casts the arguments of `decode`. Values are checked where they are known, that is
    outside of a surrounding `jit`; shapes and types always.

    Raises:
        ValueError: in one sentence, with the value, the bound and the fix.
    """
    tokens = _array(prompt)
    if tokens.ndim != 2 or 0 in tokens.shape or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"prompt has shape {tokens.shape} and dtype {tokens.dtype}; pass integers [B, T] with "
            "at least one row and one token, padded on the right"
        )
    batch, padded = tokens.shape
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; pass at least 1")
    counts = _rows(padded if lengths is None else lengths, batch, np.int32, "lengths")
    _within("lengths", counts, 1, padded, "a row needs a token and no more than the prompt holds")
    _check_tokens(tokens, counts, model.vocab_size)
    context = model.context
    if context is not None:
        _within("lengths", counts, 1, context, "the model's context; shorten the prompt")
    allowed = _rows(max_new_tokens if limits is None else limits, batch, np.int32, "limits")
    _within("limits", allowed, 0, max_new_tokens, "max_new_tokens; raise it or lower the limits")
    if sampling is not None and key is None:
        raise ValueError("sampling needs a key and key is None; pass key=jax.random.key(0)")

    # Buckets let prompts of many lengths share one program; shapes under a caller's jit are final.
    traced = isinstance(tokens, jax.core.Tracer)
    width = padded if traced else bucket(padded, 1)
    size = max_new_tokens if traced else bucket(max_new_tokens, 4)
    slots = width + max_new_tokens if traced else bucket(width + max_new_tokens, 4)
    if width > padded:
        tokens = _module(tokens).pad(tokens, ((0, 0), (0, width - padded)))
    return Prepared(
        prompt=tokens.astype(np.int32),
        lengths=counts,
        limits=allowed,
        eos=_end_tokens(eos, batch, model.vocab_size),
        sampling=_sampling(sampling, batch),
        key=_key(key),
        rows=_rows(np.arange(batch) if rows is None else rows, batch, np.int32, "rows"),
        size=size,
        slots=slots if context is None else min(slots, context),
    )


def bucket(size: int, steps: int) -> int:
    """The smallest of the sizes 16, .., with `steps` sizes per doubling, that holds `size`."""
    power = max(16, 1 << (size - 1).bit_length())
    part = max(1, power // (2 * steps))
    return max(16, -(-size // part) * part)


def _module(array: Array | np.ndarray):
    """Numpy for host values, so that the edge dispatches nothing; jax.numpy keeps a sharding."""
    return jnp if isinstance(array, jax.Array) else np


def _array(value: ArrayLike) -> Array | np.ndarray:
    return value if isinstance(value, jax.Array) else np.asarray(value)


def _values(array: Array | np.ndarray) -> np.ndarray | None:
    """The values, or None while they are traced."""
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


def _rows(value: ArrayLike, batch: int, dtype, name: str) -> Array:
    """`value` as [B]; a number counts for every row."""
    array = _array(value).astype(dtype)
    if array.shape not in ((), (batch,)):
        raise ValueError(
            f"{name} has shape {array.shape}; pass one number or one per row, shape ({batch},)"
        )
    return _module(array).broadcast_to(array, (batch,))


def _within(name: str, array: Array, low: float, high: float, why: str) -> None:
    values = _values(array)
    if values is None:
        return
    wrong = ~((values >= low) & (values <= high))  # NaN is wrong too
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name}[{row}] is {values[row]}, outside {low} .. {high}: {why}")


def _check_tokens(tokens: Array, counts: Array, vocab_size: int) -> None:
    values, lengths = _values(tokens), _values(counts)
    if values is None or lengths is None:
        return
    live = np.arange(values.shape[1]) < lengths[:, None]
    wrong = live & ((values < 0) | (values >= vocab_size))
    if wrong.any():
        row, place = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"prompt[{row}, {place}] is token {values[row, place]}, outside the vocabulary of "
            f"{vocab_size}: tokenise with this model's tokenizer"
        )


def _end_tokens(
    eos: int | Sequence[int] | ArrayLike | None, batch: int, vocab_size: int
) -> Int[Array, "B X"]:
    array = _array([] if eos is None else eos).astype(np.int32)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[0] != batch):
        raise ValueError(
            f"eos has shape {array.shape}; pass one token, a list of tokens, or [B, X] with "
            f"{batch} rows"
        )
    values = _values(array)
    if values is not None and values.size and not -1 <= values.min() <= values.max() < vocab_size:
        raise ValueError(
            f"eos holds {values.tolist()}, outside the vocabulary of {vocab_size}; -1 fills up"
        )
    if array.ndim == 2:
        return array
    return _module(array).broadcast_to(array.reshape(-1), (batch, array.size))


def _sampling(sampling: Sampling | None, batch: int) -> Sampling | None:
    if sampling is None:
        return None
    cast = Sampling(
        temperature=_rows(sampling.temperature, batch, np.float32, "temperature"),
        top_k=_rows(sampling.top_k, batch, np.int32, "top_k"),
        top_p=_rows(sampling.top_p, batch, np.float32, "top_p"),
        min_p=_rows(sampling.min_p, batch, np.float32, "min_p"),
    )
    _within("temperature", cast.temperature, 0.0, 1e6, "0 is greedy")
    _within("top_k", cast.top_k, 0, 2**31 - 1, "0 switches it off")
    _within("top_p", cast.top_p, 1e-6, 1.0, "1 switches it off")
    _within("min_p", cast.min_p, 0.0, 1.0, "0 switches it off")
    return cast


def _key(key: jax.Array | int | None) -> jax.Array | None:
    if key is None:
        return None
    if isinstance(key, int):
        return jax.random.key(key)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)  # a legacy uint32 key
    if key.shape != ():
        raise ValueError(f"key has shape {key.shape}; pass one key, rows get their own by `rows`")
    return key


def check_vocabulary(name: str, size: int, target: int) -> None:
    """Raises ValueError if a drafter was made for another vocabulary than the target's."""
    if size != target:
        raise ValueError(
            f"{name} was made for a vocabulary of {size} and the target has {target}; "
            f"pass vocab_size={target}"
        )
