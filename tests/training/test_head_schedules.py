"""The schedule of Lyanna's paper, epochs, and scores on the way."""

import math
from pathlib import Path

import numpy as np
import pytest

from jspec._validate.errors import InputError
from jspec.cli import train_heads
from jspec.training.jobs import TrainingJob, override
from jspec.training.loop import Recipe, learning_rate

PAPER = Path(__file__).parents[2] / "benchmarks" / "lyanna" / "paper.toml"


def test_a_linear_schedule_falls_by_the_same_amount_in_each_step():
    recipe = Recipe(steps=10, learning_rate=3e-5, warmup=0, floor=0.0, schedule="linear")
    rates = np.array([learning_rate(recipe, step) for step in range(11)])
    np.testing.assert_allclose(rates, 3e-5 * np.arange(10, -1, -1) / 10, rtol=1e-5, atol=1e-12)
    # The default bends.
    bent = Recipe(steps=10, learning_rate=3e-5, warmup=0, floor=0.0)
    assert not math.isclose(float(learning_rate(bent, 2)), 3e-5 * 0.8, rel_tol=0.05)


def test_epochs_take_the_place_of_steps():
    job = TrainingJob(Recipe(steps=7), batch_size=4)
    assert job.stepped(10) == job
    epochs = override(job, {"epochs": 2.0})
    assert epochs.stepped(10).recipe.steps == 5


def test_scores_are_spread_evenly_and_end_with_the_run():
    job = TrainingJob(Recipe(steps=100), scores=8)
    assert sorted(job.scored_steps)[:3] == [12, 25, 38]
    assert max(job.scored_steps) == 100
    assert TrainingJob(Recipe(steps=100)).scored_steps == frozenset()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "sawtooth"}, "schedule is 'sawtooth'; use one of cosine, linear"),
        ({"epochs": -1.0}, "epochs is -1.0; use a finite epochs >= 0"),
        ({"scores": -1}, "scores is -1; use scores >= 0"),
    ],
)
def test_an_invalid_schedule_is_refused(change, message):
    with pytest.raises(InputError, match=f"^{message}"):
        override(TrainingJob(Recipe(steps=7)), change)


def test_the_papers_recipe_is_one():
    recipe = train_heads.job("lyanna", PAPER, {}).recipe
    assert (recipe.schedule, recipe.floor, recipe.weight_decay) == ("linear", 0.0, 0.0)
