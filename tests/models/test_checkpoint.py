"""A model through orbax and back."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

import jspec.models
from jspec.models import checkpoint


@pytest.fixture
def loaded(fixtures):
    """With a nested config: the stretched frequencies."""
    return jspec.models.load(fixtures / "llama31", with_tokenizer=False)


def equal(one, other):
    return jax.tree.all(jax.tree.map(jnp.array_equal, one, other))


def test_the_folder_is_enough(loaded, fixtures, tmp_path):
    for name in ("llama31", "opt_norms_behind_projected"):
        before = jspec.models.load(fixtures / name, with_tokenizer=False)
        jspec.models.save(tmp_path / name, before.model, before.params)
        model, params = jspec.models.restore(tmp_path / name)
        assert model == before.model
        assert hash(model) == hash(before.model)
        assert equal(params, before.params)


def test_other_dtypes_may_be_asked_for(loaded, tmp_path):
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    narrow = loaded.model.clone(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    model, params = jspec.models.restore(tmp_path / "model", narrow)
    assert model is narrow
    assert equal(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), loaded.params))


def test_other_shapes_are_refused(loaded, tmp_path):
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    wide = dataclasses.replace(loaded.model.config, intermediate_size=48)
    with pytest.raises(ValueError, match=r"does not fit .* 4 of .*weight.* has shape .*16, 32\]"):
        jspec.models.restore(tmp_path / "model", jspec.models.Llama(wide))
    deep = dataclasses.replace(loaded.model.config, num_layers=3)
    with pytest.raises(ValueError, match=r"layers_2.* has shape none and should have"):
        jspec.models.restore(tmp_path / "model", jspec.models.Llama(deep))


def test_weights_by_inputs_are_refused(loaded, tmp_path):
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    record = tmp_path / "model" / "model.json"
    record.write_text(record.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(ValueError, match=r"model.json has format = 1, .* supported: 2"):
        jspec.models.restore(tmp_path / "model")


def test_a_checkpoint_is_not_written_over(loaded, tmp_path):
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    with pytest.raises(ValueError, match="already holds a checkpoint; name another folder"):
        jspec.models.save(tmp_path / "model", loaded.model, loaded.params)


def test_an_invalid_checkpoint_is_refused(loaded, tmp_path):
    with pytest.raises(ValueError, match=r"holds no whole checkpoint; it needs model.json"):
        jspec.models.restore(tmp_path)
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    record = tmp_path / "model" / checkpoint.RECORD
    whole = json.loads(record.read_text())
    record.write_text(json.dumps(whole | {"model": "Mamba"}))
    with pytest.raises(
        ValueError, match=r"model = 'Mamba'.*supported: 'Llama', 'LearnedPositionDecoder'"
    ):
        jspec.models.restore(tmp_path / "model")
    record.write_text(json.dumps(whole | {"config": {"vocab_size": 3}}))
    with pytest.raises(ValueError, match=r"does not describe a Llama .*restore the file"):
        jspec.models.restore(tmp_path / "model")
