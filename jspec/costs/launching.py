"""Estimates launch and synchronization overhead of a GPU, beside what it reads and computes.

The figures of a launch are assumed, not measured: an empty kernel takes about as long, and XLA's
host takes some tens of microseconds to read a condition. `python -m benchmarks.accelerator`
measures them where there is a GPU, in its section `loops`.
"""

from typing import Any

import jax

from jspec.types import PyTree

KERNEL = 2e-6
"""Seconds from the start of a kernel to that of the next, in a graph, of one with little to do."""
LAUNCH = 4e-6
"""Seconds that the host takes for a graph, or for a kernel alone."""
WAIT = 20e-6
"""Seconds until the host has read a condition and gone on."""
EXCHANGE = 10e-6
"""Seconds of a sum over the GPUs of a host, beside those of its bytes."""


def seconds(kernels: int, launched: int, waits: int, exchanges: int = 0) -> float:
    """The time of a round that none of its reading or arithmetic hides.

    Args:
        kernels: that the device runs, one after the other.
        launched: graphs, and kernels alone, that the host launches.
        waits: of the host for the device.
        exchanges: those of the kernels in which devices exchange something.

    Example:
        >>> round(1e3 * seconds(kernels=800, launched=4, waits=3), 2)  # milliseconds
        1.68
    """
    return KERNEL * kernels + LAUNCH * launched + WAIT * waits + EXCHANGE * exchanges


# What XLA makes of rounds, as compiled for an H100 (`.ci/gpu_aot.py`, 2026-11-25).
_OF_AN_ARRAY = 4
"""Kernels for each array of weights: a layer of Llama has 6 arrays, and 23 kernels."""
_PLAIN = (25, 2, 1)
"""(kernels, launched, waits) of a round of plain decoding outside the layers."""
_REST = (23, 0, 0)
"""What a round more of `auto` has that drafts nothing."""
_DRAFT = (250, 0, 0)
"""What a round more of `auto` has that drafts."""


def plain(params: PyTree) -> float:
    """About the seconds of the launches of a round of plain decoding.

    Args:
        params: the model's weights; only their number counts.
    """
    kernels, launched, waits = _PLAIN
    return seconds(kernels + _OF_AN_ARRAY * _arrays(params), launched, waits)


def backoff() -> float:
    """About the seconds that a round of a drafter which chooses its width, and backs off, has
    more.
    """
    return seconds(*_REST)


def draft() -> float:
    """About the seconds that a round of a drafter which chooses its width, and drafts, has more."""
    return seconds(*_DRAFT)


def _arrays(params: PyTree) -> int:
    """The arrays of weights of a model, each layer of a stack by itself."""

    def layers(path: tuple[Any, ...], leaf: Any) -> int:
        # A stack is called after the range of its layers, such as "layers_1:26:2".
        stacked = any(":" in str(getattr(key, "key", "")) for key in path)
        return leaf.shape[0] if stacked else 1

    return sum(layers(*each) for each in jax.tree_util.tree_leaves_with_path(params))
