"""Kernels of recurrent layers: a node's bits are its token's, whatever the tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec._xla import native
from jspec.models import recurrence
from jspec.models.recurrence import RecurrentState, Updates
from jspec.testing.model_subject import above

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 3, 5, 8, 0, 10])
SIZES = [(1, 1, 1, 1), (2, 4, 4, 5), (3, 3, 33, 16), (1, 2, 20, 64), (2, 2, 17, 150)]
"""Key heads, heads, and the sizes of keys and values."""


def bits(x):
    return np.asarray(x).view(np.uint32)


def tree_of(sizes, parents, delta, seed=0):
    """The inputs of `native.recur` for a tree in each of two rows, and the states after it."""
    key_heads, heads, key, dim = sizes
    draw, count = np.random.default_rng(seed), len(parents)

    def normal(*shape):
        return jnp.asarray(draw.normal(size=(2, *shape)), jnp.float32)

    k = normal(key_heads, count, key)
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    factors = jnp.asarray(draw.uniform(0, 1, (2, heads, count)), jnp.float32)
    beta = jnp.asarray(draw.uniform(0, 1, (2, heads, count)), jnp.float32) if delta else None
    nodes = normal(key_heads, count, key), k, normal(heads, count, dim), factors, beta
    return nodes, normal(heads, key, dim)


recur, replay = jax.jit(native.recur), jax.jit(native.replay)


def committed(nodes, values, states, path, row):
    """The state of one row behind nodes, which are committed one by one."""
    _, k, v, factors, _ = nodes
    k = jnp.repeat(k, v.shape[1] // k.shape[1], axis=1)
    held = states[row : row + 1]
    for node in path:
        one = [x[row : row + 1, :, node : node + 1] for x in (k, values, factors[..., None])]
        held = replay(held, *one, jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    return held


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_nodes_bits_are_its_tokens(sizes, delta):
    """Each node as the only new token, its ancestors committed one by one."""
    nodes, states = tree_of(sizes, PARENTS, delta)
    seen = above(PARENTS)
    mixed, values = recur(*nodes, states, np.broadcast_to(seen, (2, *seen.shape)))
    for row in range(2):
        for node in range(len(PARENTS)):
            held = committed(nodes, values, states, np.flatnonzero(seen[node])[:-1], row)
            cut = [None if x is None else x[row : row + 1, :, node : node + 1] for x in nodes]
            alone = recur(*cut, held, np.ones((1, 1, 1), bool))
            np.testing.assert_array_equal(bits(alone[0][0, :, 0]), bits(mixed[row, :, node]))
            np.testing.assert_array_equal(bits(alone[1][0, :, 0]), bits(values[row, :, node]))


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("count", [5, 40, 150])
def test_bits_do_not_depend_on_the_order_of_nodes(count, delta):
    """Random trees, and the same in another order: some come before their parents."""
    draw = np.random.default_rng(count)
    parents = np.array([-1, *(draw.integers(0, node) for node in range(1, count))])
    seen = above(parents)
    nodes, states = tree_of((2, 4, 8, 20), parents, delta)
    found = recur(*nodes, states, np.broadcast_to(seen, (2, count, count)))
    order = draw.permutation(count)
    moved = [None if x is None else x[:, :, order] for x in nodes]
    other = recur(*moved, states, np.broadcast_to(seen[order][:, order], (2, count, count)))
    for one, two in zip(found, other, strict=True):
        np.testing.assert_array_equal(bits(one)[:, :, order], bits(two))


def test_of_products_that_is_not_true():
    """The negative control: in the form of other devices per node's bits follow from the tree."""
    nodes, states = tree_of((3, 3, 33, 16), PARENTS, True)
    given, seen = (*nodes[:3], jnp.log(nodes[3]), nodes[4]), above(PARENTS)
    run = jax.jit(recurrence.by_chunks)
    whole, _ = run(given, states, np.broadcast_to(seen, (2, *seen.shape)))
    part, _ = run(
        jax.tree.map(lambda x: x[:, :, :5], given), states, np.broadcast_to(seen[:5, :5], (2, 5, 5))
    )
    assert (bits(whole)[:, :, :5] != bits(part)).any()


