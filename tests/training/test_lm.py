"""The training loop: it learns, survives a kill, and stops where it cannot go on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.models.llama import Llama, LlamaConfig
from jspec.training import checkpoints, heldout, lm, loop, packing

RECIPE = loop.Recipe(steps=12, learning_rate=1e-2, warmup=2, checkpoint_every=5)
MODEL = Llama(
    LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        context=16,
        tied=True,
    )
)
TASK = lm.NextToken(MODEL)


@pytest.fixture(scope="module")
def plan():
    # Counting modulo 20: easily learnt, and no two batches are the same.
    sequences = (np.arange(30)[:, None] * 7 + np.arange(9)) % 20
    return packing.plan({"count": sequences.astype(np.int32)}, {"count": 1.0}, 12, 4, seed=0)


def weights():
    token = jnp.zeros((1, 1), jnp.int32)
    return jax.jit(MODEL.init)(jax.random.key(0), token, token, jnp.ones((1, 1, 1), bool))


def folder(path, **settings):
    return checkpoints.Checkpoints(path, {"seed": 0, **settings})


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory):
    """(weights, curve) of a run that nothing interrupted."""
    run = folder(tmp_path_factory.mktemp("whole"))
    params = loop.train(TASK, RECIPE, weights(), plan.batch, run)
    return params, run.curve()


def test_loss_goes_down(whole):
    _, curve = whole
    assert [line["step"] for line in curve] == list(range(1, 13))
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.3


@pytest.mark.parametrize("killed_at", [3, 5, 9])
def test_a_killed_run_resumes_on_the_same_curve(plan, tmp_path, whole, killed_at):
    class Killed(BaseException):
        pass

    def kill(report):
        if report.step == killed_at:
            raise Killed

    with pytest.raises(Killed):
        loop.train(TASK, RECIPE, weights(), plan.batch, folder(tmp_path), kill)
    with (tmp_path / checkpoints.CURVE).open("a") as file:
        file.write('{"step": 4')  # killed while it wrote

    run = folder(tmp_path)
    params = loop.train(TASK, RECIPE, weights(), plan.batch, run)
    assert run.curve() == whole[1]
    jax.tree.map(np.testing.assert_array_equal, params, whole[0])


def test_a_finished_run_trains_no_further(plan, tmp_path, whole):
    for _ in range(2):
        params = loop.train(TASK, RECIPE, weights(), plan.batch, folder(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, params, whole[0])


def test_nan_stops_and_keeps_the_last_checkpoint(plan, tmp_path, monkeypatch):
    true_update = loop.update

    def poisoned(*arguments):
        state, loss, *rest = true_update(*arguments)
        seen.append(loss)
        return state, loss * (jnp.nan if len(seen) == 7 else 1), *rest

    seen = []
    monkeypatch.setattr(loop, "update", poisoned)
    run = folder(tmp_path)
    with pytest.raises(loop.TrainingError, match=r"loss nan.* at step 7; .* is step 5"):
        loop.train(TASK, RECIPE, weights(), plan.batch, run)
    assert run.latest() == 5
    assert len(run.curve()) == 6


def test_a_full_disk_leaves_the_checkpoint_before(plan, tmp_path, monkeypatch):
    run = folder(tmp_path)
    true_save = run.manager.save

    def save(step, **arguments):
        if step == 10:
            raise OSError(28, "No space left on device")
        return true_save(step, **arguments)

    monkeypatch.setattr(run.manager, "save", save)
    with pytest.raises(checkpoints.CheckpointError, match=r"No space left.*step 5 is whole"):
        loop.train(TASK, RECIPE, weights(), plan.batch, run)
    assert folder(tmp_path).latest() == 5


def test_a_folder_of_another_run_is_refused(tmp_path):
    folder(tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(seed 0 -> 1\)"):
        folder(tmp_path, seed=1)
    with pytest.raises(ValueError, match="already holds a run"):
        checkpoints.Checkpoints(tmp_path, {"seed": 0}, resume=False)


def test_learning_rate_warms_up_stays_and_falls():
    recipe = loop.Recipe(steps=100, learning_rate=1.0, warmup=10, cooldown=0.5, floor=0.1)
    rates = np.array(jax.vmap(partial(loop.learning_rate, recipe))(jnp.arange(101)))
    assert 0 < rates[0] < rates[5] < 1
    np.testing.assert_array_equal(rates[10:56], 1.0)
    assert (np.diff(rates[56:]) < 0).all()
    assert rates[100] == pytest.approx(0.1)


def test_heldout_scores_each_token_once(whole):
    params, _ = whole

    def encode(text):
        return [int(number) for number in text.split()]

    texts = ["1 2 3 4 5 6 7", "8 9", "10 11 12 13"]
    score = heldout.evaluate(MODEL, params, texts, encode, 0, length=4, batch=2)
    stream = [0, *encode(texts[0]), 0, *encode(texts[1]), 0, *encode(texts[2]), 0]
    assert score.tokens == len(stream) - 1
    assert score.bytes == sum(map(len, texts))
    nats = 0.0
    for start in range(0, score.tokens, 4):
        piece = jnp.array([stream[start : start + 5]])
        nats += float(lm.losses(MODEL, params, piece).sum())
    assert score.nats == pytest.approx(nats, rel=1e-5)
