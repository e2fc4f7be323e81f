"""Rules by enumeration: no draws, no luck."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jspec import rules


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def laws(seed, size):
    rng = np.random.default_rng(seed)
    for zeros in range(size):
        p = rng.dirichlet(np.ones(size))
        p[rng.permutation(size)[:zeros]] = 0
        yield p / p.sum()


# One compiled program per rule: enumeration calls it a thousand times.
POINT_MASS, COUPLED = jax.jit(rules.point_mass), jax.jit(rules.coupled)


def emitted(rule, p, children, valid, noise):
    """The law of the emitted token, from the rule's probabilities alone."""
    accept, residual = rule(jnp.asarray(p), None, jnp.asarray(children), jnp.asarray(valid), noise)
    accept, residual = np.asarray(accept), np.asarray(residual)
    law, left = np.zeros_like(p), 1.0
    for child, chance, there in zip(children, accept, valid, strict=True):
        if there:
            law[child] += left * chance
            left *= 1 - chance
    return law + left * residual


@pytest.mark.parametrize("num", [1, 2, 3])
def test_point_mass_emits_the_target_law_for_any_children(num):
    worst = 0.0
    for p in laws(0, 4):
        for children in itertools.product(range(4), repeat=num):
            for valid in itertools.product([True, False], repeat=num):
                law = emitted(POINT_MASS, p, np.array(children), np.array(valid), None)
                worst = max(worst, np.abs(law - p).max())
    assert worst < 1e-12


def test_point_mass_is_the_oracles():
    for p in laws(1, 5):
        for children in itertools.product(range(5), repeat=3):
            accept, residual = POINT_MASS(
                jnp.asarray(p), None, jnp.asarray(children), jnp.ones(3, bool), None
            )
            want_accept, want_residual = oracle.point_mass(p, list(children))
            np.testing.assert_allclose(accept, want_accept, atol=1e-12)
            if np.prod(1 - np.asarray(want_accept)) > 0:
                np.testing.assert_allclose(residual, want_residual, atol=1e-12)


def test_coupled_emits_the_token_that_the_noise_chose_whatever_is_drafted():
    rng = np.random.default_rng(2)
    for p in laws(2, 4):
        noise = rng.gumbel(size=4)
        with np.errstate(divide="ignore"):
            token = int(np.argmax(np.log(p) + noise))
        for children in itertools.product(range(4), repeat=2):
            law = emitted(COUPLED, p, np.array(children), np.ones(2, bool), noise)
            np.testing.assert_array_equal(law, np.eye(4)[token])


def test_the_test_can_fail():
    """Negative control: a rule that forgets to renormalise what is left after a rejection."""

    def greedy_ratio(p, q, children, valid, noise):
        return p[children], POINT_MASS(p, q, children, valid, noise)[1]

    p = np.array([0.5, 0.3, 0.2])
    law = emitted(greedy_ratio, p, np.array([0, 1]), np.ones(2, bool), None)
    assert np.abs(law - p).max() > 0.05
