"""Lists memory, bandwidth and peak arithmetic of devices, from their vendors' data sheets."""

import os
from dataclasses import dataclass, replace
from typing import Any

import jax

from jspec._validate.errors import InputError

_GIB = 2**30
_GPU_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True)
class Device:
    """The figures of a device.

    Example:
        >>> v5e = find("v5e")
        >>> v5e.name, v5e.memory >> 30, round(v5e.flops / v5e.bandwidth)
        ('TPU v5e', 15, 241)
    """

    name: str
    platform: str
    """As JAX names it: "cpu", "gpu" or "tpu"."""
    memory: int
    """Bytes that programs may have of its memory."""
    bandwidth: float
    """Bytes per second of its memory."""
    flops: float
    """Dense bfloat16 operations per second; an addition and a multiplication are two."""
    kind: str = ""
    """Its `device_kind` in JAX."""
    source: str = ""


def _tpu(name: str, kind: str, gib: float, bandwidth: float, flops: float) -> Device:
    # XLA keeps an uncounted part; the rest is what its messages of exhausted memory say.
    generation = name.split()[1]
    where = f"https://docs.cloud.google.com/tpu/docs/{generation}"
    return Device(name, "tpu", int(gib * _GIB), bandwidth, flops, kind, where)


def _gpu(name: str, kind: str, gb: float, bandwidth: float, flops: float, sheet: str) -> Device:
    return Device(name, "gpu", int(gb * 1e9), bandwidth, flops, kind, sheet)


_H100 = "https://www.nvidia.com/en-us/data-center/h100/"
_A100 = "https://www.nvidia.com/en-us/data-center/a100/"
TABLE = (
    _tpu("TPU v5e", "TPU v5 lite", 15.75, 0.819e12, 197e12),
    _tpu("TPU v5p", "TPU v5", 95.74, 2.765e12, 459e12),
    _tpu("TPU v6e", "TPU v6 lite", 31.25, 1.638e12, 918e12),
    _gpu("H100", "NVIDIA H100 80GB HBM3", 80, 3.35e12, 989e12, sheet=_H100),
    _gpu("H100 PCIe", "NVIDIA H100 PCIe", 80, 2.0e12, 756e12, sheet=_H100),
    _gpu("H200", "NVIDIA H200", 141, 4.8e12, 989e12,
         sheet="https://www.nvidia.com/en-us/data-center/h200/"),
    _gpu("GH200", "NVIDIA GH200 480GB", 96, 4.0e12, 989e12,
         sheet="https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"),
    _gpu("B200", "NVIDIA B200", 180, 8.0e12, 2250e12,
         sheet="https://www.nvidia.com/en-us/data-center/dgx-b200/"),
    _gpu("A100", "NVIDIA A100-SXM4-80GB", 80, 2.039e12, 312e12, sheet=_A100),
    _gpu("A100 40GB", "NVIDIA A100-SXM4-40GB", 40, 1.555e12, 312e12, sheet=_A100),
    _gpu("L40S", "NVIDIA L40S", 48, 0.864e12, 362e12,
         sheet="https://www.nvidia.com/en-us/data-center/l40s/"),
    _gpu("L4", "NVIDIA L4", 24, 0.3e12, 121e12,
         sheet="https://www.nvidia.com/en-us/data-center/l4/"),
    _gpu("RTX 4090", "NVIDIA GeForce RTX 4090", 24, 1.008e12, 165e12,
         sheet="NVIDIA Ada GPU Architecture, whitepaper, table 2"),
    _gpu("V100", "Tesla V100-SXM2-16GB", 16, 0.9e12, 125e12,
         sheet="https://www.nvidia.com/en-us/data-center/v100/"),
    _gpu("T4", "Tesla T4", 16, 0.32e12, 65e12,
         sheet="https://www.nvidia.com/en-us/data-center/tesla-t4/"),
)  # fmt: skip
"""Figures as the sources said them in November 2026, dense operations without sparsity."""

GUESSES = {
    # Two cores of a server. Their arithmetic is in the form of the curve, see `prior`.
    "cpu": Device("CPU", "cpu", 0, 25e9, 1e12),
    "gpu": Device("GPU of unknown figures", "gpu", 0, 1.5e12, 192e12),
    "tpu": Device("TPU of unknown figures", "tpu", 0, 1.5e12, 192e12),
}
"""Defaults by platform, where no vendor says it."""


def find(name: str) -> Device:
    """Returns the device of a name, such as "H100", "v5e" or "TPU v5e", in capitals or not.

    Args:
        name: as in the table.

    Raises:
        InputError: if the table has no such name.

    Example:
        >>> find("h200").bandwidth
        4800000000000.0
    """
    key = _plain(name)
    if key == "cpu":
        return here(jax.devices("cpu")[0])
    for device in TABLE:
        if key in (_plain(device.name), _plain(device.name.split()[-1]), _plain(device.kind)):
            return device
    names = ", ".join(device.name for device in TABLE)
    raise InputError(f"device {name!r} is unknown; take one of {names} or cpu")


def here(device: Any = None) -> Device:
    """Returns the figures of a device at hand, with the memory that it says it has.

    Args:
        device: a `jax.Device`; None is the default one.

    Example:
        >>> import jax
        >>> here(jax.devices("cpu")[0]).platform
        'cpu'
    """
    specs = figures(device or jax.devices()[0])
    if specs.platform == "cpu":
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return replace(specs, memory=pages * size)
    stats = (device or jax.devices()[0]).memory_stats() or {}
    if "bytes_limit" not in stats:
        return specs
    # Of a GPU that is what JAX takes of it, `usable`, and no more.
    fraction = _gpu_fraction() if specs.platform == "gpu" else 1
    return replace(specs, memory=round(stats["bytes_limit"] / fraction))


def kernels() -> str:
    """Returns which kernels jspec has on a CPU of this machine, in a few words."""
    from jspec._xla import native

    return native.describe()


def figures(device: Any) -> Device:
    """Returns the figures of a `jax.Device` by its kind, or a guess by its platform."""
    if isinstance(device, Device):
        return device
    kind = getattr(device, "device_kind", "")
    entries = [entry for entry in TABLE if entry.kind == kind]
    return entries[0] if entries else GUESSES.get(device.platform, GUESSES["gpu"])


def usable(device: Device) -> int:
    """Returns the bytes of a device's memory that JAX takes for programs.

    JAX takes three quarters of a GPU's memory, or what $XLA_PYTHON_CLIENT_MEM_FRACTION says.
    """
    return round(device.memory * _gpu_fraction()) if device.platform == "gpu" else device.memory


def _gpu_fraction() -> float:
    try:
        fraction = float(os.environ.get(_GPU_FRACTION, 0.75))
    except ValueError:
        return 0.75
    return fraction if 0 < fraction <= 1 else 0.75


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
