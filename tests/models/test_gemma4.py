"""Gemma 4: what its memory holds, its files' layout, and layers that read others' keys."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jspec
import jspec.models
from jspec.models import Layer, LlamaConfig


def test_the_memory_holds_the_keys_of_the_layers_that_have_their_own(recorded):
    """Three of six layers, of two sizes; the memory of all would be twice as large."""
    model = recorded("gemma4").model
    memory = model.init_memory(2, 16)
    heads, near, far = model.config.num_kv_heads, model.config.head_dim, 16
    lanes = [near, near, far]
    assert [held.shape for held in memory.keys] == [(2, heads, 16, own) for own in lanes]
    assert [held.shape for held in memory.values] == [(2, heads, 16, own) for own in lanes]
    assert [layer.keys_of for layer in model.kinds] == [None, None, None, 1, 1, 2]


@pytest.mark.parametrize("name", ["gemma4", "gemma4_unified"])
def test_the_text_part_of_a_model_for_pictures_is_loaded(name, recorded, fixtures, tmp_path):
    """As its files are published: one level below, with keys that no layer reads."""
    found = recorded(name)
    tensors = load_file(fixtures / name / "model.safetensors")
    config = json.loads((fixtures / name / "config.json").read_text())
    architecture = config.pop("architectures")[0].replace("CausalLM", "ConditionalGeneration")
    whole = dict(
        architectures=[architecture], model_type=name, text_config=config, vision_config={},
        tie_word_embeddings=config.pop("tie_word_embeddings", True),
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(whole))
    moved = {
        key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()
    }
    others = {
        "model.vision_tower.encoder.layers.0.mlp.up_proj.weight": np.ones((2, 2)),
        "model.embed_vision.embedding_projection.weight": np.ones((2, 2)),
    }
    if found.model.kinds[-1].keys_of is not None:
        others["model.language_model.layers.5.self_attn.k_proj.weight"] = np.ones((2, 2))
    save_file(moved | others, tmp_path / "model.safetensors")
    loaded = jspec.models.load(tmp_path, with_tokenizer=False)
    assert loaded.model == found.model
    jax.tree.map(np.testing.assert_array_equal, loaded.params, found.params)


def test_a_layer_reads_keys_that_are_there_and_fit():
    def model(*layers: Layer):
        config = LlamaConfig(
            vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=len(layers), num_heads=2,
            num_kv_heads=2, head_dim=4, context=9, layers=layers,
        )  # fmt: skip
        return jspec.models.Llama(config)

    own = Layer(None)
    assert model(own, replace(own, keys_of=0)).init_memory(1, 4).keys[0].shape == (1, 2, 4, 4)
    with pytest.raises(jspec.InputError, match="layer 1 reads the keys of layer 2; let it read"):
        model(own, replace(own, keys_of=2))
    with pytest.raises(jspec.InputError, match="before it that has its own"):
        model(own, replace(own, keys_of=0), own)
    with pytest.raises(jspec.InputError, match="2 key-value heads of 8 lanes and reads layer"):
        model(own, replace(own, keys_of=0, head_dim=8))
