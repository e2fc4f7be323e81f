"""Names of the dtypes that a model computes in."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jspec._validate.errors import InputError
from jspec._xla import backend, native
from jspec.models import eight_bits

NAMES = ("float32", "bfloat16", "float16", "float64")
AUTO = "auto"
"""In the place of a dtype of weights: the dtype that the file has."""
KV_NAMES = ("int8", "float8_e4m3fn")
"""Dtypes of 8 bits for keys and values."""


def default() -> str:
    """Returns float32 on CPU, where bfloat16 is emulated and slower; bfloat16 on GPU and TPU."""
    return "float32" if backend.platform() == "cpu" else "bfloat16"


def widens_natively() -> bool:
    """Tells whether this is a CPU whose kernels multiply narrow weights in float32."""
    return backend.platform() == "cpu" and native.instruction_set() is not None


def pair(dtype: DTypeLike | None, param_dtype: DTypeLike | None) -> tuple[Any, Any]:
    """Returns the dtype to compute in and the weights' dtype, from what was asked for."""
    if dtype is None or not _is(dtype, eight_bits.FORMATS):
        # Of an unknown name the sentence tells the formats of weights too.
        compute = find(default() if dtype is None else dtype, as_weights=True)
        return compute, find(compute if param_dtype is None else param_dtype, as_weights=True)
    if param_dtype is not None:
        raise InputError(
            f"dtype {dtype!r} is one of weights, and param_dtype {param_dtype!r} another; leave "
            "one of them out, or give dtype one to compute in"
        )
    return find(default()), find(dtype, as_weights=True)


def _is(dtype: DTypeLike, names: Collection[str]) -> bool:
    try:
        return eight_bits.dtype_name(dtype) in names
    except (TypeError, ValueError, SyntaxError):  # NumPy's, by what the name is
        return False


def find(dtype: DTypeLike, as_weights: bool = False) -> Any:
    """Returns the dtype of a name or a dtype, always as `jnp.float32` and the like.

    `jnp.dtype("float32")` equals `jnp.float32` and hashes otherwise, so a model that was loaded
    would be traced apart from the same model built by hand.
    """
    names = (*NAMES, *eight_bits.FORMATS) if as_weights else NAMES
    if not _is(dtype, names):
        raise InputError(f"dtype {dtype!r} is unknown; use one of {', '.join(names)}")
    if isinstance(dtype, str) and dtype in eight_bits.FORMATS and dtype not in eight_bits.LARGEST:
        return dtype  # a format that is not a dtype
    if jax.dtypes.canonicalize_dtype(dtype) != jnp.dtype(dtype):
        raise InputError(
            f"dtype {dtype!r} is float32 while 64 bits are off; switch them on with "
            'jax.config.update("jax_enable_x64", True)'
        )
    return getattr(jnp, jnp.dtype(dtype).name)


def find_kv(dtype: DTypeLike | None) -> Any:
    """Returns the dtype that keys and values are kept in; None: the activations'."""
    if dtype is None:
        return None
    if not _is(dtype, KV_NAMES):
        raise InputError(
            f"kv_dtype {dtype!r} is unknown; use {' or '.join(KV_NAMES)}, or leave it out to keep "
            "keys and values in the dtype of the activations"
        )
    return getattr(jnp, eight_bits.dtype_name(dtype))
