"""What a first call compiles is counted: programs, their operations, and seconds once each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import compile as bench
from jspec._validate.errors import InputError


def test_programs_are_counted_when_they_are_compiled_and_not_when_they_run():
    @jax.jit
    def twice(x):
        return jnp.sin(jnp.cos(x)) * 2

    x = np.ones(3, np.float32)
    with bench.count() as first:
        twice(x)
    with bench.count() as second:
        twice(x)
    # Cosine, sine, the constant, its broadcast, the product.
    assert (first["programs"], first["StableHLO ops"]) == (1, 5)
    assert all(first[kind] > 0 for kind in bench.EVENTS.values())
    assert set(second.values()) == {0}


def test_methods_and_chips_that_are_not_there_are_refused():
    with pytest.raises(InputError, match="--methods has medusa; give some of plain"):
        bench.main(names="plain,medusa")
    with pytest.raises(InputError, match="h900:1"):
        bench.main(device="h900")
