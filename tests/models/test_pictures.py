"""Models that read pictures too: their text part is loaded, by all names of its tensors."""

import json

import adapters
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jspec.models
from jspec._validate.errors import InputError
from jspec.models import heads
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


GEMMA4 = (
    "model.vision_tower.encoder.layers.0.mlp.up_proj.weight",
    "model.embed_vision.embedding_projection.weight",
)
QWEN = "model.visual.blocks.0.norm1.bias", "mtp.fc.weight"
LATER = {"gemma4": GEMMA4, "gemma4_unified": GEMMA4, "qwen3_5": QWEN, "qwen3_5_moe": QWEN}
"""Other tensors in the files of families all of whose models read pictures."""


def within(tensors):
    """As later versions of `transformers` save them, and later families were published."""
    return {
        name.replace("model.", "model.language_model.", 1): array for name, array in tensors.items()
    }


def names(tensors, place):
    """As the models were published, and as later versions of `transformers` save them."""
    if place == "published":
        return {f"language_model.{name}": array for name, array in tensors.items()} | SEEN
    return within(tensors) | {f"model.{name}": array for name, array in SEEN.items()}


def recorded_files(folder):
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def check_loaded(folder, config, tensors, found):
    """Checks that these files hold the recorded text model."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    loaded = jspec.models.load(folder, with_tokenizer=False)
    assert loaded.model == found.model
    jax.tree.map(np.testing.assert_array_equal, loaded.params, found.params)
    return loaded


def test_the_text_part_is_the_text_model(recorded, fixtures, tmp_path):
    for name, (architecture, kind) in WHOLE.items():
        config, tensors = recorded_files(fixtures / name)
        tied = config.pop("tie_word_embeddings")
        for place in ("published", "later"):
            for outer in ({}, {"tie_word_embeddings": tied}):
                text = config if outer else config | {"tie_word_embeddings": tied}
                whole = dict(
                    architectures=[architecture], model_type=kind, text_config=text, **outer
                )
                check_loaded(tmp_path, whole, names(tensors, place), recorded(name))


@pytest.mark.parametrize("name", LATER)
def test_the_text_part_of_a_later_family_is_loaded(name, recorded, fixtures, tmp_path):
    """One level below, with heads and with keys that no layer reads."""
    found = recorded(name)
    config, tensors = recorded_files(fixtures / name)
    architecture = config.pop("architectures")[0].replace("CausalLM", "ConditionalGeneration")
    whole = dict(
        architectures=[architecture], model_type=name, text_config=config, vision_config={},
        tie_word_embeddings=config.pop("tie_word_embeddings", True),
    )  # fmt: skip
    others = dict.fromkeys(LATER[name], np.ones(2))
    if found.model.kinds[-1].keys_of is not None:
        others["model.language_model.layers.5.self_attn.k_proj.weight"] = np.ones((2, 2))
    loaded = check_loaded(tmp_path, whole, within(tensors) | others, found)
    assert heads.own(loaded) == (str(tmp_path) if "mtp.fc.weight" in others else None)


def seen_too(place):
    """By the names of an adapter's base, of which it adapts a product that sees."""

    def rename(tensors):
        if place == "text":
            return tensors
        found = names(tensors, "published") if place == "published" else within(tensors)
        found = {name: tensor for name, tensor in found.items() if "lora" in name}
        return found | {"model.vision_tower.layers.0.q_proj.lora_A.weight": np.ones((2, 2))}

    return rename


@pytest.mark.parametrize("name", ["gemma3", "mistral", "gemma4"])
def test_adapters_of_the_whole_adapt_its_text_part(name, fixtures, tmp_path):
    config, tensors = recorded_files(fixtures / name)
    modules = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
    shapes, one = {n: tensors[f"{n}.weight"].shape for n in modules}, {"one": tmp_path / "adapter"}
    adapters.save(one["one"], shapes)
    want = jspec.models.load(fixtures / name, with_tokenizer=False, adapters=one).params["lora"]
    architecture, kind = WHOLE.get(name, ("Gemma4ForConditionalGeneration", "gemma4"))
    tied = config.pop("tie_word_embeddings", True)
    whole = dict(
        architectures=[architecture], model_type=kind, text_config=config, vision_config={},
        tie_word_embeddings=tied,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(whole))
    for place in ("published", "later"):
        save_file(names(tensors, place), tmp_path / "model.safetensors")
        for trained in ("text", "published", "later"):
            adapters.save(one["one"], shapes, rename=seen_too(trained))
            found = jspec.models.load(tmp_path, with_tokenizer=False, adapters=one)
            ours, wanted = (jax.tree.flatten(each) for each in (found.params["lora"], want))
            assert ours[1] == wanted[1] and all(map(np.array_equal, ours[0], wanted[0]))


def test_absent_fields_of_a_text_part_have_the_defaults_of_transformers():
    def parse(architecture, text):
        values = {"architectures": [architecture], "model_type": "x", "text_config": text}
        settings = Settings(values, "config.json")
        return families.find(settings).parse(settings)

    config = parse(WHOLE["gemma3"][0], {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    })  # fmt: skip
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.context, config.tied) == (262208, 131072, True)
    assert [layer.window for layer in config.layers[:6]] == [1024] * 5 + [None]
    assert (config.layers[5].rope.scaling.factor, config.layers[5].rope.theta) == (8.0, 1e6)
    with pytest.raises(InputError, match=r"model_type = 'ministral3'.*'mistral'"):
        parse(WHOLE["mistral"][0], {"model_type": "ministral3"})
