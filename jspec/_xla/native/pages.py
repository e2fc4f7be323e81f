"""Weights in large pages of memory, whose addresses a processor finds in less time."""

import ctypes
import sys
from pathlib import Path

import jax

from jspec.types import PyTree

_SYSTEM = Path("/sys/kernel/mm/transparent_hugepage")
_COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1 and newer; older ones refuse it, and pages stay small."""
_LEAST = 8
"""Arrays of less than this part of a page stay where they are."""


def page_bytes() -> int | None:
    """Returns the size of a large page; None: this system has none, or they are off."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "madvise"):
        return None
    try:
        if "[never]" in (_SYSTEM / "enabled").read_text():
            return None
        return int((_SYSTEM / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return None


def hold_in_large_pages(params: PyTree) -> PyTree:
    """Returns the same arrays; those in a CPU's memory now lie in large pages where they can.

    XLA allocates pages of 4 KB, whose addresses are looked up anew in every forward pass. Arrays
    keep their own addresses.
    """
    size = page_bytes()
    arrays = jax.tree.leaves(params)
    devices = {device for array in arrays for device in array.devices()}
    if size is None or [device.platform for device in devices] != ["cpu"]:
        return params
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = set[int]()
    for array in jax.block_until_ready(arrays):
        if array.nbytes * _LEAST >= size:
            first = array.unsafe_buffer_pointer()
            pages |= set(range(first // size, -(-(first + array.nbytes) // size)))
    for page in pages:
        advise(page * size, size, _COLLAPSE)  # refused where not all of it is this process's
    return params
