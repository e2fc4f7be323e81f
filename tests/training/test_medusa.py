"""The objective of Medusa's heads, against loops over heads and positions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jspec.models.heads import borrow
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads, fresh
from jspec.training.distributions import Observed, observe
from jspec.training.medusa import Ahead, accuracies
from jspec.training.unroll import Batch

HEADS = MedusaHeads(MedusaConfig(tiny.VOCAB, 16, num_heads=3))
HOT = MedusaHeads(MedusaConfig(tiny.VOCAB, 16, num_heads=3, hot_tokens=17))
TARGET = tiny.model()
FROZEN = {"target": tiny.params(TARGET)}
IDS = np.random.default_rng(2).permutation(tiny.VOCAB)[:17]
BORROWED = {"target": borrow(HOT, FROZEN["target"]), "scored": {"ids": jnp.asarray(IDS)}}
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9))
LIVE = np.arange(9) < np.array([[9], [6]])


def moved(heads):
    """Params off their start, where all heads are alike."""
    draw = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.3 * draw.normal(size=leaf.shape), leaf.dtype),
        fresh(heads, FROZEN["target"]),
    )


@pytest.fixture(scope="module")
def params():
    return moved(HEADS)


def test_loss_and_metrics_are_those_of_the_paper(params):
    batch = Batch(tokens=jnp.asarray(TOKENS), live=jnp.asarray(LIVE))
    states = observe(TARGET, FROZEN["target"], batch.tokens, 0).hidden
    scores = np.asarray(jax.jit(HEADS.apply)({"params": params}, states), np.float64)
    distributions = np.exp(scores - scores.max(-1, keepdims=True))
    distributions /= distributions.sum(-1, keepdims=True)
    losses, right, together, ranks = ([[] for _ in range(3)] for _ in range(4))
    for row in range(2):
        for place in range(9):
            held = True
            for head in range(3):
                ahead = place + 2 + head
                if ahead >= LIVE[row].sum():
                    continue
                token, probs = TOKENS[row, ahead], distributions[row, place, head]
                losses[head].append(-np.log(probs[token]))
                right[head].append(probs.argmax() == token)
                if held:
                    together[head].append(probs.argmax() == token)
                held = held and probs.argmax() == token
                order = np.argsort(-probs, kind="stable").tolist()
                ranks[head].append(np.eye(4)[order.index(token)] if token in order[:4] else [0] * 4)
    loss, metrics = jax.jit(Ahead(TARGET, HEADS).loss)(params, FROZEN, batch)
    mean = [np.mean(values) if values else 0.0 for values in losses]
    np.testing.assert_allclose(loss, mean[0] + 0.8 * mean[1] + 0.64 * mean[2], rtol=1e-5)
    np.testing.assert_allclose(metrics["token_loss"], mean, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], [np.mean(r) for r in right], atol=1e-6)
    want = [np.mean(r) if r else 0.0 for r in together]
    np.testing.assert_allclose(metrics["acceptance"], want, atol=1e-6)
    found = jax.jit(partial(accuracies, TARGET, HEADS, ranks=4))(params, FROZEN, batch)
    np.testing.assert_allclose(found, [np.mean(r, axis=0) for r in ranks], atol=1e-6)

    # Stored states give the same, and the target's weights are then not read.
    stored = batch.replace(observed=Observed(states))
    again, _ = jax.jit(Ahead(TARGET, HEADS).loss)(params, {}, stored)
    np.testing.assert_allclose(again, loss, rtol=1e-6)


def test_heads_of_some_tokens_learn_from_these_and_are_wrong_of_others():
    batch = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))
    frozen, params = FROZEN | {"borrowed": BORROWED}, moved(HOT)
    assert params.keys() == {f"block_{head}_0" for head in range(3)}
    held = FROZEN["target"]["params"]
    table = np.float64(held.get("head", held["embed"]))[IDS]
    states = np.float64(observe(TARGET, FROZEN["target"], batch.tokens, 0).hidden)
    losses, right = ([[] for _ in range(3)] for _ in range(2))
    for row, place, head in np.ndindex(2, 9, 3):
        if (ahead := place + 2 + head) >= LIVE[row].sum():
            continue
        block = jax.tree.map(np.float64, params[f"block_{head}_0"])
        inner = block["weight"] @ states[row, place] + block["bias"]
        scores = table @ (states[row, place] + inner / (1 + np.exp(-inner)))
        at = np.flatnonzero(IDS == TOKENS[row, ahead])
        right[head].append(len(at) and scores.argmax() == at[0])
        if len(at):
            losses[head].append(np.log(np.exp(scores).sum()) - scores[at[0]])
    assert 0 < sum(map(len, losses)) < sum(map(len, right)), "some tokens are scored, some not"

    def told(places):
        return jax.jit(Ahead(TARGET, HOT, places=places).loss)(params, frozen, batch)

    (loss, whole), (_, some) = told(0), told(2)
    mean = [np.mean(values) for values in losses]
    np.testing.assert_allclose(loss, mean[0] + 0.8 * mean[1] + 0.64 * mean[2], rtol=1e-5)
    np.testing.assert_allclose(whole["accuracy"], [np.mean(r) for r in right], atol=1e-6)
    assert not np.allclose(some["token_loss"], whole["token_loss"])


def test_the_target_learns_nothing(params):
    batch = Batch(tokens=jnp.asarray(TOKENS), live=jnp.asarray(LIVE))

    def loss(frozen, params):
        return Ahead(TARGET, HEADS).loss(params, frozen, batch)[0]

    pull, push = jax.jit(jax.grad(loss, argnums=(0, 1)))(FROZEN, params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(pull))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(push))
