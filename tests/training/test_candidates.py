"""The objective of low-rank candidates, beside numpy in 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jspec.models import heads
from jspec.models.heads import candidates
from jspec.training.candidates import CandidateDistillation
from jspec.training.lm import sequence
from jspec.training.unroll import Batch, Unrolled

TARGET = tiny.model()
RNG = np.random.default_rng(0)
TOKENS, LIVE = RNG.integers(0, tiny.VOCAB, (2, 9)), np.arange(9) < np.array([[9], [6]])
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))
COUNT = 4


def log_softmax(scores):
    scores = scores - scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def parts(rank, steps):
    """A head's variables with candidates, and their objective with what it does not train."""
    head = tiny.eagle()
    _, held = heads.with_candidates(head, tiny.variables(head), rank, COUNT)
    frozen = {"target": tiny.params(TARGET), "borrowed": held}
    drafting = Unrolled(TARGET, head, steps=steps)
    return held, CandidateDistillation(head, candidates.retrieve, COUNT, drafting), frozen


@pytest.fixture(scope="module")
def told():
    """The variables, and what the objective says of two draft steps at all places."""
    held, objective, frozen = parts(3, 2)
    run = jax.jit(jax.value_and_grad(objective.loss, has_aux=True))
    return held, run(held["candidates"], frozen, BATCH)


def test_it_is_the_divergence_from_the_heads_own_scores(told):
    held, ((loss, metrics), _) = told
    whole = tiny.eagle()
    places, mask = sequence(2, 9)
    states = TARGET.apply(tiny.params(TARGET), BATCH.tokens, places, mask, None).hidden
    first = whole.apply(
        held, states[:, :-1], BATCH.tokens[:, 1:], places[:, :-1], mask[:, :-1, :-1]
    ).hidden
    hidden = np.asarray(first, np.float64)
    table = np.asarray(held["target"]["head"], np.float64)
    down, up = (np.asarray(held["candidates"][name], np.float64) for name in ("down", "up"))
    exact, scores = hidden @ table.T, hidden @ down.T @ up.T
    p, q = log_softmax(exact), log_softmax(scores)
    divergence = (np.exp(p) * (p - q)).sum(-1)
    best = np.argsort(-scores, axis=-1)[..., :COUNT]
    has = (best == exact.argmax(-1)[..., None]).any(-1)
    live = LIVE[:, 1:]
    np.testing.assert_allclose(metrics["divergence"][0], divergence[live].mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["recall"][0], has[live].mean(), rtol=1e-6)
    np.testing.assert_allclose(loss, metrics["divergence"].mean(), rtol=1e-6)
    assert 0 < has[live].mean() < 1, "some are found and some are not"


def test_the_factors_alone_learn(told):
    held, ((before, _), gradients) = told
    _, objective, frozen = parts(3, 2)
    assert gradients.keys() == held["candidates"].keys()
    lower = jax.tree.map(lambda part, slope: part - slope, held["candidates"], gradients)
    assert float(jax.jit(objective.loss)(lower, frozen, BATCH)[0]) < float(before)


def test_factors_of_full_rank_have_nothing_to_learn():
    """The truncated SVD of as many directions as there are is the head itself."""
    held, objective, frozen = parts(tiny.eagle().hidden_size, 1)
    loss, metrics = jax.jit(objective.loss)(held["candidates"], frozen, BATCH)
    assert abs(float(loss)) < 1e-5
    np.testing.assert_array_equal(metrics["recall"], 1)
