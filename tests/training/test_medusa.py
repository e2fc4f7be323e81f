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


@pytest.mark.parametrize("heads", [HEADS, HOT], ids=["all tokens", "hot tokens"])
def test_loss_and_metrics_are_those_of_the_paper(heads):
    """Heads of some tokens learn from these and are wrong of others."""
    batch = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))
    params, frozen = moved(heads), FROZEN | ({"borrowed": BORROWED} if heads is HOT else {})
    scored = IDS if heads is HOT else np.arange(tiny.VOCAB)
    held = FROZEN["target"]["params"]
    table = np.float64(held.get("head", held["embed"]))[scored]
    states = observe(TARGET, FROZEN["target"], batch.tokens, 0).hidden
    losses, right, together, ranks = ([[] for _ in range(3)] for _ in range(4))
    for row, place in np.ndindex(2, 9):
        kept = True
        for head in range(3):
            if (ahead := place + 2 + head) >= LIVE[row].sum():
                continue
            state = np.float64(states[row, place])
            block = jax.tree.map(np.float64, params[f"block_{head}_0"])
            inner = block["weight"] @ state + block["bias"]
            own = table if heads is HOT else np.float64(params[f"head_{head}"]["weight"])
            scores = own @ (state + inner / (1 + np.exp(-inner)))
            at = np.flatnonzero(scored == TOKENS[row, ahead])
            order = np.argsort(-scores, kind="stable").tolist()
            rank = order.index(at[0]) if len(at) else len(order)
            right[head].append(rank == 0)
            together[head] += [rank == 0] * kept
            kept = kept and rank == 0
            ranks[head].append(np.eye(4)[rank] if rank < 4 else [0] * 4)
            if len(at):
                losses[head].append(np.log(np.exp(scores).sum()) - scores[at[0]])
    assert (sum(map(len, losses)) < sum(map(len, right))) == (heads is HOT)
    loss, metrics = jax.jit(Ahead(TARGET, heads).loss)(params, frozen, batch)
    mean = [np.mean(values) for values in losses]
    np.testing.assert_allclose(loss, mean[0] + 0.8 * mean[1] + 0.64 * mean[2], rtol=1e-5)
    np.testing.assert_allclose(metrics["token_loss"], mean, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], [np.mean(r) for r in right], atol=1e-6)
    want = [np.mean(r) if r else 0.0 for r in together]
    np.testing.assert_allclose(metrics["acceptance"], want, atol=1e-6)
    if heads is HOT:
        some = jax.jit(Ahead(TARGET, heads, places=2).loss)(params, frozen, batch)[1]
        assert not np.allclose(some["token_loss"], metrics["token_loss"])
        return
    found = jax.jit(partial(accuracies, TARGET, heads, ranks=4))(params, frozen, batch)
    np.testing.assert_allclose(found, [np.mean(r, axis=0) for r in ranks], atol=1e-6)
    # Stored states give the same, and the target's weights are then not read.
    stored = batch.replace(observed=Observed(states))
    again, _ = jax.jit(Ahead(TARGET, heads).loss)(params, {}, stored)
    np.testing.assert_allclose(again, loss, rtol=1e-6)


def test_the_target_learns_nothing():
    params = moved(HEADS)
    batch = Batch(tokens=jnp.asarray(TOKENS), live=jnp.asarray(LIVE))

    def loss(frozen, params):
        return Ahead(TARGET, HEADS).loss(params, frozen, batch)[0]

    pull, push = jax.jit(jax.grad(loss, argnums=(0, 1)))(FROZEN, params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(pull))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(push))
