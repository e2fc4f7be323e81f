"""Checks that the layers of a model may be in the host's memory, and fit there."""

import os

import jax
import jax.numpy as jnp

from jspec._validate.errors import InputError
from jspec.models import eight_bits, stacking, streaming
from jspec.models.checkpoint import Model, shapes


def check(model: Model, layer_memory: str) -> None:
    """Refuses a kind of memory that is not there, or too little of it, before anything is read."""
    if layer_memory == streaming.DEVICE:
        return
    kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
    if layer_memory not in kinds:
        raise InputError(
            f"layer_memory {layer_memory!r} is not a memory here; use one of {', '.join(kinds)}"
        )
    if not model.scan_layers:
        raise InputError(
            f"layer_memory {layer_memory!r} streams the layers of a scan; pass scan_layers=True "
            "with it"
        )
    if eight_bits.low_precision(model.param_dtype) and jax.devices()[0].platform == "tpu":
        # What is compiled copies whole stacks in every step: bytes lie otherwise in both memories.
        kind = eight_bits.called(model.param_dtype)
        raise InputError(
            f"layers in {layer_memory!r} cannot be {kind} on a TPU, where XLA would copy all of "
            "them for each; leave out param_dtype"
        )
    sizes = [
        leaf.size * jnp.dtype(leaf.dtype).itemsize
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes(model))
        if streaming.streamed(leaf.shape) and any(stacking.layers_of(str(key.key)) for key in path)
    ]
    # While it is loaded, the largest stack is there twice.
    wanted, there = sum(sizes) + max(sizes, default=0), _free_memory()
    if there is not None and wanted > there:
        raise InputError(
            f"the layers take {wanted / 1e9:.1f} GB of the host's {there / 1e9:.1f} GB, "
            f"{(wanted - there) / 1e9:.1f} GB too many; take weights in 8 bits, or more memory"
        )


def _free_memory() -> int | None:
    """Returns the host's free bytes, where its system tells."""
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
