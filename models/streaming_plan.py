"""Estimates the memory of a model whose layers are streamed from the host, and checks it."""

import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jspec._validate.errors import InputError
from jspec.models import eight_bits, stacking, streaming
from jspec.models.checkpoint import Model, shapes
from jspec.types import PyTree


@dataclass(frozen=True)
class Streams:
    """What a model with its layers in the host's memory takes; made by `plan`."""

    host_bytes: int
    """The layers' matrices."""
    loading_bytes: int
    """The host's memory while it is loaded: the largest stack is there twice."""
    device_bytes: int
    """Embeddings, head, vectors, cache and logits, and the matrices of three steps: a layer's that
    computes, of the next on their way, and a copy between."""
    seconds: float
    """The copy of all layers, which a round takes at least."""


def plan(
    model: Model,
    weights: PyTree = None,
    *,
    batch: int = 1,
    capacity: int = 2048,
    nodes: int = 768,
    bandwidth: float = 25e9,
    device_memory: int | None = None,
    host_memory: int | None = None,
) -> Streams:
    """What it takes to run a model with its layers in the host's memory, before anything is read.

    Args:
        model: with scanned layers.
        weights: arrays or their shapes; None: those that the model would have.
        batch: rows.
        capacity: of the cache.
        nodes: of a row that are verified at once, whose logits are there in float32.
        bandwidth: bytes a second from host to device; the default is what PCIe 4.0 x16 gives.
        device_memory: bytes of the device; None: what it says, if it does.
        host_memory: bytes of the host; None: what is free.

    Raises:
        InputError: if it does not fit, and by how much.

    Example:
        >>> from jspec import models
        >>> config = models.LlamaConfig(
        ...     vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_layers=80,
        ...     num_heads=64, num_kv_heads=8, head_dim=128, context=131072,
        ... )
        >>> model = models.Llama(config, "bfloat16", "bfloat16", scan_layers=True)
        >>> found = plan(
        ...     model, device_memory=24 * 10**9, host_memory=256 * 10**9
        ... )
        >>> round(found.host_bytes / 1e9), round(found.device_bytes / 1e9), round(found.seconds, 1)
        (137, 10, 5.5)
    """
    stacks, rest = {}, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(weights or shapes(model)):
        name = next((k.key for k in path if stacking.layers_of(str(k.key)) is not None), None)
        size = leaf.size * jnp.dtype(leaf.dtype).itemsize
        if name is None or not streaming.streamed(leaf.shape):
            rest += size
        else:
            stacks[path] = size, len(stacking.layers_of(name) or ())
    cache = jax.eval_shape(lambda: model.init_memory(batch, capacity))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    host = sum(size for size, _ in stacks.values())
    found = Streams(
        host_bytes=host,
        loading_bytes=host + max((size for size, _ in stacks.values()), default=0),
        device_bytes=rest
        + held
        + 3 * sum(size // count for size, count in stacks.values())
        + 4 * batch * nodes * model.vocab_size,
        seconds=host / bandwidth,
    )
    _check("host", "the layers", found.loading_bytes, _host_memory(host_memory), "more memory")
    what = (
        f"embeddings, head, three layers, {nodes} nodes and a cache of {batch} x {capacity} slots"
    )
    _check(
        "device", what, found.device_bytes, _device_memory(device_memory), "fewer slots or nodes"
    )
    return found


def check(model: Model, layer_memory: str) -> None:
    """Refuses a kind of memory that is not there, or too little of it, before anything is read.

    Raises:
        InputError: if the layers are not scanned, the device has no such memory, or the weights do
            not fit.
    """
    if layer_memory == streaming.DEVICE:
        return
    kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
    if layer_memory not in kinds:
        raise InputError(
            f"layer_memory {layer_memory!r} is none of this device's; use one of {', '.join(kinds)}"
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
    plan(model, capacity=1, nodes=1)


def _check(place: str, what: str, wanted: int, there: int | None, other: str) -> None:
    if there is not None and wanted > there:
        raise InputError(
            f"{what} take {wanted / 1e9:.1f} GB of the {place}'s {there / 1e9:.1f} GB, "
            f"{(wanted - there) / 1e9:.1f} GB too many; take weights in 8 bits, or {other}"
        )


def _device_memory(given: int | None) -> int | None:
    if given is not None:
        return given
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit")


def _host_memory(given: int | None) -> int | None:
    if given is not None or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return given
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
