"""Annotations of arrays are checked: dtypes, and axes that have two sizes in one call."""

from dataclasses import dataclass

import checked
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

from jspec import sampling

WIDE, COUNTS = np.ones((2, 3), np.float32), np.ones(2, np.int32)


@checked.arrays
def product(x: Float[Array, "B N"], counts: Int[Array, " B"]) -> Float[Array, " N"]:
    return (counts[:, None] * x).sum(0, dtype=np.float32)[: counts[0] * 3]


@checked.arrays
@dataclass
class Pair:
    x: Float[Array, "B N"]
    counts: Int[Array, " B"]


def test_another_dtype_or_another_size_of_an_axis_is_refused():
    product(WIDE, COUNTS), Pair(WIDE, COUNTS)
    for call in (
        lambda: product(WIDE, WIDE[:, 0]),
        lambda: product(WIDE.T, COUNTS),
        lambda: product(WIDE, 0 * COUNTS),  # what it returns
        lambda: Pair(WIDE, counts=COUNTS[:1]),
        lambda: sampling.row_keys(None, WIDE),  # of jspec, by the import hook
    ):
        with pytest.raises(TypeError, match="violates type hint"):
            call()
