"""Estimates the time of a forward pass by the roofline model (Williams et al. 2009)."""

import numpy as np

from jspec._xla import native
from jspec.costs.devices import Device

_EDGE = 1 / np.log2(1.1)
"""Where a forward computes as long as it reads, it takes a tenth longer than either: the edge of
the roof is rounded."""

CPU_FORMS = {
    "kernels": {1: 1.0, 2: 1.04, 4: 1.12, 8: 1.35, 16: 1.75, 32: 3.0, 64: 5.3, 128: 9.0},
    "XLA": {1: 1.0, 2: 1.33, 4: 1.42, 8: 1.66, 16: 2.15, 32: 3.0, 64: 4.5, 128: 7.9},
}
"""The time of a forward by its tokens, in forward passes of one token: the form of float32 products
on a few cores, by what computes them. XLA packs the weights of several rows before it reads them,
which is why the second token costs so much there (`python -m benchmarks.speed.forwards`)."""


def cpu_form() -> dict[int, float]:
    """The form of products here."""
    return CPU_FORMS["XLA" if native.instruction_set() is None else "kernels"]


def seconds(device: Device, tokens: float, flops: float, read: float, sent: float = 0.0) -> float:
    """The time of a forward on a device.

    The larger of the time of its arithmetic and that of what it reads, with a rounded edge, and
    then that of what it sends to other devices. On a CPU the time of what it reads, in the form
    that products of more tokens were measured to have there.

    Args:
        device: its figures.
        tokens: of all its rows.
        flops: operations of this device.
        read: bytes that it reads of its memory.
        sent: bytes that it sends to its neighbours.

    Example:
        >>> from jspec.costs import devices
        >>> v5e = devices.find("v5e")
        >>> reading = seconds(v5e, 1, flops=1e9, read=2e9)
        >>> round(reading * 1e3, 2), round(seconds(v5e, 64, 64e9, 2e9) / reading, 2)
        (2.44, 1.0)
    """
    if device.platform == "cpu":
        return max(read, 1.0) / device.bandwidth * _cpu(tokens)
    bounds = np.array([flops / device.flops, max(read, 1.0) / device.bandwidth])
    longer = bounds.max()
    return float(longer * ((bounds / longer) ** _EDGE).sum() ** (1 / _EDGE)) + sent / device.link


def _cpu(tokens: float) -> float:
    """The form of a CPU, which goes straight on beyond its last point."""
    known, times = (np.array(list(part)) for part in (cpu_form(), cpu_form().values()))
    slope = (times[-1] - times[-2]) / (known[-1] - known[-2])
    return float(np.interp(tokens, known, times) + slope * max(tokens - known[-1], 0))
