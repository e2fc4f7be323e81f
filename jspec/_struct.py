"""`flax.struct`, with classes that `jax.export` can write: a program's arguments and results."""

import ast
from typing import Any, dataclass_transform

from flax import struct
from flax.struct import field
from jax.export import register_pytree_node_serialization

from jspec._validate.errors import InputError

__all__ = ["dataclass", "field"]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: Any) -> Any:
    """Makes a class a frozen pytree, whose name and static fields an exported program holds.

    A program that takes or returns one is read where its module has been imported.
    """
    made = struct.dataclass(cls)
    return register_pytree_node_serialization(
        made,
        serialized_name=f"{cls.__module__}.{cls.__qualname__}",
        serialize_auxdata=lambda static: _written(cls.__name__, static),
        deserialize_auxdata=lambda written: ast.literal_eval(written.decode()),
    )


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
