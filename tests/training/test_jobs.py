"""Recipes: the bundled one is whole, and a wrong one says what is wrong."""

from pathlib import Path

import pytest

from jspec.cli import head_recipes, train_heads, train_settings
from jspec.training import jobs
from jspec.training.loop import Recipe

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def test_the_bundled_recipes_are_whole(tmp_path):
    for recipe in ("recipe.toml", "smollm2-135m/draft.toml"):
        texts = jobs.read_texts(ZOO / recipe, tmp_path)
        assert {source.label for source in texts.sources} == set(texts.weights)
    for kind in ("eagle", "lyanna", "medusa"):
        assert train_heads.job(kind, ZOO / "recipe.toml", {}).recipe.steps in (300, 500)
    settings = jobs.read_draft(ZOO / "smollm2-135m" / "draft.toml")
    job = jobs.override(head_recipes.default(train_settings.DRAFT), settings)
    assert (job.recipe.steps, job.shape["keep_layers"]) == (800, "0,1,2,27,28,29")


def test_unknown_setting():
    with pytest.raises(ValueError, match="no setting 'speed'"):
        jobs.override(head_recipes.default(train_settings.DRAFT), {"speed": 9})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[draft", "is not TOML"),
        (b"[draft]", "has no 'text'"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"text = 3\n[draft]", "as its texts; write .*text"),
        (b"[draft]\n[text]\npath = 'x'", "as its texts; write .*text"),
        (b"draft = 3\n[[text]]", "draft = 3, which is not a table; write .draft"),
        (b"[[text]]\nclass = 'c'\npath = 3", "path is 3; use a text"),
        (b"[weights]\nc = 'much'\n[[text]]\nclass = 'c'\npath = 'x'", "c is 'much'; use a num"),
        (b"[draft]\nlearning_rate = true\n[[text]]", "learning_rate is True; use a number"),
    ],
)
def test_a_file_that_is_not_a_recipe(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)

    def read():
        jobs.override(head_recipes.default(train_settings.DRAFT), jobs.read_draft(path))
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
