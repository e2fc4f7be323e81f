"""Estimates the cost curve from the model's shapes and the device.

On a TPU the time of a forward pass is that of the roofline model (Williams et al. 2009). On a CPU
and a GPU its form was measured, and a GPU needs some alongside it for kernels and for its host.
"""

from collections import Counter
from typing import Any

import jax
import numpy as np

from jspec._validate.errors import InputError
from jspec._xla import native
from jspec._xla.devices import Device, figures
from jspec.policies.cost_curve import CostCurve
from jspec.types import PyTree

_EDGE = 1 / np.log2(1.1)
"""Rounding of the roofline's edge: where computing equals reading, a pass takes 10% longer."""
_CPU_FORMS = {
    "float32": {1: 1.0, 2: 1.02, 4: 1.07, 8: 1.2, 16: 1.45, 32: 2.4, 64: 4.3, 128: 8.4},
    "bfloat16": {1: 1.0, 2: 1.05, 4: 1.12, 8: 1.2, 16: 1.65, 32: 2.7, 64: 4.7, 128: 8.9},
    "int8": {1: 1.0, 2: 1.02, 4: 1.07, 8: 1.45, 16: 2.65, 32: 5.0, 64: 9.8, 128: 19.4},
    "uint8": {1: 1.0, 2: 1.02, 4: 1.15, 8: 1.6, 16: 3.0, 32: 5.6, 64: 10.5, 128: 21.0},
    "a8": {1: 1.0, 2: 1.02, 4: 1.07, 8: 1.25, 16: 1.7, 32: 2.8, 64: 4.9, 128: 9.0},
    "bfloat16, AMX": {1: 1.0, 2: 1.03, 4: 1.1, 8: 1.27, 16: 1.6, 32: 2.1, 64: 3.9, 128: 6.8},
    "int8, AMX": {1: 1.0, 2: 1.05, 4: 1.13, 8: 1.33, 16: 1.8, 32: 3.1, 64: 6.2, 128: 12.4},
    "uint8, AMX": {1: 1.0, 2: 1.08, 4: 1.15, 8: 1.44, 16: 1.8, 32: 3.2, 64: 6.6, 128: 13.6},
    "a8, AMX": {1: 1.0, 2: 1.03, 4: 1.12, 8: 1.26, 16: 1.66, 32: 2.5, 64: 4.9, 128: 9.9},
    "XLA": {1: 1.0, 2: 1.33, 4: 1.42, 8: 1.66, 16: 2.15, 32: 3.0, 64: 4.5, 128: 7.9},
}
"""The time of a forward pass by its tokens, in forward passes of one token.

It has the form of products on a few cores: by the dtype of most weights, where activations are
rounded too, with AMX, and by XLA. XLA packs the weights of several rows before it reads them,
which is why the second token costs so much there. Blocks are read in a fraction of float32's time
and multiplied in the same, unless activations are rounded (`python -m benchmarks.speed.forwards`).
"""
# For all GPUs, what one H200 measured (benchmarks/results/engineering_devices.md, 2026-11-28).
_GPU_FORM = {1: 1.0, 16: 1.02, 32: 1.07, 64: 1.15, 65: 1.42, 128: 1.42, 256: 2.0, 16_384: 128.0}
"""The time of reading and multiplying all weights by a round's tokens, in that of one token."""
_READ = 0.75
"""The part of its memory's bandwidth by which products of one token read weights."""
_KERNEL = 1.8e-6
"""Seconds of a kernel of a graph besides."""
_WAIT = 17e-6
"""Seconds of the host for a round."""
DRAFT = 0.75e-3
"""Seconds of a round that drafts besides its forward pass, as Token Recycling's."""
# What XLA makes of rounds, as compiled for an H100 (`.ci/ahead.py`, 2026-11-28).
_OF_AN_ARRAY = 17 / 6
"""Kernels for each array of weights: a layer of Llama has 6 arrays, and 17 kernels."""
_PLAIN = 18
"""Kernels of a round of plain decoding outside the layers."""
BACKOFF = 19 * _KERNEL
"""Seconds of kernels that a round of `auto` without a draft adds to plain decoding."""


