"""Unrolled heads whose tokens are scored at some places alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jspec.training.distributions import observe
from jspec.training.unroll import Batch, Unrolled, draw_anchors

HEAD = tiny.lyanna()
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9))
LIVE = np.arange(9) < np.array([[9], [6]])
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))


def test_anchors_are_text_that_text_follows_each_once_and_drawn_anew():
    for count in (3, 8):
        at, there = draw_anchors(BATCH, count)
        assert there.sum(1).tolist() == [min(count, 8), min(count, 5)]
        for row in range(2):
            found = np.asarray(at[row])[np.asarray(there[row])].tolist()
            assert found == sorted(set(found)) and max(found) + 1 < LIVE[row].sum()
    draws = [draw_anchors(BATCH.replace(draws=jnp.array([i, i])), 3)[0] for i in range(6)]
    assert len({np.asarray(at).tobytes() for at in draws}) > 3


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
    # The first step's states are compared at all places, further steps' where drawn.
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


def with_ids(head, ids):
    """The head's variables with other hot tokens."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: ids if path[-1].key == "ids" else leaf, tiny.variables(head)
    )


def told(head, held):
    """The objective of a head's first step, its loss and what it tells."""
    borrowed = {name: part for name, part in held.items() if name != "params"}
    frozen = {"target": tiny.params(tiny.model()), "borrowed": borrowed}
    objective = Unrolled(tiny.model(), head, steps=1, state_weight=0.0, token_weight=1.0)
    return objective, *jax.jit(objective.loss)(held["params"], frozen, BATCH)


def scores(objective, held):
    """The target's scores at each pair and the head's, of all tokens, as float64."""
    head, target = objective.head, objective.target

    @jax.jit
    def run():
        true = observe(target, tiny.params(target), BATCH.tokens, 0).hidden
        every = jnp.broadcast_to(jnp.arange(8), (2, 8))
        (first,) = objective.predictions(held, true, BATCH.tokens, every)
        informed = head.inform(held, head.score(held, first.hidden), BATCH.tokens[:, 1:])
        return head.score(held, true[:, 1:]), informed

    return [np.float64(part) for part in run()]


@pytest.mark.parametrize("kind", [tiny.eagle, tiny.lyanna])
def test_a_head_of_hot_tokens_is_compared_with_the_target(kind):
    """EAGLE's drafts hot tokens: against the scores of all, cut to the hot ones, where the text
    goes on with one. Lyanna section 6.1 cuts token info alone: cold tokens have their place in
    both distributions everywhere, and count as right where the head drafts them.
    """
    chosen, head = np.random.default_rng(1).permutation(tiny.VOCAB)[:9], kind(hot_tokens=9)
    held = with_ids(head, jnp.asarray(chosen))
    objective, loss, found = told(head, held)
    losses, right, cold = [], [], 0
    drafts_hot = kind is tiny.eagle
    scored = chosen if drafts_hot else np.arange(tiny.VOCAB)
    distributions, drafted = (part[..., scored] for part in scores(objective, held))
    for row, pair in np.ndindex(2, 8):
        if not LIVE[row, pair + 1]:
            continue
        p, q = (
            np.exp(one[row, pair]) / np.exp(one[row, pair]).sum()
            for one in (distributions, drafted)
        )
        counts = not drafts_hot or np.isin(TOKENS[row, (pair + 2) % 9], chosen)
        right.append(counts and p.argmax() == q.argmax())
        cold += not counts if drafts_hot else p.argmax() not in chosen
        if counts:
            losses.append(-(p * np.log(q)).sum())
    assert 0 < cold < len(right)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(found["acceptance"], [np.mean(right)], rtol=1e-6)
