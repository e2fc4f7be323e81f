"""The timing of attention refuses kernels that fail or give other numbers."""

import numpy as np

from benchmarks.dyspec import kernel_times
from jspec.models.attention import XLA, Implementation
from jspec.models.block_attention import BlockAttention, Triton


class Zero(Implementation):
    """Wrong numbers, as a compiler's bug would give."""

    def own(self, queries, keys, values, seen, soft_cap):
        return super().own(queries, keys, 0 * values, seen, soft_cap)


class Broken(Implementation):
    def own(self, queries, keys, values, seen, soft_cap):
        raise NotImplementedError("no such layout\nand more")


def test_failing_or_wrong_kernels_are_an_error(monkeypatch):
    monkeypatch.setattr(kernel_times, "CHAIN", 1)
    good = BlockAttention(nodes=Triton(16, 32, interpret=True))
    wrong, broken = Zero(), Broken()
    mask = np.tri(16, dtype=bool)
    seconds, errors = kernel_times.measure(mask, 1, 16, [wrong, broken, good])
    assert set(seconds) == {repr(XLA), repr(good)}
    assert "differs from XLA" in errors[repr(wrong)]
    assert errors[repr(broken)] == "NotImplementedError: no such layout"
