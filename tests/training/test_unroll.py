"""Unrolled heads whose tokens are scored at some places alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jspec.training.distributions import observe
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


@pytest.mark.parametrize(
    ("head", "ids"),
    [
        (tiny.eagle(hot_tokens=9), lambda held: held["scored"]["ids"]),
        (tiny.lyanna(hot_tokens=9), lambda held: held["hot"]["info"]["ids"]),
    ],
    ids=["eagle", "lyanna"],
)
def test_distributions_of_hot_tokens_are_compared_where_the_text_goes_on_with_one(head, ids):
    """Against the scores of all tokens, cut to the hot ones."""
    chosen = jnp.asarray(np.random.default_rng(1).permutation(tiny.VOCAB)[:9])
    held, target = tiny.variables(head), tiny.model()
    held = jax.tree_util.tree_map_with_path(
        lambda path, leaf: chosen if path[-1].key == "ids" else leaf, held
    )
    np.testing.assert_array_equal(ids(held), chosen)
    borrowed = {name: part for name, part in held.items() if name != "params"}
    frozen = {"target": tiny.params(target), "borrowed": borrowed}
    objective = Unrolled(target, head, steps=1, state_weight=0.0, token_weight=1.0)
    loss, told = jax.jit(objective.loss)(held["params"], frozen, BATCH)

    @jax.jit
    def scores(true, tokens):
        every = jnp.broadcast_to(jnp.arange(8), (2, 8))
        (first,) = objective.predictions(held, true, tokens, every)
        informed = head.inform(held, head.score(held, first.hidden), tokens[:, 1:])
        return head.score(held, true[:, 1:]), informed

    true = observe(target, frozen["target"], BATCH.tokens, 0).hidden
    distributions, found = (
        np.float64(part)[..., np.asarray(chosen)] for part in scores(true, BATCH.tokens)
    )
    losses, right = [], []
    for row, pair in np.ndindex(2, 8):
        if not LIVE[row, pair + 1]:
            continue
        hot = np.isin(TOKENS[row, (pair + 2) % 9], chosen)
        p, q = (
            np.exp(one[row, pair]) / np.exp(one[row, pair]).sum() for one in (distributions, found)
        )
        right.append(hot and p.argmax() == q.argmax())
        if hot:
            losses.append(-(p * np.log(q)).sum())
    assert 0 < len(losses) < len(right)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(told["acceptance"], [np.mean(right)], rtol=1e-6)
