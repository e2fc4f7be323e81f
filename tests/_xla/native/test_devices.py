"""The kernels under JAX's transformations over devices, loops and compilation ahead of time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jspec._xla import native
from jspec.models import linear

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))

DRAW = np.random.default_rng(0)
X = jnp.asarray(DRAW.normal(size=(8, 3, 40)), jnp.float32)
WEIGHTS = jnp.asarray(DRAW.normal(size=(8, 40)), jnp.float32)
ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()


@pytest.fixture(scope="module")
def alone():
    return np.stack([linear.product(x, WEIGHTS) for x in X])


def called(run, *arguments):
    """True if a program calls the kernel."""
    return "jspec_product" in run.lower(*arguments).as_text()


@pytest.fixture
def mesh():
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def test_each_device_of_a_pmap_and_of_a_shard_map_calls_the_kernel(mesh, alone):
    spread = jax.pmap(linear.product, in_axes=(0, None))
    mapped = jax.jit(
        jax.shard_map(linear.product, mesh=mesh, in_specs=(ROWS, WHOLE), out_specs=ROWS)
    )
    for run in (spread, mapped):
        np.testing.assert_array_equal(run(X, WEIGHTS), alone)
        assert called(run, X, WEIGHTS)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [ROWS, WHOLE])
def test_on_a_mesh_it_is_xlas_which_splits_it(kind, spec, alone):
    """Rows that are split, and weights that are."""
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    x = jax.device_put(X, NamedSharding(mesh, spec))
    weights = jax.device_put(WEIGHTS, NamedSharding(mesh, WHOLE if spec == ROWS else ROWS))
    run = jax.jit(linear.product)
    np.testing.assert_allclose(run(x, weights), alone, atol=1e-5)
    assert not called(run, x, weights)


def test_a_loop_and_a_program_compiled_ahead_call_it(alone):
    def over(x, weights):
        return jax.lax.scan(lambda _, row: (None, linear.product(row, weights)), None, x)[1]

    run = jax.jit(over)
    assert called(run, X, WEIGHTS)
    np.testing.assert_array_equal(run.lower(X, WEIGHTS).compile()(X, WEIGHTS), alone)
