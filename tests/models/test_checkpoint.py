"""A model through orbax and back, its shapes, and some of its layers as a draft."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny

import jspec
import jspec.models
from jspec._xla import native
from jspec.models import checkpoint, pruning


@pytest.fixture
def loaded(fixtures):
    """With a nested config: the stretched frequencies."""
    return jspec.models.load(fixtures / "llama31", with_tokenizer=False)


def test_the_folder_is_enough(loaded, fixtures, tmp_path):
    for name in ("llama31", "opt_norms_behind_projected", "deepseek_v3", "qwen3_next"):
        before = jspec.models.load(fixtures / name, with_tokenizer=False)
        jspec.models.save(tmp_path / name, before.model, before.params)
        model, params = jspec.models.restore(tmp_path / name)
        assert model == before.model
        assert hash(model) == hash(before.model)
        assert tiny.equal(params, before.params)


def test_other_dtypes_may_be_asked_for_and_other_shapes_are_refused(loaded, tmp_path):
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    narrow = loaded.model.clone(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    model, params = jspec.models.restore(tmp_path / "model", narrow)
    assert model is narrow
    assert tiny.equal(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), loaded.params))
    wide = dataclasses.replace(loaded.model.config, intermediate_size=48)
    with pytest.raises(ValueError, match=r"does not fit .* 4 of .*weight.* has shape .*16, 32\]"):
        jspec.models.restore(tmp_path / "model", jspec.models.Llama(wide))
    deep = dataclasses.replace(loaded.model.config, num_layers=3)
    with pytest.raises(ValueError, match=r"layers_2.* has shape none and should have"):
        jspec.models.restore(tmp_path / "model", jspec.models.Llama(deep))


def test_a_checkpoint_is_not_written_over_and_an_invalid_one_is_refused(loaded, tmp_path):
    with pytest.raises(ValueError, match=r"holds no whole checkpoint; it needs model.json"):
        jspec.models.restore(tmp_path)
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    with pytest.raises(ValueError, match="already holds a checkpoint; name another folder"):
        jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    record = tmp_path / "model" / checkpoint.RECORD
    whole = json.loads(record.read_text())
    for changes, said in (
        ({"format": 1}, "model.json has format = 1, .* supported: 2"),  # weights by inputs
        ({"model": "Mamba"}, "model = 'Mamba'.*supported: 'Llama', 'LearnedPositionDecoder'"),
        ({"config": {"vocab_size": 3}}, "does not describe a Llama .*restore the file"),
    ):
        record.write_text(json.dumps(whole | changes))
        with pytest.raises(ValueError, match=said):
            jspec.models.restore(tmp_path / "model")


TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 6))


def test_a_draft_of_kept_layers_is_its_target_without_the_others():
    """Behind attention and MLP that give zeros, a layer's states are those before it."""
    target = tiny.model(num_layers=3, tied=True)
    params = tiny.params(target)
    draft, kept = pruning.prune(target, params, (0, 2))
    silent = jax.tree.map(lambda leaf: leaf, params)
    for name in ("output", "down"):
        silent["params"]["layers_1"][name] = jax.tree.map(
            jnp.zeros_like, params["params"]["layers_1"][name]
        )
    wanted = tiny.forward(target, silent, TOKENS).logits
    found = tiny.forward(draft, kept, TOKENS).logits
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    whole = tiny.forward(target, params, TOKENS).logits
    assert np.abs(np.asarray(found - whole)).max() > 1e-3


@pytest.mark.parametrize("name", ["jspec-800k", "mixtral"])
@pytest.mark.parametrize("how", [dict(), dict(scan_layers=True, dtype="int8")])
def test_shapes_are_those_of_the_loaded_weights(name, how, fixtures):
    path = fixtures / name if name == "mixtral" else name
    described = jspec.models.shapes(path, **how)
    with native.disable():  # with kernels, tables may stay in fewer bits
        loaded = jspec.models.load(path, **how, with_tokenizer=False)
    assert (described.model, described.eos) == (loaded.model, loaded.eos)
    each = [
        jax.tree.map(lambda x: (x.shape, x.dtype), found.params) for found in (described, loaded)
    ]
    assert each[0] == each[1]


SIZES = [("deepseek-v3", 671.0, 1), ("gpt-oss-20b", 20.91, 2), ("gemma4-e2b", 2.3, 1),
         ("gpt-oss-120b", 116.83, 2), ("qwen3-next-80b", 80.0, 0)]  # fmt: skip


@pytest.mark.parametrize("size", quick.only(SIZES, *SIZES[:2]), ids=lambda size: size[0])
def test_published_shapes_have_the_published_numbers_of_parameters(size):
    """arXiv 2412.19437, section 4.2, without the head for several tokens; 2508.10925, table 1.

    Gemma's cards count without per-layer embeddings, and Qwen3-Next's name is all there is.
    """
    name, billions, digits = size
    params = dict(jspec.models.shapes(name, scan_layers=True).params["params"])
    params.pop("per_layer_embed", None)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert round(count / 1e9, digits) == billions
