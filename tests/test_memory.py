import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import memory
from jspec._xla.backend import plan_for
from jspec.memory import TreeKV


def test_commit_writes_the_path_behind_the_lengths_and_nothing_else():
    rng = np.random.default_rng(0)
    cache = memory.init(3, 5, layers=2, heads=2, head_dim=3, dtype=jnp.float32)
    cache = cache.replace(lengths=jnp.array([0, 2, 4]))
    kv = [rng.normal(size=(3, 2, 4, 3)) for _ in range(4)]
    nodes = TreeKV(tuple(map(jnp.asarray, kv[:2])), tuple(map(jnp.asarray, kv[2:])))
    path = jnp.array([[0, 2, 3], [0, 1, 3], [0, 1, 2]])
    counts = np.array([3, 0, 1])
    after = memory.commit(cache, nodes, path, jnp.asarray(counts))
    assert after.lengths.tolist() == [3, 2, 5]
    for layer in range(2):
        for got, new in ((after.keys, kv[layer]), (after.values, kv[2 + layer])):
            want = np.zeros((3, 2, 5, 3))
            want[0, :, :3] = new[0, :, [0, 2, 3]].swapaxes(0, 1)
            want[2, :, 4:] = new[2, :, [0]].swapaxes(0, 1)
            np.testing.assert_allclose(got[layer], want, rtol=1e-6)


def test_a_write_reads_no_whole_cache():
    """In bfloat16 XLA makes float32 of all slots for it, on a CPU before jaxlib 0.11."""

    def copies(dtype):
        cache = memory.init(1, 4096, layers=1, heads=2, head_dim=8, dtype=dtype)
        node = jnp.ones((1, 2, 1, 8), jnp.bfloat16)
        nodes = TreeKV((node,), (node,))

        def write(_, cache):
            return memory.commit(cache, nodes, jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))

        loop = jax.jit(lambda cache: jax.lax.fori_loop(0, 9, write, cache), donate_argnums=0)
        text = loop.lower(cache).compile().as_text()
        return len(re.findall(r"= (?:f32|bf16)\[1,2,4096,8\]\S* convert", text))

    dtype = memory.slots_dtype(jnp.bfloat16)
    assert copies(dtype) == 0
    assert dtype == jnp.bfloat16 or copies(jnp.bfloat16) > 0, "this XLA needs no other dtype"


@pytest.mark.parametrize("number", [1.5, -0.0, np.nan, -np.inf, 1e-40])
def test_slots_have_the_bits_of_bfloat16(number):
    node = jnp.full((1, 1, 1, 2), number, jnp.bfloat16)
    cache = memory.init(1, 2, 1, 1, 2, memory.slots_dtype(jnp.bfloat16))
    cache = memory.commit(cache, TreeKV((node,), (node,)), jnp.array([[0]]), jnp.array([1]))
    slot = memory.dequantise(cache.keys[0], jnp.bfloat16)[0, 0, 0]
    bits = [np.asarray(x).view(np.uint16).tolist() for x in (slot, node[0, 0, 0])]
    assert bits[0] == bits[1]
    with plan_for("gpu"):
        assert memory.slots_dtype(jnp.bfloat16) == jnp.bfloat16
    assert memory.slots_dtype(jnp.float32) == jnp.float32
