"""Unrolled heads whose tokens are scored at some places alone."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from jspec.training.laws import observe
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
    # The first step's states are compared at all places, those of further steps where drawn.
    np.testing.assert_allclose(some["state_loss"][0], whole["state_loss"][0], rtol=1e-5)
    assert not np.allclose(some["state_loss"][1], whole["state_loss"][1])
    assert not np.allclose(some["token_loss"], whole["token_loss"])


def test_further_steps_of_some_pairs_are_those_of_all():
    held, target = tiny.variables(HEAD), tiny.model()
    states = observe(target, tiny.params(target), BATCH.tokens, 0).hidden
    at = jnp.array([[1, 5, 7], [0, 2, 4]])

    @jax.jit
    def unrolled(at):
        steps = Unrolled(target, HEAD, steps=3).predictions(held, states, BATCH.tokens, at)
        return [step.hidden for step in steps]

    every = jnp.broadcast_to(jnp.arange(8), (2, 8))
    for some, whole in zip(unrolled(at)[1:], unrolled(every)[1:], strict=True):
        np.testing.assert_allclose(
            some, jnp.take_along_axis(whole, at[..., None], axis=1), rtol=1e-5, atol=1e-6
        )
