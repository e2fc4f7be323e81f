"""The device at hand: what its data sheet says, and how fast it copies."""

import os

import jax
import jax.numpy as jnp

from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.shapes import Scale
from benchmarks.accelerator.timing import per_call
from benchmarks.harness import read_bandwidth
from jspec.costs.devices import TABLE

SETTINGS = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_FLAGS")


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
        kind = jax.local_devices()[0].device_kind
        sheet = next((one for one in TABLE if one.kind == kind), None)
        copied = copy_bandwidth(scale.copied_bytes, scale.repeats)
        read = 0.0
        if sheet is None:  # caches may hold small weights
            held = sum(leaf.nbytes for leaf in jax.tree.leaves(scale.params))
            read = held / read_bandwidth(scale.params)
        return {
            "copy_bandwidth": copied,
            "bandwidth": sheet.bandwidth if sheet else max(copied, read),
            "peak": sheet and sheet.flops,
            "memory": memory(),
            "settings": {name: os.environ.get(name) for name in SETTINGS},
        }

    cells.run(row, what="bandwidth")
