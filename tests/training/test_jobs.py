"""Recipes: the bundled one is whole, and a wrong one says what is wrong."""

from pathlib import Path

import pytest

from jspec.cli import head_recipes, train_heads, train_lm, train_settings
from jspec.training import jobs
from jspec.training.loop import Recipe

ZOO = Path(__file__).parents[2] / "models" / "zoo" / "recipe.toml"


def test_the_bundled_recipe_names_two_models_that_share_their_text(tmp_path):
    texts = jobs.read_texts(ZOO, tmp_path)
    assert {source.label for source in texts.sources} == set(texts.weights)
    default = head_recipes.default(train_settings.LM)
    for model in ("jspec-7m", "jspec-800k"):
        job = jobs.override(default, jobs.read_model(ZOO, model))
        train_lm.check(job)
        assert job.shape["vocab_size"] == 4096
    for kind in ("eagle", "lyanna", "medusa"):
        assert train_heads.job(kind, ZOO, {}).recipe.steps in (300, 500)


def test_unknown_model_and_setting():
    with pytest.raises(ValueError, match="no model 'jspec-9m'; use one of jspec-7m, jspec-800k"):
        jobs.read_model(ZOO, "jspec-9m")
    with pytest.raises(ValueError, match="no setting 'speed'"):
        jobs.override(head_recipes.default(train_settings.LM), {"speed": 9})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[models", "is not TOML"),
        (b"[models.a]", "has no 'text'"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"text = 3\n[models.a]", "as its texts; write .*text"),
        (b"[models.a]\n[text]\npath = 'x'", "as its texts; write .*text"),
        (b"models = 3\n[[text]]", "models = 3, which is not a table; write .models"),
        (b"[models]\na = 3\n[[text]]\nclass = 'c'\npath = 'x'", "a = 3, which is not a table"),
        (b"[models.a]\n[[text]]\nclass = 'c'\npath = 3", "path is 3; use a text"),
        (
            b"[models.a]\n[weights]\nc = 'much'\n[[text]]\nclass = 'c'\npath = 'x'",
            "c is 'much'; use a number",
        ),
        (
            b"[models.a]\nlearning_rate = true\n[[text]]\nclass = 'c'\npath = 'x'",
            "learning_rate is True; use a number",
        ),
    ],
)
def test_a_file_that_is_not_a_recipe(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)

    def read():
        jobs.override(head_recipes.default(train_settings.LM), jobs.read_model(path, "a"))
        jobs.read_texts(path, tmp_path)

    with pytest.raises(ValueError, match=message):
        read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"heads = 3", "heads = 3, which is not a table"),
        (b"[heads]\neagle = 3", "eagle = 3, which is not a table"),
    ],
)
def test_a_file_that_is_not_a_recipe_of_heads(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        jobs.read_head(path, "eagle")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": "ten"}, "steps is 'ten'; use an integer"),
        ({"learning_rate": True}, "learning_rate is True; use a number"),
        ({"scores": 1.5}, "scores is 1.5; use an integer"),
        ({"window": "wide"}, "window is 'wide'; use an integer"),
    ],
)
def test_settings_are_of_their_kind(changes, message):
    job = jobs.TrainingJob(Recipe(steps=3), shape={"window": 4})
    with pytest.raises(ValueError, match=message):
        jobs.override(job, changes)
    assert jobs.override(job, {"learning_rate": 1, "window": 5}).shape == {"window": 5}
