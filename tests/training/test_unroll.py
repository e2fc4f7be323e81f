"""Unrolled heads whose tokens are scored at some places alone."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from jspec.training.unroll import Batch, Unrolled

HEAD = tiny.lyanna()
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9))
LIVE = np.arange(9) < np.array([[9], [6]])
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))


def test_all_places_drawn_are_all_and_some_are_some():
    held = tiny.variables(HEAD)
    frozen = {"target": tiny.params(tiny.model()), "borrowed": {"target": held["target"]}}

    def told(places):
        objective = Unrolled(tiny.model(), HEAD, steps=2, places=places)
        return jax.jit(objective.loss)(held["params"], frozen, BATCH)

    (loss, whole), (drawn, same), (_, some) = told(0), told(8), told(2)
    np.testing.assert_allclose(drawn, loss, rtol=1e-5)
    for name in whole:
        np.testing.assert_allclose(same[name], whole[name], rtol=1e-5)
    np.testing.assert_allclose(some["state_loss"], whole["state_loss"], rtol=1e-5)
    assert not np.allclose(some["token_loss"], whole["token_loss"])