def prior(params: PyTree, device: Any = None, model: Any = None) -> CostCurve:
    """Guesses the cost curve of a model on a device.

    On a CPU it has the form of a small model's. On an accelerator a round takes as
    long as reading the weights, up to the number of tokens whose arithmetic takes that long too:
    on a TPU by the data sheet, on a GPU as an H200 measured it. There it takes longer by its
    kernels, and the more so where the round drafts. Of a layer's experts those are read that
    independent tokens choose. What a drafter's own weights take is not in it, nor a model's
    `BatchInvariant`: `jspec.costs.measure` measures both.

    Args:
        params: the model's weights; only their sizes are read.
        device: a `jax.Device`, or a `jspec.costs.devices.Device`; None is the default one.
        model: whose `param_dtype` says if activations are rounded, and whose config how many of
            its experts a token goes through; None: a dense one whose activations are not rounded.

    Raises:
        InputError: if there is something else than arrays among them.

    Example:
        >>> import jax, numpy as np
        >>> curve = prior({"kernel": np.zeros((1000, 1000), np.float32)}, jax.devices("cpu")[0])
        >>> float(curve.at([8])[0] / curve.at([1])[0]) > 1.1
        True
    """
    specs = figures(device or jax.devices()[0])
    leaves = jax.tree.leaves(params)
    if not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        raise InputError(
            f"params is {params!r:.80}; pass a model's params, or arrays' shapes in their place"
        )
    size = max(sum(map(_bytes, leaves)), 1)
    drafting = in_backoff = 0.0
    if specs.platform == "cpu":
        instructions = native.instruction_set()
        dtype = getattr(model, "param_dtype", None)
        kind = "XLA" if instructions is None else _find_form(leaves, dtype)
        form = _CPU_FORMS.get(f"{kind}, {instructions}", _CPU_FORMS[kind])
        forwards = {tokens: times * size / specs.bandwidth for tokens, times in form.items()}
    elif specs.platform == "gpu":
        drafting, in_backoff = launching(params) + DRAFT, launching(params) + BACKOFF
        reading = size / (_READ * specs.bandwidth)
        forwards = {tokens: times * reading for tokens, times in _GPU_FORM.items()}
    else:
        free = int(specs.flops / specs.bandwidth)
        forwards = {tokens: _roofline(specs, tokens, size) for tokens in (1, free, 8 * free)}
    forwards = _read_experts(forwards, params, size, model)
    drafted = {tokens: seconds + drafting for tokens, seconds in forwards.items()}
    return CostCurve.of(drafted, undrafted=forwards[1] + in_backoff)


def _read_experts(
    forwards: dict[int, float], params: PyTree, size: int, model: Any
) -> dict[int, float]:
    """Returns the same for a model of experts, each of which is read for its own tokens alone."""
    layers = getattr(getattr(model, "config", None), "layers", ())
    experts = next((layer.experts for layer in layers if layer.experts), None)
    if experts is None:
        return forwards
    share = experts.num_chosen / experts.num_experts
    routed = sum(
        _bytes(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if "experts" in (getattr(key, "key", None) for key in path)
    )
    points = list(forwards), list(forwards.values())

    def seconds(tokens: int) -> float:
        read = 1 - (1 - share) ** tokens  # of experts, where choices are even and independent
        dense, each = np.interp([tokens, tokens * share / read], *points)
        return float(dense + (read * each - dense) * routed / size)

    return {tokens: seconds(tokens) for tokens in sorted({*forwards, 2, 4, 8, 16, 32, 64})}


def _bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize


def _find_form(leaves: list[Any], param_dtype: Any) -> str:
    """Returns the form of a CPU's kernels: of the dtype of most bytes, if it has one."""
    if isinstance(param_dtype, str) and param_dtype.endswith("a8"):
        return "a8"
    sizes = Counter[str]()
    for leaf in leaves:
        sizes[leaf.dtype.name] += _bytes(leaf)
    kind = max(sizes, key=sizes.__getitem__, default="float32")
    return kind if kind in _CPU_FORMS else "float32"


def _roofline(device: Device, tokens: int, size: int) -> float:
    """Returns the longer of a forward pass's compute and read times, rounded at the edge."""
    # Two operations for each weight of 16 bits; one of 32 bits takes twice as long.
    bounds = np.array([tokens * size / device.flops, size / device.bandwidth])
    longer = bounds.max()
    return float(longer * ((bounds / longer) ** _EDGE).sum() ** (1 / _EDGE))


def launching(params: PyTree) -> float:
    """Estimates the seconds of kernels and host in a round of plain decoding on a GPU."""

    def layers(path: tuple[Any, ...], leaf: Any) -> int:
        # A stack is called after the range of its layers, such as "layers_1:26:2".
        stacked = any(":" in str(getattr(key, "key", "")) for key in path)
        return leaf.shape[0] if stacked else 1

    arrays = sum(layers(*each) for each in jax.tree_util.tree_leaves_with_path(params))
    return _KERNEL * (_PLAIN + _OF_AN_ARRAY * arrays) + _WAIT
