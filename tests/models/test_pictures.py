"""Models that read pictures too: their text part is loaded, by all names of its tensors."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jspec.models
from jspec._validate.errors import InputError
from jspec.models.huggingface import families
from jspec.models.huggingface.config_json import Settings

SEEN = {
    "vision_tower.vision_model.embeddings.patch_embedding.weight": np.ones((2, 3, 2, 2)),
    "multi_modal_projector.linear_1.weight": np.ones((2, 2)),
}
WHOLE = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3"),
    "mistral": ("Mistral3ForConditionalGeneration", "mistral3"),
}


def names(tensors, place):
    """As the models were published, and as later versions of `transformers` save them."""
    if place == "published":
        return {f"language_model.{name}": array for name, array in tensors.items()} | SEEN
    within = {
        name.replace("model.", "model.language_model.", 1): array for name, array in tensors.items()
    }
    return within | {f"model.{name}": array for name, array in SEEN.items()}


def test_the_text_part_is_the_text_model(recorded, fixtures, tmp_path):
    for name, (architecture, kind) in WHOLE.items():
        found = recorded(name)
        tensors = load_file(fixtures / name / "model.safetensors")
        config = json.loads((fixtures / name / "config.json").read_text())
        tied = config.pop("tie_word_embeddings")
        for place in ("published", "later"):
            for outer in ({}, {"tie_word_embeddings": tied}):
                text = config if outer else config | {"tie_word_embeddings": tied}
                whole = dict(
                    architectures=[architecture], model_type=kind, text_config=text, **outer
                )
                (tmp_path / "config.json").write_text(json.dumps(whole))
                save_file(names(tensors, place), tmp_path / "model.safetensors")
                loaded = jspec.models.load(tmp_path, with_tokenizer=False)
                assert loaded.model == found.model
                jax.tree.map(np.testing.assert_array_equal, loaded.params, found.params)


def test_absent_fields_of_a_text_part_have_the_defaults_of_transformers():
    stretch = {"factor": 8.0, "rope_type": "linear"}
    gemma4b = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": stretch,
        "sliding_window": 1024,
    }
    gemma27b = {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": stretch,
        "sliding_window": 1024,
    }

    def parse(architecture, text):
        values = {"architectures": [architecture], "model_type": "x", "text_config": text}
        settings = Settings(values, "config.json")
        return families.find(settings).parse(settings)

    small, large = (parse(WHOLE["gemma3"][0], text) for text in (gemma4b, gemma27b))
    assert (small.num_heads, small.num_kv_heads, small.head_dim, small.num_layers) == (
        8,
        4,
        256,
        34,
    )
    assert (large.num_heads, large.num_kv_heads, large.head_dim, large.num_layers) == (
        32,
        16,
        128,
        62,
    )
    for config in (small, large):
        assert (config.vocab_size, config.context, config.tied) == (262208, 131072, True)
        assert [layer.window for layer in config.layers[:6]] == [1024] * 5 + [None]
        assert config.layers[5].rope.scaling.factor == 8.0
        assert config.layers[5].rope.theta == 1e6
    with pytest.raises(InputError, match=r"model_type = 'ministral3'.*'mistral'"):
        parse(WHOLE["mistral"][0], {"model_type": "ministral3"})
