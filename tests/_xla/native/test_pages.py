"""Large pages: arrays keep numbers and addresses, and the system tells of the pages."""

import platform
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jspec._xla.native import pages

there = pytest.mark.skipif(pages.page_bytes() is None, reason="this system has no large pages")


def held() -> int:
    """The kilobytes of this process in large pages."""
    told = Path("/proc/self/smaps_rollup").read_text()
    return int(told.split("AnonHugePages:")[1].split()[0])


@there
def test_arrays_stay_where_they_are():
    draw = np.random.default_rng(0)
    wanted = [draw.normal(size=(700, 701)).astype(np.float32) for _ in range(6)]
    arrays = {str(n): jnp.asarray(each) + 0 for n, each in enumerate(wanted)}
    at, before = [each.unsafe_buffer_pointer() for each in arrays.values()], held()
    assert pages.hold_in_large_pages(arrays) is arrays
    assert [each.unsafe_buffer_pointer() for each in arrays.values()] == at
    for each, numbers in zip(arrays.values(), wanted, strict=True):
        np.testing.assert_array_equal(each, numbers)
    if tuple(map(int, platform.release().split(".")[:2])) >= (6, 1):
        assert held() > before


def test_a_system_without_them_leaves_arrays_alone(monkeypatch):
    arrays = [jnp.ones((700, 701))]
    monkeypatch.setattr(pages, "_SYSTEM", Path("/nothing/of/the/kind"))
    assert pages.page_bytes() is None and pages.hold_in_large_pages(arrays) is arrays
    monkeypatch.setattr(sys, "platform", "darwin")
    assert pages.page_bytes() is None
