"""`jspec train draft`: a draft model learns its target's next-token distributions."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jspec.models import load
from jspec.training import draft, unroll
from jspec.training.distributions import Distributions, Observed

MODEL = tiny.model(num_layers=1, tied=True)
PARAMS = tiny.params(MODEL)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, tiny.VOCAB, (2, 6))
LIVE = np.arange(6) < np.array([[6], [4]])
TOP = np.argsort(RNG.random((2, 6, tiny.VOCAB)))[..., :3].astype(np.int32)
PROBS = RNG.dirichlet(np.ones(3), (2, 6)).astype(np.float32)
HOT = jnp.array([17, 2, 9, 4, 11, 0])


def batch(draws=None):
    seen = Observed(jnp.zeros((2, 6, 0)), Distributions(jnp.asarray(TOP), jnp.asarray(PROBS)))
    return unroll.Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), seen, draws)


def scores():
    """The draft's scores of all tokens at each place but the last."""
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((5, 5), bool)), (2, 5, 5))
    return np.float64(MODEL.apply(PARAMS, jnp.asarray(TOKENS[:, :-1]), positions, mask).logits)


def test_the_loss_is_the_cross_entropy_of_the_two_distributions():
    objective = draft.NextDistribution(MODEL, MODEL, 3)
    loss, told = jax.jit(objective.loss)(PARAMS, {}, batch())
    nats, same, overlap = [], [], []
    for row, place in np.argwhere(LIVE[:, 1:]):
        drafted = np.exp(scores()[row, place])
        drafted /= drafted.sum()
        top, probs = TOP[row, place], PROBS[row, place]
        nats.append(-(probs * np.log(drafted[top])).sum())
        same.append(drafted.argmax() == top[0])
        overlap.append(np.minimum(drafted[top], probs).sum())
    assert len(nats) == 8
    np.testing.assert_allclose(loss, np.mean(nats), rtol=1e-5)
    np.testing.assert_allclose(told["agreement"], np.mean(same), rtol=1e-6)
    np.testing.assert_allclose(told["overlap"], np.mean(overlap), rtol=1e-5)


def test_the_drawn_tokens_stand_for_all_that_are_not_hot(monkeypatch):
    """Over all draws the estimated denominators average to the true one; without their weight,
    or with hot tokens drawn again, they do not.
    """
    objective = draft.NextDistribution(MODEL, MODEL, 3, drawn=1)
    hidden = jnp.asarray(RNG.normal(size=(1, 4, 16)), jnp.float32)
    rows = PARAMS["params"]["embed"]
    sums, seen = [], []
    for place in range(tiny.VOCAB - len(HOT)):
        monkeypatch.setattr(jax.random, "randint", lambda *_, place=place: jnp.array([place]))
        counted, found = objective._counted(hidden, rows, HOT, batch(jnp.array([3, 4])))
        np.testing.assert_array_equal(counted[: len(HOT)], HOT)
        seen.append(int(counted[-1]))
        sums.append(np.exp(np.float64(found)).sum(-1))
    assert sorted([*seen, *HOT.tolist()]) == list(range(tiny.VOCAB))
    whole = np.exp(np.float64(hidden @ rows.T)).sum(-1)
    np.testing.assert_allclose(np.mean(sums, axis=0), whole, rtol=1e-5)


SMALL = (
    "--keep-layers 0 --sequence 12 --batch-size 2 --warmup 1 --checkpoint-every 2 --heldout 0.3 "
    "--num-target-tokens 4 --sequences 6"
).split()


@pytest.mark.slow
def test_a_run_is_resumed_and_gives_a_draft_in_the_targets_tokens(folder, tmp_path, train):
    given = (folder / "rows.jsonl", folder / "text.txt", "--target", folder / "model", *SMALL)
    out, states = tmp_path / "run", tmp_path / "states"
    code, output = train(
        "draft", *given, "--out", out, "--states", states, "--steps", 2, "--cooldown", 0
    )
    assert code == 0, output
    assert "6 sequences of text" in output
    code, output = train("draft", "--out", out, "--steps", 3, "--cooldown", 0, "--resume")
    assert code == 0, output
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [1, 2, 3]
    assert {"rows", "text"} <= json.loads((out / "heldout.json").read_text()).keys()
    made, target = load(out / "model"), load(folder / "model")
    assert made.tokenizer.get_vocab() == target.tokenizer.get_vocab()
    assert made.model.config == replace(target.model.config, num_layers=1)
    for options, message in (([], "already holds a run"), (["--resume"], "seed 0 -> 1")):
        code, output = train("draft", *given, "--out", out, "--steps", 3, "--seed", 1, *options)
        assert code == 2 and message in output

    again = tmp_path / "again"  # without kept distributions
    code, output = train("draft", *given, "--out", again, "--steps", 3, "--cooldown", 0)
    assert code == 0, output
    losses = [json.loads(line)["loss"] for line in (again / "curve.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(losses, [line["loss"] for line in curve], rtol=1e-4)
