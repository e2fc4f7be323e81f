"""A switch made of loops that run once or never: what `lax.switch` gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jspec._xla.in_place import switch


@pytest.fixture(params=["cpu", "gpu"])
def platform(request):
    """Runs with branches as loops (CPU) and as branches (GPU)."""
    return request.param


BRANCHES = [
    lambda state, given: (state[0] + given, state[1]),
    lambda state, given: (state[0] * given, state[1] + 1),
    lambda state, given: (state[1] - given, state[0]),
]


def both(platform, index, state, given):
    ours = switch(index, BRANCHES, state, given, platform)
    return ours, jax.lax.switch(index, BRANCHES, state, given)


def arrays():
    return (jnp.arange(4.0), jnp.ones(4)), jnp.float32(3)


def test_it_is_lax_switch(platform):
    """An index out of range is the nearest: a loop around a switch has to end."""
    for index in [0, 1, 2, 3, 99, -1]:
        jitted = jax.jit(both, static_argnums=0)
        for kind in (jnp.int32, jnp.int8):
            ours, its = jitted(platform, kind(index), *arrays())
            jax.tree.map(np.testing.assert_array_equal, ours, its)
    state, given = arrays()  # one branch needs no index
    found = switch(jnp.int32(7), BRANCHES[:1], state, given, platform)
    jax.tree.map(np.testing.assert_array_equal, found, BRANCHES[0](state, given))


def test_each_device_has_an_index_of_its_own(platform):
    devices = min(jax.device_count(), 4)
    mesh = jax.make_mesh(
        (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
    )
    rows = PartitionSpec("data")
    index = jnp.arange(devices, dtype=jnp.int32) % len(BRANCHES)

    def call(index, state):
        # The state varies between devices, what is given does not.
        return switch(index[0], BRANCHES, state, jnp.float32(3), platform)

    sharded = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    state = (jnp.arange(4.0 * devices), jnp.ones(4 * devices))
    found = sharded(index, state)
    for device in range(devices):
        part = slice(4 * device, 4 * device + 4)
        wanted = BRANCHES[int(index[device])](tuple(leaf[part] for leaf in state), 3.0)
        jax.tree.map(np.testing.assert_array_equal, tuple(x[part] for x in found), wanted)


def test_only_the_chosen_branch_runs(platform):
    ran = []

    def told(number):
        def branch(state, given):
            jax.debug.callback(lambda: ran.append(number))
            return state + given

        return branch

    branches = [told(number) for number in range(3)]
    one, two = jnp.float32(1), jnp.float32(2)
    call = jax.jit(lambda index: switch(index, branches, one, two, platform))
    assert call(jnp.int32(1)) == 3
    jax.effects_barrier()
    assert ran == [1]
