"""Random keys: one threefry key from whatever seed or key was given."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int

from jspec._validate.errors import InputError

_GENERATOR = "threefry2x32"


def to_key(key: jax.Array | int | None) -> jax.Array | None:
    """Returns a threefry key, whatever was given. Other generators do not draw per key under
    `vmap`. The tokens of a seed must not depend on JAX's default generator either. They do depend
    on `jax_threefry_partitionable`, which is on unless it was switched off.
    """
    if key is None:
        return None
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    if dtype is not None and shape == () and jnp.issubdtype(dtype, jnp.integer):
        if isinstance(key, Tracer):
            return _traced_seed(key)
        key = int(jax.device_get(key))
    if isinstance(key, int) and not isinstance(key, bool) and -(2**63) <= key < 2**64:
        # The upper half of a small negative seed is all ones: -1 and 2^32 - 1 are two seeds.
        low, high = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
        base = jax.random.key(_word(low), impl=_GENERATOR)
        return base if high == 0 else jax.random.fold_in(base, _word(high))
    if dtype is not None and shape == () and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(key)
    elif dtype == np.uint32 and shape in ((2,), (4,)):
        words = jax.device_put(key)  # a key of the old style
    else:
        raise InputError(
            f"key is {key!r:.80}; pass one jax.random.key(seed) or a seed of at most 64 bits, and "
            "leave the rows' own keys to `row_ids`"
        )
    if words.shape == (2,):
        return jax.random.wrap_key_data(words, impl=_GENERATOR)
    low, high = jnp.split(words, 2)
    base = jax.random.wrap_key_data(low, impl=_GENERATOR)
    for word in jnp.split(high, 2):
        base = jax.random.fold_in(base, word.reshape(()))
    return base


def _word(value: int) -> jax.Array:
    """Returns a word of a seed on the device, sent as `transfer_guard` asks."""
    return jax.device_put(np.uint32(value))


def any_key() -> jax.Array:
    """Returns a key for draws that no token depends on."""
    return jax.random.key(0, impl=_GENERATOR)


def _traced_seed(seed: Int[Array, ""]) -> jax.Array:
    """Returns the key that `to_key` makes of a seed's value, where that is not known."""
    low = seed.astype(jnp.uint32)
    if seed.dtype.itemsize == 8:
        high = (seed >> 32).astype(jnp.uint32)
    else:
        high = jnp.where(seed < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    base = jax.random.key(low, impl=_GENERATOR)
    folded = jax.random.key_data(jax.random.fold_in(base, high))
    words = jnp.where(high == 0, jax.random.key_data(base), folded)
    return jax.random.wrap_key_data(words, impl=_GENERATOR)
