"""A fingerprint of weights, quick to take and the same in any dtype they are loaded in."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from jspec.base import PyTree

_SAMPLES = 4096
"""Values read of each parameter: enough that no training step leaves them all as they were."""


def fingerprint(params: PyTree) -> str:
    """64 hexadecimal digits for the weights of a model.

    They cover the name and shape of every parameter and values spread evenly over each, rounded to
    bfloat16: float32 and bfloat16 copies of one checkpoint have one fingerprint.
    """
    digest = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for path, leaf in sorted((jax.tree_util.keystr(path), leaf) for path, leaf in leaves):
        digest.update(f"{path} {list(leaf.shape)}\n".encode())
        digest.update(np.asarray(_sample(leaf)).astype(jnp.bfloat16).tobytes())
    return digest.hexdigest()


def _sample(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    # Gathered where the parameter lies: a device keeps its gigabytes.
    count = min(leaf.size, _SAMPLES)
    places = np.arange(count) * leaf.size // max(count, 1)
    return leaf[np.unravel_index(places, leaf.shape)]