def test_a_text_is_read_as_its_parts_are():
    """As one text, and as two that are committed one behind the other."""
    count, cut = 90, 37
    nodes, states = tree_of((2, 4, 12, 70), np.arange(count) - 1, True)
    seen = np.broadcast_to(np.tri(count, dtype=bool), (2, count, count))
    mixed, values = recur(*nodes, states, seen)
    path = jnp.broadcast_to(jnp.arange(count), (2, count))
    k = jnp.repeat(nodes[1], 2, axis=1)
    kept = k, values, nodes[3][..., None], path
    held = replay(states, *kept, jnp.full(2, cut))
    tail, _ = recur(
        *(None if x is None else x[:, :, cut:] for x in nodes), held, seen[:, cut:, cut:]
    )
    np.testing.assert_array_equal(bits(tail), bits(mixed)[:, :, cut:])
    whole = replay(states, *kept, jnp.full(2, count))
    behind = replay(held, *kept[:3], path + cut, jnp.full(2, count - cut))
    np.testing.assert_array_equal(bits(behind), bits(whole))


def test_rows_keep_different_numbers_of_nodes():
    """None of the first row's, whose state stays; a path is held within the tree."""
    nodes, states = tree_of((2, 2, 6, 5), PARENTS, True)
    _, k, v, factors, _ = nodes
    k = k.at[0].set(jnp.nan)
    path = jnp.array([[0, 1, 3], [0, 2, 99]])
    kept = k, v, factors[..., None]
    after = replay(states, *kept, path, jnp.array([0, 2]))
    np.testing.assert_array_equal(bits(after[0]), bits(states[0]))
    one = [x[1:, :, [0, 2]] for x in kept]
    wanted = replay(states[1:], *one, jnp.array([[0, 1]]), jnp.array([2]))
    np.testing.assert_array_equal(bits(after[1]), bits(wanted[0]))
    assert np.isfinite(replay(states, *kept, path, jnp.array([0, 9]))).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nans_reach_descendants_alone(value):
    nodes, states = tree_of((2, 4, 12, 20), PARENTS, True)
    seen = above(PARENTS)
    wide = np.broadcast_to(seen, (2, *seen.shape))
    clean, _ = recur(*nodes, states, wide)
    bad = (*nodes[:2], nodes[2].at[1, :, 1].set(value), *nodes[3:])
    found, _ = recur(*bad, states, wide)
    below = seen[:, 1]
    assert not np.isfinite(found[1][:, below]).any()
    np.testing.assert_array_equal(bits(found[1])[:, ~below], bits(clean[1])[:, ~below])
    np.testing.assert_array_equal(bits(found[0]), bits(clean[0]))


def test_tokens_that_are_not_there_get_zeros():
    """A row that has fewer: they see none, and none sees them."""
    nodes, states = tree_of((2, 4, 12, 20), PARENTS, True)
    seen = np.broadcast_to(above(PARENTS), (2, 12, 12)).copy()
    whole, _ = recur(*nodes, states, seen)
    seen[1, 8:] = False
    found, values = recur(*nodes, states, seen)
    assert not np.asarray(found[1, :, 8:]).any() and not np.asarray(values[1, :, 8:]).any()
    np.testing.assert_array_equal(bits(found[0]), bits(whole[0]))
    np.testing.assert_array_equal(bits(found[1, :, :8]), bits(whole[1, :, :8]))


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 40, 3), (2, 5, 1)])
def test_the_convolution_of_a_path(shape):
    """Compares with float64; a node's bits are its token's after committed ancestors."""
    heads, lanes, before = shape
    draw, count, seen = np.random.default_rng(0), len(PARENTS), above(PARENTS)
    inputs, window = (
        draw.normal(size=(2, heads, size, lanes)).astype(np.float32) for size in (count, before)
    )
    kernel = draw.normal(size=(heads, lanes, before + 1)).astype(np.float32)
    run = jax.jit(native.convolve)
    found = run(inputs, kernel, window, np.broadcast_to(seen, (2, count, count)))
    for node in range(count):
        path = np.flatnonzero(seen[node])
        text = np.concatenate([window, inputs[:, :, path]], 2)[:, :, -before - 1 :]
        wanted = np.einsum("bjtc,jct->bjc", text.astype(np.float64), kernel)
        np.testing.assert_allclose(found[:, :, node], wanted, atol=2e-6)
        nothing = jnp.zeros((2, 1, count, 1))
        updates = Updates(nothing, nothing, nothing, nothing, jnp.asarray(inputs))
        state = RecurrentState(jnp.zeros((2, 1, 1, 1)), jnp.asarray(window))
        behind = jnp.broadcast_to(path, (2, len(path)))
        held = recurrence.commit(state, updates, behind, jnp.full(2, len(path) - 1)).window
        alone = run(inputs[:, :, node : node + 1], kernel, held, np.ones((2, 1, 1), bool))
        np.testing.assert_array_equal(bits(alone[:, :, 0]), bits(found[:, :, node]))
