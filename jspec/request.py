"""The edge: arguments in, checked arrays out. Everything wrong is said here, before tracing."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from jspec import seeds
from jspec.base import PyTree, Sampling
from jspec.errors import InputError
from jspec.protocols import CausalLM
from jspec.row_arguments import end_tokens, integers, known_values, library_of, reals, to_array


class PreparedArrays(NamedTuple):
    """The arguments of a call that are data, so that other values recompile nothing."""

    prompt: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    limits: Int[Array, " B"]
    eos: Int[Array, "B X"]
    sampling: Sampling | None
    key: jax.Array | None
    rows: Int[Array, " B"]


class Prepared(NamedTuple):
    """A call, padded to bucket sizes so that calls alike share one compiled program."""

    arrays: PreparedArrays
    size: int
    """The size of the output buffer; a bucket at or above what was asked for."""
    slots: int
    """The number of slots of the cache."""


def check_model(model: CausalLM, params: PyTree) -> None:
    """Raises InputError unless these look like a model and its weights."""
    missing = [name for name in ("apply", "init_cache", "vocab_size") if not hasattr(model, name)]
    if isinstance(model, type) or missing:
        without = f", which has no {missing[0]}" if missing else ""
        raise InputError(
            f"model is {model!r:.80}{without}; pass a model such as the first of "
            "jspec.models.load(..), or an object with what jspec.CausalLM lists"
        )
    if params is None:
        raise InputError(
            "params is None; pass the model's weights, or () for a model that has none"
        )


def check_earlier(drafter_state: PyTree) -> None:
    """Raises InputError unless this is a pytree of arrays, as `Result.drafter_state` is."""
    for leaf in jax.tree.leaves(drafter_state):
        if not hasattr(leaf, "shape") and not isinstance(leaf, bool | int | float):
            raise InputError(
                f"drafter_state holds {leaf!r:.40}, a {type(leaf).__name__}; pass the "
                "drafter_state of an earlier call's result, or None"
            )


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
    """Checks and casts the arguments of `decode`. Shapes and types are checked always, values where
    they are known; inside a caller's `jit`, lengths and limits are clamped to their bounds instead.

    Raises:
        InputError: in one sentence, with the value, the bound and the fix.
    """
    tokens = to_array(prompt, "prompt")
    if tokens.ndim != 2 or 0 in tokens.shape or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise InputError(
            f"prompt has shape {tokens.shape} and dtype {tokens.dtype}; pass integers [B, T] with "
            "at least one row and one token, padded on the right"
        )
    batch, padded = tokens.shape
    context = model.context
    most = 2**31 - 1 - padded if context is None else context
    max_new_tokens = _size(max_new_tokens, most)
    longest = padded if context is None else min(padded, context)
    why = "a row needs a token, and no more than the prompt and the model's context hold"
    counts = integers(padded if lengths is None else lengths, batch, "lengths", 1, longest, why)
    _check_tokens(tokens, counts, model.vocab_size)
    why = "max_new_tokens; raise it or lower the limits"
    allowed = integers(
        max_new_tokens if limits is None else limits, batch, "limits", 0, max_new_tokens, why
    )
    if sampling is not None and key is None:
        raise InputError("sampling needs a key and key is None; pass key=jax.random.key(0)")

    # Buckets let prompts of many lengths share one program; shapes under a caller's jit are final.
    traced = isinstance(tokens, Tracer)
    width = padded if traced else bucket(padded, 1)
    size = max_new_tokens if traced else bucket(max_new_tokens, 4)
    slots = width + max_new_tokens if traced else bucket(width + max_new_tokens, 4)
    if width > padded:
        tokens = library_of(tokens).pad(tokens, ((0, 0), (0, width - padded)))
    arrays = PreparedArrays(
        prompt=tokens.astype(np.int32),
        lengths=counts,
        limits=allowed,
        eos=end_tokens(eos, batch, model.vocab_size, "eos"),
        sampling=_sampling(sampling, batch),
        key=seeds.to_key(key),
        rows=integers(
            np.arange(batch) if rows is None else rows,
            batch,
            "rows",
            -(2**31),
            2**31 - 1,
            "an id of 32 bits; two rows of the same id draw the same noise",
        ),
    )
    return Prepared(arrays, size, slots if context is None else min(slots, context))


def check_context(context: int | None, call: Prepared) -> None:
    """Raises InputError unless every row's text fits a drafter's context.

    Args:
        context: most tokens of a row that the drafter can read; None if it has no bound.
        call: of which lengths and limits count where they are known, and not what was rounded up.
    """
    lengths, limits = known_values(call.arrays.lengths), known_values(call.arrays.limits)
    longest = call.arrays.prompt.shape[1] if lengths is None else lengths
    need = int(np.max(longest + (call.size if limits is None else limits)))
    need = min(need, call.slots)  # beyond, the target itself ends the row
    if context is not None and context < need:
        raise InputError(
            f"the drafter's context is {context} and a row may hold {need} tokens; shorten the "
            "prompt or max_new_tokens, or take a drafter of longer context"
        )


def bucket(size: int, steps: int) -> int:
    """The smallest of the sizes 16, .., with `steps` sizes per doubling, that holds `size`."""
    power = max(16, 1 << (size - 1).bit_length())
    part = max(1, power // (2 * steps))
    return max(16, -(-size // part) * part)


def _size(value: int, most: int) -> int:
    """The value of `max_new_tokens` as an int."""
    try:
        size = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = -1
    if not 1 <= size <= most:
        raise InputError(
            f"max_new_tokens is {value!r}; pass an integer of at least 1 and at most {most}, what "
            "the model's context holds"
        )
    return size


def _check_tokens(tokens: Any, counts: Any, vocab_size: int) -> None:
    values, lengths = known_values(tokens), known_values(counts)
    if values is None or lengths is None:
        return
    live = np.arange(values.shape[1]) < lengths[:, None]
    wrong = live & ((values < 0) | (values >= vocab_size))
    if wrong.any():
        row, place = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"prompt[{row}, {place}] is token {values[row, place]}, outside the vocabulary of "
            f"{vocab_size}: tokenise with this model's tokenizer"
        )


def _sampling(sampling: Sampling | None, batch: int) -> Sampling | None:
    if sampling is None:
        return None
    if not isinstance(sampling, Sampling):
        raise InputError(
            f"sampling is {sampling!r:.80}; pass jspec.Sampling(temperature=..), or None"
        )
    off = "switches it off"
    return Sampling(
        temperature=reals(sampling.temperature, batch, "temperature", 0, 1e6, "0 is greedy"),
        top_k=integers(sampling.top_k, batch, "top_k", 0, 2**31 - 1, f"0 {off}"),
        top_p=reals(sampling.top_p, batch, "top_p", 1e-6, 1, f"1 {off}"),
        min_p=reals(sampling.min_p, batch, "min_p", 0, 1, f"0 {off}"),
    )


def check_vocabulary(name: str, size: int, target: int) -> None:
    """Raises InputError if a drafter was made for another vocabulary than the target's."""
    if size != target:
        raise InputError(
            f"{name} was made for a vocabulary of {size} and the target has {target}; "
            f"pass vocab_size={target}"
        )
