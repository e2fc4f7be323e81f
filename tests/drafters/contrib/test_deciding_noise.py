import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec import sampling as samplings
from jspec.drafters.contrib import candidates, deciding_noise
from jspec.drafters.contrib.dynamic_token_recycling import DynamicTokenRecycling
from jspec.types import Frame

SIZE, PLACES = 40, 4000


def rows(count, seed=0):
    return samplings.row_keys(jax.random.key(seed), jnp.arange(count))


def offered(distribution, kept):
    """The likeliest tokens of a distribution as candidates at many places."""
    tokens = np.argsort(-distribution)[:kept]
    shape = PLACES, kept
    return candidates.Candidates(
        tokens=jnp.broadcast_to(jnp.array(tokens, jnp.int32), shape),
        buckets=jnp.zeros((*shape, 1), jnp.int32),
        probs=jnp.broadcast_to(jnp.array(distribution[tokens], jnp.float32), shape),
    )


def log_likelihood(found, drawn):
    """The mean log probability of what was drawn: of the candidate, or of none of them."""
    hit = found.tokens == drawn[:, None]
    none = 1 - found.probs.sum(-1)
    probs = jnp.where(hit.any(-1), jnp.where(hit, found.probs, 0).sum(-1), none)
    return float(jnp.log(jnp.maximum(probs, 1e-9)).mean())


def test_log_odds_are_raised_by_the_temperature_times_the_noise_less_its_mean():
    """Returns the odds of a candidate against no candidate, by row and node."""
    keys, positions = rows(3), jnp.array([4, 9, 9])
    tokens = jnp.array([[[1, 5], [0, 39]]] * 3)
    probs = jnp.broadcast_to(jnp.array([0.5, 0.2]), tokens.shape)
    known = candidates.Candidates(tokens, jnp.zeros((*tokens.shape, 1), int), probs)
    warm = jspec.Sampling(jnp.array([0.0, 0.5, 2.0]))
    found = deciding_noise.given(known, keys, warm, positions, SIZE).probs
    odds = jnp.log(found / (1 - found.sum(-1, keepdims=True)))
    noise = samplings.gumbel(keys, positions, SIZE)[jnp.arange(3)[:, None, None], tokens]
    more = warm.temperature[:, None, None] * (noise - 0.57721566)
    np.testing.assert_allclose(odds, jnp.log(probs / 0.3) + more, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "sampling"),
    [(rows(PLACES), None), (rows(PLACES), jspec.Sampling(0.0)), (None, jspec.Sampling())],
)
def test_it_says_nothing_of_greedy_decoding(keys, sampling):
    """To the last bit."""
    known = offered(np.random.default_rng(0).dirichlet(np.full(SIZE, 0.3)), 6)
    found = deciding_noise.given(known, keys, sampling, jnp.zeros(PLACES, int), SIZE)
    np.testing.assert_array_equal(found.probs, known.probs)


def test_it_tells_which_candidate_is_drawn():
    """And noise that decides nothing, as that of another key, misleads."""
    distribution = np.random.default_rng(0).dirichlet(np.full(SIZE, 0.3))
    keys, positions = rows(PLACES), jnp.full(PLACES, 7, jnp.int32)
    noise = samplings.gumbel(keys, positions, SIZE)
    drawn = (jnp.log(distribution) + noise).argmax(-1)
    known = offered(distribution, 6)

    def given(keys):
        warm = jspec.Sampling(jnp.ones(PLACES))
        return deciding_noise.given(known, keys, warm, positions, SIZE)

    told, without = given(keys), log_likelihood(known, drawn)
    assert log_likelihood(told, drawn) > without + 0.5
    assert log_likelihood(given(rows(PLACES, seed=1)), drawn) < without - 0.5
    # What is likely in the mean is as likely as it was.
    np.testing.assert_allclose(told.probs.mean(0), known.probs[0], atol=0.03)


@pytest.mark.parametrize("temperature", [1.0, 30.0, 1e6])
def test_probabilities_stay_probabilities(temperature):
    distribution = np.array([1.0] + [0.0] * (SIZE - 1))
    keys, positions = rows(PLACES), jnp.arange(PLACES, dtype=jnp.int32)
    known = offered(distribution, 3)
    warm = jspec.Sampling(jnp.full(PLACES, temperature))
    probs = deciding_noise.given(known, keys, warm, positions, SIZE).probs
    assert jnp.isfinite(probs).all()
    assert (probs >= 0).all() and (probs.sum(-1) <= 1 + 1e-6).all()


def test_the_drafted_token_is_the_one_that_will_be_drawn():
    """With a matrix that holds the target's distribution, row by row."""
    drafter = DynamicTokenRecycling(SIZE, num_speculative_tokens=1, max_depth=1, k=SIZE)
    distribution = np.random.default_rng(1).dirichlet(np.full(SIZE, 5.0))
    order = np.argsort(-distribution)
    state = drafter.init(PLACES, 8, None)
    state = state.replace(
        tokens=state.tokens.at[0, 3].set(jnp.array(order, jnp.int32)),
        probs=state.probs.at[0, 3].set(jnp.array(distribution[order], jnp.float32)),
    )
    keys, positions = rows(PLACES), jnp.full(PLACES, 7, jnp.int32)
    drawn = (jnp.log(distribution) + samplings.gumbel(keys, positions, SIZE)).argmax(-1)

    def right(sampling):
        frame = Frame(
            jnp.full(PLACES, 3, jnp.int32), positions, keys, sampling, jnp.zeros(PLACES, bool)
        )
        tree, _ = jax.jit(lambda: drafter.draft(None, state, frame))()
        return float((tree.tokens[:, 1] == drawn).mean())

    # Not all: how far estimates can be trusted is yet to be learnt.
    assert right(jspec.Sampling(jnp.ones(PLACES))) > 0.9
    assert right(None) < 0.2
