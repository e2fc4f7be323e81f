"""Metrics over batches are those of all text at once."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.training import heldout


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
