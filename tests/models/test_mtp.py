"""Draft heads that come with a model's weights, against the published formula in float64."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny
from published_heads import check_saving
from safetensors.numpy import load_file, save_file

import jspec
import jspec.models
from jspec.models import heads

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("qwen3_next", "deepseek_v3", "glm4_moe")
SLOW = ("glm4_moe", "qwen3_5", "qwen3_5_moe", "glm4_moe_lite")


def whole(folder, fixtures, name, **changes):
    """A checkpoint as it is published: the model and its head in one index of two files."""
    shutil.copytree(fixtures / name, folder)
    own = {**load_file(fixtures.parent / "mtp" / name / "mtp.safetensors"), **changes}
    own = {key: tensor for key, tensor in own.items() if tensor is not None}
    save_file(own, folder / "mtp.safetensors")
    index = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
    index |= dict.fromkeys(own, "mtp.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.fixture(
    scope="module",
    params=[*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def checkpoint(name, tmp_path_factory):
    return whole(tmp_path_factory.mktemp("mtp") / name, FIXTURES, name)


@pytest.fixture(scope="module")
def target(checkpoint):
    return jspec.models.load(checkpoint, with_tokenizer=False)


@pytest.fixture(scope="module")
def reference(name, checkpoint):
    return load_file(FIXTURES.parent / "mtp" / name / "reference.safetensors")


def steps(head, params, reference):
    """Computes the head's outputs at each step of a chain, all texts' pairs at once."""
    states, count = jnp.asarray(reference["states"]), reference["states"].shape[1]
    run = jax.jit(head.apply)
    step = 0
    while f"states_{step + 1}" in reference:
        step += 1
        tokens = reference["tokens"][:, step : step + count]
        output = run(params, states, *tiny.causal(tokens), None)
        yield step, output
        states = output.hidden


def test_a_head_computes_what_the_formula_says(target, checkpoint, reference, tmp_path):
    head, params, same = heads.load(checkpoint, target)
    assert same.model == target.model and heads.kind_of(head) == "mtp"
    for step, output in steps(head, params, reference):
        np.testing.assert_allclose(output.hidden, reference[f"states_{step}"], atol=1e-4, rtol=0)
        np.testing.assert_allclose(output.logits, reference[f"logits_{step}"], atol=1e-4, rtol=0)
        np.testing.assert_array_equal(head.score(params, output.hidden), output.logits)
    assert params["target"]["embed"] is target.params["params"]["embed"]
    assert params["target"]["head"] is target.params["params"]["head"]
    check_saving(tmp_path / "saved", *heads.read_variables(checkpoint, target, only="mtp"), target)


def test_a_changed_computation_is_detected(target, checkpoint, reference):
    """Norms that change places, and the two halves of what is read: the reference would show it."""
    head, params, _ = heads.load(checkpoint, target)
    own = params["params"]
    fuse = jnp.roll(own["fuse"]["weight"], own["fuse"]["weight"].shape[1] // 2, axis=1)
    for changed in (
        {"token_norm": own["state_norm"], "state_norm": own["token_norm"]},
        {"fuse": {"weight": fuse}},
        {"norm": {"scale": own["norm"]["scale"] * 0}},
    ):
        wrong = params | {"params": own | changed}
        _, output = next(steps(head, wrong, reference))
        assert np.abs(np.asarray(output.logits) - reference["logits_1"]).max() > 0.1


@pytest.mark.parametrize("name", NAMES[:1], indirect=True)
def test_methods_find_it(target, checkpoint, fixtures, name):
    assert heads.own(target) == str(checkpoint)
    for method, kind in (("eagle", jspec.EAGLE), ("eagle2", jspec.EAGLE2)):
        built = jspec.LLM(target, method, num_speculative_tokens=3)
        assert isinstance(built.drafter, kind) and heads.kind_of(built.drafter.head) == "mtp"
    last = jspec.LLM(target, "auto").drafter.drafters[-1]
    assert isinstance(last, jspec.EAGLE2) and heads.kind_of(last.head) == "mtp"
    bare = jspec.models.load(fixtures / name, with_tokenizer=False)
    assert heads.own(bare) is None
    assert isinstance(jspec.LLM(bare, "auto").drafter, jspec.Spine)
    with pytest.raises(ValueError, match="no bundled eagle head was trained for this model"):
        jspec.LLM(bare, "eagle2")


@pytest.mark.parametrize("name", NAMES[1:2], indirect=True)
def test_a_table_of_its_own_is_kept(tmp_path, target, fixtures, name):
    """Files hold a copy of the target's head, which is not held twice, or another table."""
    place = "model.layers.3.shared_head.head.weight"
    table = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    folder = whole(tmp_path / "it", fixtures, name, **{place: table})
    head, params, _ = heads.load(folder, target)
    assert head.config.own_head and params["target"].keys() == {"embed"}
    state = np.ones((1, 1, 16), np.float32)
    np.testing.assert_allclose(head.score(params, state)[0, 0], table.sum(1), rtol=1e-4, atol=1e-4)
    other = {"model.layers.3.embed_tokens.weight": table}
    with pytest.raises(ValueError, match="was trained on other embeddings than this target's"):
        heads.load(whole(tmp_path / "other", fixtures, name, **other), target)
    second = {"model.layers.4.eh_proj.weight": table}
    with pytest.raises(ValueError, match=r"holds 1 tensor \(model.layers.4.eh_proj.weight\)"):
        heads.load(whole(tmp_path / "second", fixtures, name, **second), target)


