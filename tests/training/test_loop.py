"""The training loop: it learns, survives a kill, and stops where it cannot go on; its scores."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from jspec.training import checkpoints, heldout, loop, sequences
from jspec.training.distributions import forward
from jspec.training.unroll import Batch

RECIPE = loop.Recipe(steps=12, learning_rate=1e-2, warmup=2, checkpoint_every=5)
MODEL = tiny.model(vocab_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, tied=True)


@dataclass(frozen=True)
class NextToken:
    """Mean nats of each token after the first."""

    model: Any

    def loss(self, params, frozen, batch):
        scores = forward(self.model, params, batch.tokens[:, :-1]).logits
        nats = optax.softmax_cross_entropy_with_integer_labels(scores, batch.tokens[:, 1:])
        return nats.mean(), {}


TASK = NextToken(MODEL)


@pytest.fixture(scope="module")
def batch():
    # Counting modulo 20: easily learnt, and no two batches are the same.
    tokens = ((np.arange(30)[:, None] * 7 + np.arange(9)) % 20).astype(np.int32)
    order = sequences.order({"count": 30}, {"count": 1.0}, 48, seed=0).reshape(12, 4)
    live = jnp.ones((4, 9), bool)
    return lambda step: Batch(jnp.asarray(tokens[order[step]]), live)


def weights():
    token = jnp.zeros((1, 1), jnp.int32)
    return jax.jit(MODEL.init)(jax.random.key(0), token, token, jnp.ones((1, 1, 1), bool))


def folder(path, **settings):
    return checkpoints.Checkpoints(path, {"seed": 0, **settings})


@pytest.fixture(scope="module")
def whole(batch, tmp_path_factory):
    """(weights, curve) of a run that nothing interrupted."""
    run = folder(tmp_path_factory.mktemp("whole"))
    params = loop.train(TASK, RECIPE, weights(), batch, run)
    return params, run.curve()


def test_loss_goes_down(whole):
    _, curve = whole
    assert [line["step"] for line in curve] == list(range(1, 13))
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.3


@pytest.mark.parametrize("killed_at", [3, 5, 9])
def test_a_killed_run_resumes_on_the_same_curve(batch, tmp_path, whole, killed_at):
    class Killed(BaseException):
        pass

    def kill(report):
        if report.step == killed_at:
            raise Killed

    with pytest.raises(Killed):
        loop.train(TASK, RECIPE, weights(), batch, folder(tmp_path), kill)
    with (tmp_path / checkpoints.CURVE).open("a") as file:
        file.write('{"step": 4')  # killed while it wrote

    run = folder(tmp_path)
    params = loop.train(TASK, RECIPE, weights(), batch, run)
    assert run.curve() == whole[1]
    jax.tree.map(np.testing.assert_array_equal, params, whole[0])


def test_a_finished_run_trains_no_further(batch, tmp_path, whole):
    for _ in range(2):
        params = loop.train(TASK, RECIPE, weights(), batch, folder(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, params, whole[0])
    fewer = loop.Recipe(steps=4)
    with pytest.raises(ValueError, match="is at step 12 and 4 steps are asked for; ask for at lea"):
        loop.train(TASK, fewer, weights(), batch, folder(tmp_path))


def test_nan_stops_and_keeps_the_last_checkpoint(batch, tmp_path, monkeypatch):
    true_update = loop.update

    def poisoned(*arguments):
        state, loss, *rest = true_update(*arguments)
        seen.append(loss)
        return state, loss * (jnp.nan if len(seen) == 7 else 1), *rest

    seen = []
    monkeypatch.setattr(loop, "update", poisoned)
    run = folder(tmp_path)
    with pytest.raises(loop.TrainingError, match=r"loss nan.* at step 7; .* is step 5"):
        loop.train(TASK, RECIPE, weights(), batch, run)
    assert run.latest() == 5
    assert len(run.curve()) == 6


def test_a_full_disk_leaves_the_checkpoint_before(batch, tmp_path, monkeypatch):
    run = folder(tmp_path)
    true_save = run.manager.save

    def save(step, **arguments):
        if step == 10:
            raise OSError(28, "No space left on device")
        return true_save(step, **arguments)

    monkeypatch.setattr(run.manager, "save", save)
    with pytest.raises(checkpoints.CheckpointError, match=r"No space left.*step 5 is whole"):
        loop.train(TASK, RECIPE, weights(), batch, run)
    assert folder(tmp_path).latest() == 5


def test_a_folder_of_another_run_is_refused(tmp_path):
    folder(tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(seed 0 -> 1\)"):
        folder(tmp_path, seed=1)
    with pytest.raises(ValueError, match="already holds a run"):
        checkpoints.Checkpoints(tmp_path, {"seed": 0}, resume=False)


@dataclass(frozen=True)
class Shares:
    """An objective whose batch holds, per token, how many draft steps are right."""

    def loss(self, params, frozen, batch):
        reached = batch[:, None] > jnp.arange(3)
        before = jnp.concatenate([jnp.ones_like(reached[:, :1]), reached[:, :-1]], axis=1)
        counts = jnp.maximum(before.sum(0), 1)
        return batch.mean(), {"acceptance": reached.sum(0) / counts, "right": reached.mean(0)}


def score(parts):
    return heldout.metrics(Shares(), None, None, [(jnp.asarray(part), len(part)) for part in parts])


def test_batches_count_by_their_tokens():
    parts = [np.array([0, 0, 0]), np.array([3, 1, 2, 0]), np.array([0])]
    found, whole = score(parts), score([np.concatenate(parts)])
    assert found["tokens"] == whole["tokens"] == 8
    for name in ("loss", "acceptance", "right"):
        assert found[name] == pytest.approx(whole[name], abs=2e-4)
    assert whole["acceptance"] == pytest.approx([3 / 8, 2 / 3, 1 / 2], abs=1e-4)
    assert score([np.array([0, 1, 0])])["acceptance"] == pytest.approx([0.3333, 0, 0])
