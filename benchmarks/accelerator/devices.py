"""The device at hand: what its data sheet says, and how fast it copies."""

import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale
from benchmarks.accelerator.timing import per_call
from benchmarks.harness import read_bandwidth

SETTINGS = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_FLAGS")


@dataclass(frozen=True)
class DataSheet:
    """The vendor's figures of a device."""

    bandwidth: float
    """Bytes a second of its memory."""
    peak: float
    """Dense bfloat16 operations a second, an addition and a multiplication counted as two."""


DATA_SHEETS = {
    "NVIDIA B200": DataSheet(8.0e12, 2250e12),
    "NVIDIA H200": DataSheet(4.8e12, 989e12),
    "NVIDIA GH200 480GB": DataSheet(4.0e12, 989e12),
    "NVIDIA H100 80GB HBM3": DataSheet(3.35e12, 989e12),
    "NVIDIA H100 PCIe": DataSheet(2.0e12, 756e12),
    "NVIDIA A100-SXM4-80GB": DataSheet(2.039e12, 312e12),
    "NVIDIA A100-SXM4-40GB": DataSheet(1.555e12, 312e12),
    "NVIDIA L40S": DataSheet(0.864e12, 362e12),
    "NVIDIA L4": DataSheet(0.3e12, 121e12),
    "NVIDIA GeForce RTX 4090": DataSheet(1.008e12, 165e12),
    "Tesla V100-SXM2-16GB": DataSheet(0.9e12, 125e12),
    "Tesla T4": DataSheet(0.32e12, 65e12),
    "TPU v4": DataSheet(1.228e12, 275e12),
    "TPU v5 lite": DataSheet(0.819e12, 197e12),
    "TPU v5": DataSheet(2.765e12, 459e12),
    "TPU v6 lite": DataSheet(1.64e12, 918e12),
}
"""By `device_kind`, as JAX names it. What is not here is measured."""


def memory() -> int | None:
    """Returns the bytes of the device's memory that the process may take, if the device says it."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def copy_bandwidth(size: int, repeats: int) -> float:
    """Returns the bytes a second that a copy moves, read and written.

    Args:
        size: bytes of what is copied.
        repeats: of which the fastest counts.
    """
    source = jnp.ones(size // 4, jnp.float32)
    # A plain copy may be left out by the compiler.
    copy = jax.jit(lambda array: array + 1)
    return 2 * size / min(per_call(lambda: copy(source), repeats))


def measure(cells: Cells, scale: Scale) -> None:
    """Writes one row: the device, its memory, its bandwidth, and settings that change its speed."""

    def row() -> dict:
        sheet = DATA_SHEETS.get(jax.local_devices()[0].device_kind)
        copied = copy_bandwidth(scale.copied_bytes, scale.repeats)
        read = 0.0
        if sheet is None:  # caches may hold small weights
            held = sum(leaf.nbytes for leaf in jax.tree.leaves(scale.params))
            read = held / read_bandwidth(scale.params)
        return {
            "copy_bandwidth": copied,
            "bandwidth": sheet.bandwidth if sheet else max(copied, read),
            "peak": sheet and sheet.peak,
            "memory": memory(),
            "settings": {name: os.environ.get(name) for name in SETTINGS},
        }

    cells.run(row, what="bandwidth")
