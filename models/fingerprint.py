"""A fingerprint of weights, quick to take and the same in any dtype they are loaded in."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec.models import blocks, stacking
from jspec.models.columns import axis, find_fused
from jspec.models.eight_bits import dtype_name
from jspec.models.lora import of_base
from jspec.types import PyTree

_SAMPLES = 4096
"""Values read of each parameter: enough that no training step leaves them all as they were."""


def fingerprint(params: PyTree, model: Any = None) -> str:
    """Returns 64 hexadecimal digits for the weights of a model.

    They cover the name and shape of every parameter and values spread evenly over each, rounded to
    bfloat16: float32 and bfloat16 copies of one checkpoint have one fingerprint, and so has one
    whose layers are stacked, or, with its model, one whose blocks of 4 or 8 bits are kept. Adapters
    are not part of it: what drafts for the base drafts for all.
    """
    digest, params = hashlib.sha256(), of_base(params)
    fused, devices = getattr(model, "fused", {}), getattr(model, "tp_size", 1)
    wide, model_kind = _in_numbers(params, model)
    leaves = sorted(_single(params), key=lambda item: item[0])
    for path, leaf, layer in leaves:
        # A product whose parts are in several formats has an array for each: these stay bytes.
        full, kind = wide.get(path, leaf).shape, None
        if full[:-1] != leaf.shape[:-1]:
            full = leaf.shape
        elif leaf.dtype == jnp.uint8:
            kind = blocks.kind_of(leaf.shape[-1], full[-1], model_kind)
        shape = full[len(layer) :]
        keys = path.strip("[]'").split("']['")
        products = find_fused(keys, fused) if devices > 1 else None
        moved = None if products is None else (axis(keys), np.argsort(products.order(devices)))
        digest.update(f"{path} {list(shape)}\n".encode())
        sample = np.asarray(_sample(leaf, layer, shape, moved, kind))
        digest.update(sample.astype(jnp.bfloat16).tobytes())
    return digest.hexdigest()


def _in_numbers(params: PyTree, model: Any) -> tuple[Mapping[str, Any], str]:
    """Returns the shapes of weights that are held in blocks, and the blocks' format."""
    model = getattr(model, "base", model)  # of one with adapters
    dtype = getattr(model, "param_dtype", None)
    kind = None if dtype is None else blocks.FORMATS.get(dtype_name(dtype))
    if kind is None:
        return {}, ""
    init, tokens = model.clone(param_dtype=jnp.float32).init, jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(init, jax.random.key(0), tokens, tokens, jnp.ones((1, 1, 1), bool))
    return {path: leaf for path, leaf, _ in _single(shapes)}, kind


def _single(params: PyTree) -> Iterator[tuple[str, jax.Array | np.ndarray, tuple[int, ...]]]:
    """Yields name, array and place in it of each weight of each layer; a stack has many."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        text = jax.tree_util.keystr(path)
        stacks = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        stacks = [key for key in stacks if stacking.layers_of(str(key)) is not None]
        if not stacks:
            yield text, leaf, ()
        for stack in stacks:
            for place, layer in enumerate(stacking.layers_of(stack) or ()):
                single = stacking.name(range(layer, layer + 1))
                yield text.replace(stack, single, 1), leaf, (place,)


def _sample(
    leaf: jax.Array | np.ndarray,
    layer: tuple[int, ...],
    shape: tuple[int, ...],
    moved: tuple[int, np.ndarray] | None,
    kind: str | None,
) -> jax.Array | np.ndarray:
    """Returns values of one layer, with permuted columns if `moved`, of blocks if of a `kind`."""
    # Gathered where the parameter lies: a device keeps its gigabytes.
    if isinstance(leaf, jax.Array) and {d.platform for d in leaf.devices()} == {"cpu"}:
        leaf = np.asarray(leaf)  # a view: each gather by JAX would take a millisecond
    size = math.prod(shape)
    count = min(size, _SAMPLES)
    places = np.arange(count) * size // max(count, 1)
    if not shape:
        return leaf[layer]
    index = list(np.unravel_index(places, shape))
    if moved is not None:
        along, columns = moved
        index[along] = columns[index[along]]
    if kind is None:
        return leaf[(*layer, *index)]
    block, lane = np.divmod(index[-1], blocks.FROM_FILES.get(kind, blocks.LENGTH))
    leaf = leaf.reshape(*leaf.shape[:-1], -1, blocks.SIZES[kind])
    values = blocks.dequantise(jnp.asarray(leaf[(*layer, *index[:-1], block)]), kind)
    return np.asarray(values)[np.arange(count), lane]
