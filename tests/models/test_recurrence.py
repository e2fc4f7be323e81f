"""Recurrent layers in a tree, against each path walked by itself in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec._xla import native
from jspec.models import recurrence
from jspec.models.recurrence import CHUNK
from jspec.testing.model_subject import PARENTS, above

HEADS, KEY, VALUE = 3, 4, 5
ORDER = np.array([0, 2, 1, 5, 4, 3, 9, 8, 7, 6])
"""The tree's nodes in another order: levels are mixed, and some come before their parents."""


def given(count, delta, seed=0, batch=2):
    """q, k, v, decays and beta of nodes, and a state, in float64."""
    draw = np.random.default_rng(seed)
    shape = batch, HEADS, count
    q, k = draw.normal(size=(2, *shape, KEY))
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    v = draw.normal(size=(*shape, VALUE))
    decays = -np.exp(draw.normal(size=shape) - 1)
    beta = draw.uniform(0.1, 1, shape) if delta else None
    return (q, k, v, decays, beta), draw.normal(size=(batch, HEADS, KEY, VALUE))


def walked(nodes, states, row, path):
    """o of the last token of a path, and the state behind it, token by token as in the paper."""
    q, k, v, decays, beta = (None if x is None else x[row] for x in nodes)
    state = states[row].copy()
    for node in path:
        for head in range(HEADS):
            key, value = k[head, node], v[head, node]
            held = np.exp(decays[head, node]) * state[head]
            if beta is not None:
                # Equation 10: S (alpha (I - beta k k^T)) + beta v k^T, whose S is ours transposed.
                rate = beta[head, node]
                held = held - rate * np.outer(key, key @ held)
                value = rate * value
            state[head] = held + np.outer(key, value)
    return np.einsum("hkd,hk->hd", state, q[:, path[-1]]), state


def by_kernel(nodes, states, seen):
    q, k, v, decays, beta = nodes
    return native.recur(q, k, v, jnp.exp(decays), beta, states, seen)


def replayed(states, k, values, decays, live):
    """Steps of which the last ones are not live."""
    path = jnp.broadcast_to(jnp.arange(live.shape[1]), live.shape)
    factors = jnp.exp(decays)[..., None]
    return native.replay(states, k, values, factors, path, live.sum(-1))


def run(form, nodes, states, seen):
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (nodes, states))
    seen = jnp.broadcast_to(jnp.asarray(seen), (len(states), *seen.shape))
    return jax.jit(form)(*narrow, seen)


there = pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))
FORMS = [recurrence.by_chunks, pytest.param(by_kernel, marks=there)]
WAYS = [recurrence.sum_states, pytest.param(replayed, marks=there)]


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [np.arange(10), ORDER])
def test_a_node_reads_the_state_of_its_own_path(form, delta, order):
    nodes, states = given(10, delta)
    seen = above(PARENTS)[order][:, order]
    found, _ = run(form, nodes, states, seen)
    for row in range(2):
        for node in range(10):
            path = np.flatnonzero(seen[node])
            path = path[np.argsort(seen[path].sum(-1))]
            wanted, _ = walked(nodes, states, row, path)
            np.testing.assert_allclose(found[row, :, node], wanted, atol=1e-5)


def test_siblings_are_told_apart():
    """The negative control: under the mask of a text a node sees its siblings too."""
    nodes, states = given(10, True)
    text, _ = run(recurrence.by_chunks, nodes, states, np.tri(10, dtype=bool))
    tree, _ = run(recurrence.by_chunks, nodes, states, above(PARENTS))
    np.testing.assert_allclose(text[:, :, :2], tree[:, :, :2], atol=1e-5)
    assert np.abs(text[:, :, 2:] - tree[:, :, 2:]).max(axis=(0, 1, 3)).min() > 1e-2


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize(
    ("form", "way"),
    [(recurrence.by_chunks, recurrence.sum_states), pytest.param(by_kernel, replayed, marks=there)],
)
@pytest.mark.parametrize("count", [pytest.param(CHUNK, marks=pytest.mark.slow), 2 * CHUNK + 7])
def test_a_long_text_is_read_as_token_by_token(form, way, delta, count):
    nodes, states = given(count, delta)
    found, values = run(form, nodes, states, np.tri(count, dtype=bool))
    for node in (0, CHUNK - 1, count // 2, count - 1):
        wanted, state = walked(nodes, states, 1, range(node + 1))
        np.testing.assert_allclose(found[1, :, node], wanted, atol=2e-5)
    live = np.ones((2, count), bool)
    start, k, decays = (jnp.asarray(x, jnp.float32) for x in (states, nodes[1], nodes[3]))
    after = jax.jit(way)(start, k, values, decays, live)
    np.testing.assert_allclose(after[1], state, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_tree_of_many_nodes_is_not_read_as_text(form):
    count = CHUNK + 6
    parents = np.array([-1, *(node // 2 for node in range(count - 1))])
    nodes, states = given(count, True)
    seen = above(parents)
    found, _ = run(form, nodes, states, seen)
    for node in (0, 5, CHUNK, count - 1):
        wanted, _ = walked(nodes, states, 0, np.flatnonzero(seen[node]))
        np.testing.assert_allclose(found[0, :, node], wanted, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_values_of_strong_decays_stay_numbers(form):
    """exp of what decays may be 0, and its inverse is never made."""
    nodes, states = given(CHUNK, True)
    strong = (*nodes[:3], np.full_like(nodes[3], -300.0), nodes[4])
    found, _ = run(form, strong, states, np.tri(CHUNK, dtype=bool))
    wanted, _ = walked(strong, states, 0, range(CHUNK))
    np.testing.assert_allclose(found[0, :, -1], wanted, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_the_accepted_path_is_committed(way):
    """Each row its own path and length; what is behind it is not read."""
    nodes, states = given(10, True)
    seen = above(PARENTS)
    _, values = run(recurrence.by_chunks, nodes, states, seen)
    paths = np.array([[0, 1, 3, 7], [0, 2, 5, 8]])
    counts = np.array([3, 0])
    picked = [
        np.take_along_axis(np.asarray(x, np.float32), paths[:, None, :, None], 2)
        for x in (nodes[1], values, nodes[3][..., None])
    ]
    for part in picked[:2]:
        part[1] = np.nan  # of a row that keeps nothing
    live = np.arange(4) < counts[:, None]
    start = jnp.asarray(states, jnp.float32)
    after = jax.jit(way)(start, *picked[:2], picked[2][..., 0], jnp.asarray(live))
    np.testing.assert_allclose(after[0], walked(nodes, states, 0, paths[0, :3])[1], atol=1e-5)
    np.testing.assert_array_equal(after[1], np.asarray(states[1], np.float32))
