"""`--lora`: the text is the merged model's, and a file that is not an adapter is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """An adapter of one product, and the base with it merged."""
    root, rng = tmp_path_factory.mktemp("lora"), np.random.default_rng(3)
    held = load_file(folder / "model.safetensors")
    outputs, inputs = held[f"{QUERY}.weight"].shape
    down, up = rng.normal(0, 1, (2, inputs)), rng.normal(0, 1, (outputs, 2))
    named = f"base_model.model.{QUERY}.lora_"
    (root / "adapter").mkdir()
    save_file(
        {f"{named}A.weight": down.astype("f4"), f"{named}B.weight": up.astype("f4")},
        root / "adapter" / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"}
    (root / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    (root / "merged").mkdir()
    held[f"{QUERY}.weight"] = (held[f"{QUERY}.weight"] + 2 * up @ down).astype("f4")
    save_file(held, root / "merged" / "model.safetensors", metadata={"format": "pt"})
    for file in folder.glob("*.json"):
        (root / "merged" / file.name).write_text(file.read_text("utf-8"), "utf-8")
    return root


@pytest.mark.slow
def test_a_text_is_that_of_the_merged_model(command, folder, adapter):
    asked = (
        *("Once upon a time", "--max-new-tokens", 16, "--ignore-eos", "--json", "--no-compare"),
        *("--method", "token_recycling"),
    )

    def written(*options):
        ran = command("generate", *asked, *options)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)["text"]

    text = written("--model", folder, "--lora", adapter / "adapter")
    assert text == written("--model", adapter / "merged")
    assert text != written("--model", folder)


def test_an_invalid_adapter_is_refused_in_one_sentence(command, folder, tmp_path):
    for arguments, told in (
        (("generate", "x", "--model", folder, "--lora", tmp_path), "has no adapter_config.json"),
        (("serve", "--model", folder, "--lora", "sql"), "--lora is 'sql'; pass NAME=DIR"),
        (("serve", "--model", folder, "--lora", "a=b", "--lora", "a=c"), "the name 'a' twice"),
        (
            ("serve", "--model", folder, "--served-model-name", "a", "--lora", "a=b"),
            "which is the model's own name",
        ),
    ):
        ran = command(*arguments)
        assert ran.code == 2 and ran.err.count("\n") == 1 and told in ran.err, ran.err
