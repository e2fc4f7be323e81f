"""Lookahead without its window's nodes: the same tokens, and what the pool holds alone."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from benchmarks.recycling.pool_alone import PoolAlone
from jspec.testing import PrefixLM
from jspec.types import Frame

SIZES = dict(window=3, ngram=3, guesses=2)
PROMPT = [[3, 1, 4, 1, 5, 2, 6, 5, 3]]


def test_nodes_are_the_pools_where_an_n_gram_passes():
    drafter = PoolAlone(8, **SIZES)
    state = drafter.init(1, 32, None)
    grams = jnp.array([[6, 7], [2, 5]])
    state = replace(
        state,
        pool=state.pool.at[0, 1].set(grams),
        window=jnp.array([[[1, 2, 3], [5, 4, 4]]], jnp.int32),
    )
    frame = Frame(jnp.array([1]), jnp.array([9]), None, None, jnp.array([False]))
    tree, _ = drafter.draft(None, state, frame)
    paths = [()]
    for node in range(1, tree.tokens.shape[1]):
        paths.append((*paths[int(tree.parents[0, node])], int(tree.tokens[0, node])))
    held = {path for path, there in zip(paths, np.array(tree.valid[0]), strict=True) if there}
    pool = {path for path, value in zip(paths, np.array(tree.value[0]), strict=True) if value == 1}
    assert pool & held == {(), (6,), (6, 7), (2,), (2, 5)}
    assert held - pool, "the window has nodes of its own"


@pytest.mark.slow
def test_tokens_are_plain_decodings_and_rounds_are_more():
    model = PrefixLM(8)
    ask = dict(max_new_tokens=40)
    plain = jspec.decode(model, model.init(), PROMPT, **ask)
    ours = jspec.decode(model, model.init(), PROMPT, drafter=jspec.Lookahead(8, **SIZES), **ask)
    alone = jspec.decode(model, model.init(), PROMPT, drafter=PoolAlone(8, **SIZES), **ask)
    np.testing.assert_array_equal(alone.tokens, plain.tokens)
    assert ours.stats.num_rounds[0] <= alone.stats.num_rounds[0] <= 40
