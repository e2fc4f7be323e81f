"""Estimates the cost curve from the shapes of the model and the device, without a measurement."""

from typing import Any

import jax
import numpy as np

from jspec._validate.errors import InputError
from jspec.costs import launching
from jspec.costs.devices import figures
from jspec.costs.roofline import cpu_form, seconds
from jspec.drafters.cost_curve import CostCurve
from jspec.types import PyTree


def prior(params: PyTree, device: Any = None) -> CostCurve:
    """A guess at the cost curve of a model on a device.

    On a CPU it has the form of a small model's. On an accelerator a round takes as
    long as reading the weights, up to the number of tokens whose arithmetic takes that long too:
    by the data sheet where the device has one. On a GPU it takes longer by what is launched, and
    the more so where the round drafts, see `jspec.costs.launching`. `jspec.planning` counts a round
    in full.

    Args:
        params: the model's weights; only their sizes are read.
        device: a `jax.Device`, or a `jspec.costs.devices.Device`; None is the default one.

    Raises:
        InputError: if something else than arrays stands among them.

    Example:
        >>> import jax, numpy as np
        >>> curve = prior({"kernel": np.zeros((1000, 1000), np.float32)}, jax.devices("cpu")[0])
        >>> float(curve.at([8])[0] / curve.at([1])[0]) > 1.3
        True
    """
    known = figures(device or jax.devices()[0])
    leaves = jax.tree.leaves(params)
    if not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        raise InputError(
            f"params is {params!r:.80}; pass a model's params, or arrays' shapes in their place"
        )
    size = max(sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves), 1)
    points = list(cpu_form())
    if known.platform != "cpu":
        free = int(known.flops / known.bandwidth)
        points = [1, free, 8 * free]
    drafting = in_backoff = 0.0
    if known.platform == "gpu":
        plain = launching.plain(params)
        drafting, in_backoff = plain + launching.draft(), plain + launching.backoff()

    # Two operations for each weight of 16 bits; one of 32 bits takes twice as long.
    forwards = {tokens: seconds(known, tokens, tokens * size, size) for tokens in points}
    drafted = {tokens: taken + drafting for tokens, taken in forwards.items()}
    return CostCurve.of(drafted, undrafted=forwards[1] + in_backoff)
