"""Arguments that are arrays, or one value per row: cast, and checked where values are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jspec._validate.errors import InputError

ROWS = ": a list of token ids for each row; `decode` of a `jspec.LLM` takes texts"
"""The end of a message about a prompt that is not numbers."""


def library_of(array: Any) -> Any:
    """Returns NumPy for host values, which dispatch nothing; jax.numpy keeps a sharding."""
    return jnp if isinstance(array, jax.Array) else np


def to_array(value: Any, name: str, fix: str = "") -> Any:
    """Returns the value as a NumPy array, or as the JAX array that it is."""
    if isinstance(value, jax.Array):
        if not all(isinstance(size, int) for size in value.shape):
            raise InputError(
                f"{name} has the symbolic shape {value.shape}; pass an array of known sizes: each "
                "of them is a program of its own, so export one for each"
            )
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = None
    if array is None or array.dtype.kind not in "biuf":
        raise InputError(
            f"{name} is {value!r:.80}; pass numbers in an array or in lists of equal length{fix}"
        )
    return array


def of_ragged(prompt: Any, prompt_lengths: Any) -> tuple[Any, Any]:
    """Returns prompts in lists of unequal length as one array, padded on the right, with their
    lengths; anything else as it was given.
    """
    if isinstance(prompt, np.ndarray) and prompt.dtype.kind == "O" and prompt.ndim == 1:
        prompt = list(prompt)
    if not isinstance(prompt, list | tuple):
        return prompt, prompt_lengths
    lengths = [len(row) if hasattr(row, "__len__") else -1 for row in prompt]
    if 0 in lengths:
        raise InputError(f"prompt[{lengths.index(0)}] is empty; give each row at least one token")
    if len({*lengths}) < 2:
        return prompt, prompt_lengths
    rows = [to_array(row, f"prompt[{place}]", ROWS) for place, row in enumerate(prompt)]
    for place, row in enumerate(rows):
        if row.ndim != 1 or not jnp.issubdtype(row.dtype, jnp.integer):
            raise InputError(
                f"prompt[{place}] is {prompt[place]!r:.80}; pass a list of token ids for each row"
            )
    sizes = np.array([len(row) for row in rows], np.int32)
    if prompt_lengths is not None:
        raise InputError(
            f"prompt has rows of {sizes.tolist()} tokens and prompt_lengths is "
            f"{prompt_lengths!r:.80}; leave it out, since rows of unequal length have their own"
        )
    library = jnp if any(isinstance(row, Tracer) for row in rows) else np
    wide = [library.pad(row, (0, max(sizes) - len(row))) for row in rows]
    return library.stack([row.astype(np.int32) for row in wide]), sizes


def concrete_values(array: Any) -> np.ndarray | None:
    """Returns the values, or None while they are traced or lie on other hosts."""
    if isinstance(array, Tracer):
        return None
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return None
    return np.asarray(jax.device_get(array))  # asked for, as `transfer_guard` wants it


def on_host(array: Any) -> Any:
    """Returns the array of NumPy where its values are known, so that its size compiles nothing."""
    values = concrete_values(array)
    return array if values is None else values


def can_move(array: Any) -> bool:
    """Returns whether this is an array of JAX whose whole rows can come here and go back."""
    if not isinstance(array, jax.Array) or concrete_values(array) is None:
        return False
    return array.sharding.shard_shape(array.shape)[1:] == array.shape[1:]


def put_like(arrays: Any, like: Any) -> Any:
    """Returns arrays of NumPy on the devices of an array of JAX, sent as `transfer_guard` asks."""
    if not isinstance(like, jax.Array) or concrete_values(like) is None:
        return arrays
    place: Any = like.sharding if like.committed else None
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, PartitionSpec())

    def put(leaf: Any) -> Any:
        return jax.device_put(leaf, place) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(put, arrays)


def of_rows(params: Any, prompt: Any) -> Any:
    """Returns params with what is `per_row` among them where the prompt is."""

    def is_per_row(part: Any) -> bool:
        return getattr(part, "per_row", False)

    def move(part: Any) -> Any:
        if not is_per_row(part):
            return part
        host = jax.tree.map(
            lambda leaf: on_host(leaf) if isinstance(leaf, jax.Array) else leaf, part
        )
        return put_like(host, prompt)

    return jax.tree.map(move, params, is_leaf=is_per_row)


def per_row(value: ArrayLike, batch: int, name: str) -> Any:
    """Returns the array [B] of `value`; a number counts for every row."""
    array = on_host(to_array(value, name))
    if array.shape not in ((), (batch,)):
        raise InputError(
            f"{name} has shape {array.shape}; pass one number or one per row, shape ({batch},)"
        )
    return library_of(array).broadcast_to(array, (batch,))


def integers(value: ArrayLike, batch: int, name: str, low: int, high: int, why: str) -> Any:
    """Returns the array [B] int32 of `value`, found or made to lie within the bounds."""
    array = per_row(value, batch, name)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(f"{name} is {value!r:.80} of dtype {array.dtype}; pass integers")
    within(name, array, low, high, why)
    # The bounds in the array's own dtype, to which JAX would cast them.
    bounds = jnp.iinfo(array.dtype)
    inside = library_of(array).clip(array, max(low, bounds.min), min(high, bounds.max))
    return inside.astype(np.int32)


def reals(value: ArrayLike, batch: int, name: str, low: float, high: float, why: str) -> Any:
    """Returns the array [B] float32 of `value`, found or made to lie within the bounds."""
    array = per_row(value, batch, name)
    within(name, array, low, high, why)
    return library_of(array).clip(array.astype(np.float32), low, high)


def within(name: str, array: Any, low: float, high: float, why: str) -> None:
    """Raises InputError if a known value of an array [B, ..] lies outside the bounds."""
    values = concrete_values(array)
    if values is None:
        return
    wrong = ~((values >= low) & (values <= high))  # NaN is wrong too
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{name}[{row}] is {values[row]}, outside {low} .. {high}: {why}")


def end_tokens(tokens: Any, batch: int, vocab_size: int, name: str) -> Any:
    """Returns the array [B, X] int32 of end tokens: one, a shared list, or one per row."""
    array = on_host(to_array(() if tokens is None else tokens, name))
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(f"{name} is {tokens!r:.80}; pass token ids")
    if array.ndim > 2 or (array.ndim == 2 and array.shape[0] != batch):
        raise InputError(
            f"{name} has shape {array.shape}; pass one token, a list of tokens, or [B, X] with "
            f"{batch} rows"
        )
    values = concrete_values(array)
    if values is not None and values.size and not -1 <= values.min() <= values.max() < vocab_size:
        raise InputError(
            f"{name} holds {values.tolist()}, outside the vocabulary of {vocab_size}; -1 fills up"
        )
    array = array.astype(np.int32)
    if array.ndim < 2:
        array = library_of(array).broadcast_to(array.reshape(-1), (batch, array.size))
    # Filled up to 4, 8, ..: another number of end tokens is then the same program. (Never to 0:
    # JAX 0.11.2 crashes on an empty array that a loop inside `shard_map` carries.)
    missing = max(4, -(-array.shape[1] // 4) * 4) - array.shape[1]
    return library_of(array).pad(array, ((0, 0), (0, missing)), constant_values=-1)
