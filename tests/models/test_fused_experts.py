"""Experts of a layer in one tensor, as files of Qwen3.5 are published: the same weights."""

import re
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jspec.models
from jspec.models import heads

SINGLE = re.compile(r"(.*\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


def fused(tensors):
    """With `gate_up_proj` [E, 2 F, H] and `down_proj` [E, H, F] in place of single matrices."""
    made, parts = {}, {}
    for name, tensor in tensors.items():
        if (found := SINGLE.fullmatch(name)) is None:
            made[name] = tensor
        else:
            parts.setdefault((found[1], found[3]), {})[int(found[2])] = tensor
    stacked = {
        key: np.stack([of[expert] for expert in range(len(of))]) for key, of in parts.items()
    }
    for place in {place for place, _ in parts}:
        both = np.concatenate([stacked[place, "gate"], stacked[place, "up"]], axis=1)
        made |= {f"{place}gate_up_proj": both, f"{place}down_proj": stacked[place, "down"]}
    return made


@pytest.fixture
def folder(tmp_path, fixtures):
    """The checkpoint as it is published, its MTP head alongside it in the same file."""
    shutil.copytree(fixtures / "qwen3_5_moe", tmp_path / "it")
    own = load_file(fixtures.parent / "mtp/qwen3_5_moe/mtp.safetensors")
    tensors = load_file(tmp_path / "it/model.safetensors") | own
    save_file(fused(tensors), tmp_path / "it/model.safetensors")
    return tmp_path / "it"


def load(folder):
    return jspec.models.load(folder, dtype="float32", with_tokenizer=False)


def test_the_weights_are_those_of_single_experts(folder, fixtures):
    held = load_file(folder / "model.safetensors")
    assert not any(map(SINGLE.fullmatch, held)), "nothing is left one by one"
    found, wanted = load(folder), load(fixtures / "qwen3_5_moe")
    jax.tree.map(np.testing.assert_array_equal, found.params, wanted.params)


def test_so_are_those_of_the_head_that_comes_with_them(folder, fixtures):
    head, variables, _ = heads.load(folder, load(folder))
    alone = load_file(fixtures.parent / "mtp/qwen3_5_moe/mtp.safetensors")
    tensors = load_file(folder / "model.safetensors")
    names = [name for name in tensors if name.startswith("mtp.")]
    save_file({n: t for n, t in tensors.items() if n not in names} | alone,
              folder / "model.safetensors")  # fmt: skip
    again, wanted, _ = heads.load(folder, load(folder))
    assert head == again
    jax.tree.map(np.testing.assert_array_equal, variables["params"], wanted["params"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: x[:, :-1], r"gate_up_proj in .* has shape \[\d+, 15, 16\], not \[experts"),
        (lambda x: x[0], r"has shape \[16, 16\], not \[experts, outputs, inputs\]; download"),
        (lambda x: x[:-1], "lacks"),
    ],
    ids=["odd", "flat", "few"],
)
def test_other_shapes_are_one_sentence(folder, change, why):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("gate_up_proj"))
    save_file(tensors | {name: np.ascontiguousarray(change(tensors[name]))}, file)
    with pytest.raises(ValueError, match=why):
        load(folder)
