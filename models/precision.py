"""Names of the dtypes that a model computes in."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jspec.errors import InputError

NAMES = ("float32", "bfloat16", "float16", "float64")


def default() -> str:
    """float32 on CPU, where bfloat16 is emulated and slower; bfloat16 on GPU and TPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def find(dtype: DTypeLike) -> Any:
    """The dtype of a name or a dtype, always as `jnp.float32` and the like.

    `jnp.dtype("float32")` equals `jnp.float32` and hashes otherwise, so a model that was loaded
    would be traced apart from the same model built by hand.

    Raises:
        InputError: if it is none to compute in.
    """
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = None
    if name not in NAMES:
        raise InputError(f"dtype {dtype!r} is unknown; use one of {', '.join(NAMES)}")
    return getattr(jnp, name)
