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
    tree_class = struct.dataclass(cls)
    return register_pytree_node_serialization(
        tree_class,
        serialized_name=f"{cls.__module__}.{cls.__qualname__}",
        serialize_auxdata=lambda static: _write(cls.__name__, static),
        deserialize_auxdata=lambda data: ast.literal_eval(data.decode()),
    )


def _equal(self: Any, other: Any) -> bool:
    """Returns whether two pytrees have the same structure and the same arrays."""
    if type(self) is not type(other):
        return NotImplemented
    leaves, structure = jax.tree.flatten(self)
    other_leaves, same = jax.tree.flatten(other)
    return structure == same and all(map(_same, leaves, other_leaves))


def _same(first: Any, other: Any) -> bool:
    arrays = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in (first, other)]
    if not any(arrays):
        return bool(first == other)
    if not all(arrays) or first.dtype != other.dtype:
        return False
    if jnp.issubdtype(first.dtype, jax.dtypes.prng_key):
        first, other = jax.random.key_data(first), jax.random.key_data(other)
    return np.array_equal(jax.device_get(first), jax.device_get(other))


def _write(name: str, static: Any) -> bytes:
    """Returns static fields as Python writes them: numbers, words, and tuples of these."""
    text = repr(static)
    try:
        same = ast.literal_eval(text) == static
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise InputError(
            f"{name} has static fields {text:.80}, which no exported program can hold; leave it "
            "out of what the function takes and returns"
        )
    return text.encode()