@pytest.mark.parametrize("name", NAMES[1:2], indirect=True)
def test_a_head_of_float8_weights_is_dequantised(tmp_path, target, fixtures, name):
    folder = whole(tmp_path / "it", fixtures, name)
    whole_head = heads.load(folder, target).params["params"]["fuse"]["weight"]
    file = folder / "mtp.safetensors"
    held = load_file(file)
    low = held["model.layers.3.eh_proj.weight"].astype(ml_dtypes.float8_e4m3fn)
    held["model.layers.3.eh_proj.weight"] = low
    held["model.layers.3.eh_proj.weight_scale_inv"] = np.full((4, 8), 2, np.float32)
    save_file(held, file)
    index = folder / "model.safetensors.index.json"
    names = json.loads(index.read_text())
    names["weight_map"]["model.layers.3.eh_proj.weight_scale_inv"] = "mtp.safetensors"
    index.write_text(json.dumps(names))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [4, 4]}
    (folder / "config.json").write_text(json.dumps(config))
    found = heads.load(folder, target).params["params"]["fuse"]["weight"]
    np.testing.assert_array_equal(found, 2 * low.astype(np.float32))
    np.testing.assert_allclose(found, 2 * whole_head, rtol=0.07, atol=0.01)


@pytest.mark.parametrize("name", NAMES[:1], indirect=True)
def test_tensors_that_do_not_fit_are_refused(tmp_path, fixtures, target, name):
    cases = (
        ({"mtp.norm.weight": None}, r"lacks 1 tensor \(norm.weight\) of a head of kind mtp"),
        ({"mtp.layers.1.mlp.gate.weight": np.ones((8, 16), np.float32)}, "1 tensor .* no place"),
        ({"mtp.fc.weight": np.ones((16, 48), np.float32)}, r"fc.weight .* \[16, 48\], but"),
        ({"mtp.fc.weight": None}, "holds no draft head that is known"),
    )
    for number, (changes, why) in enumerate(cases):
        folder = whole(tmp_path / str(number), fixtures, name, **changes)
        with pytest.raises(ValueError, match=why):
            heads.load(folder, target)


@pytest.mark.parametrize("name", NAMES[:1], indirect=True)
def test_another_family_or_width_is_refused(tmp_path, fixtures, checkpoint, target, name):
    folder = whole(tmp_path / "it", fixtures, name)
    shutil.copy(fixtures / "qwen3" / "config.json", folder / "config.json")
    with pytest.raises(ValueError, match="an MTP head of Qwen3ForCausalLM, which jspec does not"):
        heads.load(folder, target)
    wide = dataclasses.replace(target.model.config, hidden_size=24)
    other = dataclasses.replace(target, model=target.model.clone(config=wide))
    with pytest.raises(ValueError, match=r"\[16, 32\], but its config and this target ask"):
        heads.load(checkpoint, other)
