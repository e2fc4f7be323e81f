"""Recipes and tables: the bundled ones are whole, and a wrong recipe says what is wrong."""

import math
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import refusals

import jspec
from jspec.cli import head_recipes, train_heads, train_settings
from jspec.methods import ngram_tables
from jspec.models.load import load
from jspec.training import jobs
from jspec.training.loop import Recipe, learning_rate

ROOT = Path(__file__).parents[2]
ZOO, PAPER = ROOT / "models" / "zoo", ROOT / "benchmarks" / "lyanna" / "paper.toml"


def test_the_bundled_recipes_are_whole(tmp_path):
    for recipe in ("recipe.toml", "smollm2-135m/draft.toml"):
        texts = jobs.read_texts(ZOO / recipe, tmp_path)
        assert {source.label for source in texts.sources} == set(texts.weights)
    for kind in ("eagle", "lyanna", "medusa"):
        assert train_heads.job(kind, ZOO / "recipe.toml", {}).recipe.steps in (300, 500)
    recipe = train_heads.job("lyanna", PAPER, {}).recipe
    assert (recipe.schedule, recipe.floor, recipe.weight_decay) == ("linear", 0.0, 0.0)
    settings = jobs.read_draft(ZOO / "smollm2-135m" / "draft.toml")
    job = jobs.override(head_recipes.default(train_settings.DRAFT), settings)
    assert (job.recipe.steps, job.shape["keep_layers"]) == (800, "0,1,2,27,28,29")


def read_draft(text, path):
    path.write_bytes(text)
    jobs.override(head_recipes.default(train_settings.DRAFT), jobs.read_draft(path))
    jobs.read_texts(path, path.parent)


def read_head(text, path):
    path.write_bytes(text)
    jobs.read_head(path, "eagle")


def test_a_file_that_is_not_a_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    refusals.check([
        (b"[draft", "is not TOML"),
        (b"[draft]", "has no 'text'"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"text = 3\n[draft]", "as its texts; write .*text"),
        (b"[draft]\n[text]\npath = 'x'", "as its texts; write .*text"),
        (b"draft = 3\n[[text]]", "draft = 3, which is not a table; write .draft"),
        (b"[[text]]\nclass = 'c'\npath = 3", "path is 3; use a text"),
        (b"[weights]\nc = 'much'\n[[text]]\nclass = 'c'\npath = 'x'", "c is 'much'; use a num"),
        (b"[draft]\nlearning_rate = true\n[[text]]", "learning_rate is True; use a number"),
    ], lambda text: read_draft(text, path))  # fmt: skip
    refusals.check([
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"heads = 3", "heads = 3, which is not a table"),
        (b"[heads]\neagle = 3", "eagle = 3, which is not a table"),
    ], lambda text: read_head(text, path))  # fmt: skip


def test_settings_are_of_their_kind():
    job = jobs.TrainingJob(Recipe(steps=3), shape={"window": 4})
    refusals.check([
        ({"steps": "ten"}, "steps is 'ten'; use an integer"),
        ({"learning_rate": True}, "learning_rate is True; use a number"),
        ({"scores": 1.5}, "scores is 1.5; use an integer"),
        ({"window": "wide"}, "window is 'wide'; use an integer"),
        ({"speed": 9}, "no setting 'speed'"),
        ({"schedule": "sawtooth"}, "schedule is 'sawtooth'; use one of cosine, linear"),
        ({"epochs": -1.0}, "epochs is -1.0; use a finite epochs >= 0"),
        ({"scores": -1}, "scores is -1; use scores >= 0"),
    ], lambda changes: jobs.override(job, changes))  # fmt: skip
    assert jobs.override(job, {"learning_rate": 1, "window": 5}).shape == {"window": 5}


def test_learning_rates_warm_up_stay_and_fall():
    recipe = Recipe(steps=100, learning_rate=1.0, warmup=10, cooldown=0.5, floor=0.1)
    rates = np.array([learning_rate(recipe, step) for step in range(101)])
    assert 0 < rates[0] < rates[5] < 1 and math.isclose(rates[100], 0.1, rel_tol=1e-6)
    np.testing.assert_array_equal(rates[10:56], 1.0)
    assert (np.diff(rates[56:]) < 0).all()
    recipe = Recipe(steps=10, learning_rate=3e-5, warmup=0, floor=0.0, schedule="linear")
    rates = np.array([learning_rate(recipe, step) for step in range(11)])
    np.testing.assert_allclose(rates, 3e-5 * np.arange(10, -1, -1) / 10, rtol=1e-5, atol=1e-12)
    # The default bends.
    bent = Recipe(steps=10, learning_rate=3e-5, warmup=0, floor=0.0)
    assert not math.isclose(float(learning_rate(bent, 2)), 3e-5 * 0.8, rel_tol=0.05)


def test_epochs_take_the_place_of_steps():
    job = jobs.TrainingJob(Recipe(steps=7), batch_size=4)
    assert job.with_steps(10) == job
    epochs = jobs.override(job, {"epochs": 2.0})
    assert epochs.with_steps(10).recipe.steps == 5


def test_scores_are_spread_evenly_and_end_with_the_run():
    job = jobs.TrainingJob(Recipe(steps=100), scores=8)
    assert sorted(job.scored_steps)[:3] == [12, 25, 38]
    assert max(job.scored_steps) == 100
    assert jobs.TrainingJob(Recipe(steps=100)).scored_steps == frozenset()


def test_a_table_is_found_by_the_weights_it_was_made_of():
    """And draws nothing where there are shapes alone, or other weights."""
    target, other = (load(ZOO / name) for name in ("jspec-7m", "jspec-800k"))
    found = ngram_tables.find(target)
    assert found is not None and Path(found).parts[-2:] == ("jspec-7m", ngram_tables.FILE)
    table = ngram_tables.load("jspec-7m", target)
    assert table.line_of_token.shape == (target.model.vocab_size,)
    abstract = replace(target, params=jax.eval_shape(lambda: target.params))
    assert ngram_tables.find(other) is None is ngram_tables.find(abstract)
    with pytest.raises(jspec.InputError, match="is a table of another model's distributions"):
        ngram_tables.load("jspec-7m", other)
