"""Recipes: the bundled one is whole, and a wrong one says what is wrong."""

from pathlib import Path

import pytest

from jspec.training import jobs

ZOO = Path(__file__).parents[2] / "models" / "zoo" / "recipe.toml"


def test_the_bundled_recipe_names_two_models_that_share_their_text(tmp_path):
    target = jobs.read(ZOO, tmp_path, "jspec-7m")
    draft = jobs.read(ZOO, tmp_path, "jspec-800k")
    assert target.sources == draft.sources
    assert target.vocab_size == draft.vocab_size == 4096
    assert {source.label for source in target.sources} == set(target.weights)


def test_unknown_model_and_setting(tmp_path):
    with pytest.raises(ValueError, match="no model 'jspec-9m'; use one of jspec-7m, jspec-800k"):
        jobs.read(ZOO, tmp_path, "jspec-9m")
    with pytest.raises(ValueError, match="no setting 'speed'"):
        jobs.override(jobs.Job(), {"speed": 9})


@pytest.mark.parametrize(
    ("text", "message"),
    [("[models", "is not TOML"), ("[models.a]", "has no 'text'")],
)
def test_a_file_that_is_no_recipe(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        jobs.read(path, tmp_path, "a")
