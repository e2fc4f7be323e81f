import jax.numpy as jnp
import numpy as np

from jspec import memory
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
