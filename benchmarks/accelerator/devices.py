"""The device at hand: what its data sheet says, and how fast it copies."""

import os
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale
from benchmarks.accelerator.timing import per_call
from benchmarks.harness import read_bandwidth
from jspec.types import PyTree

SECTION = "device"
PREALLOCATION = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION")


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
    """Bytes that the process may take of the device's memory; None where it does not say."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def copy_bandwidth(size: int, repeats: int) -> float:
    """Bytes a second that a copy moves, read and written.

    Args:
        size: bytes of what is copied.
        repeats: of which the fastest counts.
    """
    source = jnp.ones(size // 4, jnp.float32)
    # A plain copy may be left out by the compiler.
    copy = jax.jit(lambda array: array + 1)
    return 2 * size / min(per_call({"copy": lambda: copy(source)}, repeats)["copy"])


def _held(params: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def measure(cells: Cells, scale: Scale) -> None:
    """One row: the device, its memory, its bandwidth, and the settings that change its speed."""
    kind = jax.local_devices()[0].device_kind

    def row() -> dict:
        sheet = DATA_SHEETS.get(kind)
        copied = copy_bandwidth(scale.copied_bytes, scale.repeats)
        # Where no vendor says what the memory can do: caches may hold small weights.
        read = None if sheet else _held(scale.params) / read_bandwidth(scale.params)
        return {
            "data_sheet_bandwidth": sheet and sheet.bandwidth,
            "peak": sheet and sheet.peak,
            "copy_bandwidth": copied,
            "read_bandwidth": read,
            "bandwidth": sheet.bandwidth if sheet else max(copied, read or 0.0),
            "memory": memory(),
            "preallocation": {name: os.environ.get(name) for name in PREALLOCATION},
            "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
            "compilation_cache": getattr(jax.config, "jax_compilation_cache_dir", None),
        }

    cells.run(row, what="bandwidth")
