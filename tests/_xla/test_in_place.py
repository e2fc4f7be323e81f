"""A switch made of loops that run once or never: what `lax.switch` gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jspec._xla import backend
from jspec._xla.in_place import switch


@pytest.fixture(params=["cpu", "gpu"], autouse=True)
def platform(request):
    """Runs with branches as loops (CPU) and as branches (GPU)."""
    with backend.planned(request.param):
        yield


BRANCHES = [
    lambda state, given: (state[0] + given, state[1]),
    lambda state, given: (state[0] * given, state[1] + 1),
    lambda state, given: (state[1] - given, state[0]),
]


def both(index, state, given):
    ours = switch(index, BRANCHES, state, given)
    return ours, jax.lax.switch(index, BRANCHES, state, given)


def arrays():
    return (jnp.arange(4.0), jnp.ones(4)), jnp.float32(3)


def test_it_is_lax_switch():
    """An index out of range is the nearest: a loop around a switch has to end."""
    for index in [0, 1, 2, 3, 99, -1]:
        jitted = jax.jit(lambda *given: both(*given))  # not what was traced for another platform
        for kind in (jnp.int32, jnp.int8):
            ours, its = jitted(kind(index), *arrays())
            jax.tree.map(np.testing.assert_array_equal, ours, its)


def test_one_branch_needs_no_index():
    state, given = arrays()
    found = switch(jnp.int32(7), BRANCHES[:1], state, given)
    jax.tree.map(np.testing.assert_array_equal, found, BRANCHES[0](state, given))


def test_each_device_has_an_index_of_its_own():
    devices = min(jax.device_count(), 4)
    mesh = jax.make_mesh(
        (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
    )
    rows = PartitionSpec("data")
    index = jnp.arange(devices, dtype=jnp.int32) % len(BRANCHES)

    def call(index, state):
        # The state varies between devices, what is given does not.
        return switch(index[0], BRANCHES, state, jnp.float32(3))

    sharded = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    state = (jnp.arange(4.0 * devices), jnp.ones(4 * devices))
    found = sharded(index, state)
    for device in range(devices):
        part = slice(4 * device, 4 * device + 4)
        wanted = BRANCHES[int(index[device])](tuple(leaf[part] for leaf in state), 3.0)
        jax.tree.map(np.testing.assert_array_equal, tuple(x[part] for x in found), wanted)


def test_only_the_chosen_branch_runs():
    ran = []

    def told(number):
        def branch(state, given):
            jax.debug.callback(lambda: ran.append(number))
            return state + given

        return branch

    branches = [told(number) for number in range(3)]
    call = jax.jit(lambda index: switch(index, branches, jnp.float32(1), jnp.float32(2)))
    assert call(jnp.int32(1)) == 3
    jax.effects_barrier()
    assert ran == [1]
