"""`flax.struct`, with classes that `jax.export` can write."""

import ast
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.struct import field
from jax.export import register_pytree_node_serialization

from jspec._validate.errors import InputError

__all__ = ["dataclass", "field"]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: Any) -> Any:
    """Makes a class a frozen pytree, whose name and static fields an exported program holds.

    A program that takes or returns one is read where its module has been imported. Two are equal if
    all of their arrays are, which waits for these.
    """
    cls.__eq__ = _equal
    made = struct.dataclass(cls)
    return register_pytree_node_serialization(
        made,
        serialized_name=f"{cls.__module__}.{cls.__qualname__}",
        serialize_auxdata=lambda static: _written(cls.__name__, static),
        deserialize_auxdata=lambda written: ast.literal_eval(written.decode()),
    )


def _equal(one: Any, other: Any) -> bool:
    """Returns whether two pytrees have the same structure and the same arrays."""
    if type(one) is not type(other):
        return NotImplemented
    leaves, structure = jax.tree.flatten(one)
    others, same = jax.tree.flatten(other)
    return structure == same and all(map(_same, leaves, others))


def _same(one: Any, other: Any) -> bool:
    arrays = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in (one, other)]
    if not any(arrays):
        return bool(one == other)
    if not all(arrays) or one.dtype != other.dtype:
        return False
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.array_equal(jax.device_get(one), jax.device_get(other))


def _written(name: str, static: Any) -> bytes:
    """Returns static fields as Python writes them: numbers, words, and tuples of these."""
    written = repr(static)
    try:
        same = ast.literal_eval(written) == static
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise InputError(
            f"{name} has static fields {written:.80}, which no exported program can hold; leave it "
            "out of what the function takes and returns"
        )
    return written.encode()
