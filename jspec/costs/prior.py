"""The cost curve where nothing was measured: from the shapes of the model and the device."""

from typing import Any

import jax
import numpy as np

from jspec.base import PyTree
from jspec.cost_curve import CostCurve

_CPU = {1: 1.0, 2: 1.33, 4: 1.42, 8: 1.66, 16: 2.15, 32: 3.0, 64: 4.5, 128: 7.9}
"""The time of a forward by its tokens, in forwards of one token: the form of float32 products on a
few cores. One with several rows packs the weights before it reads them, which is why the second
token costs so much."""
_CPU_BANDWIDTH = 25e9
"""Bytes per second that two cores read."""
_FREE_TOKENS = {"gpu": 128, "tpu": 128}
"""Tokens of a round that take no longer than one, since reading the weights takes as long."""
_BANDWIDTH = 1.5e12


def prior(params: PyTree, device: Any = None) -> CostCurve:
    """A guess at the cost curve of a model on a device.

    On a CPU it has the form of a small model's. On an accelerator a round takes as
    long as reading the weights, up to the number of tokens whose arithmetic takes that long too.

    Args:
        params: the model's weights; only their sizes are read.
        device: a `jax.Device`; None is the default one.

    Example:
        >>> import jax, numpy as np
        >>> curve = prior({"kernel": np.zeros((1000, 1000), np.float32)}, jax.devices("cpu")[0])
        >>> float(curve.at([8])[0] / curve.at([1])[0]) > 1.5
        True
    """
    kind = (device or jax.devices()[0]).platform
    size = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    if kind == "cpu":
        once = max(size, 1) / _CPU_BANDWIDTH
        return CostCurve.of({tokens: once * times for tokens, times in _CPU.items()})
    once, free = max(size, 1) / _BANDWIDTH, _FREE_TOKENS.get(kind, 64)
    return CostCurve.of({1: once, free: 1.1 * once, 8 * free: 8 * once})
