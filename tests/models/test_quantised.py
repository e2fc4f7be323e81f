"""Published weights in 8 and 4 bits: what is read, and the sentence for each broken file."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import refusals
import tiny
from safetensors.numpy import load_file, save_file

import jspec
import jspec.models
from jspec.models.huggingface import config_json, families, quantised, shards

BLOCK = 4, 8
FLOAT8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)}


def save(file, tensors):
    """A safetensors file; NumPy has no 8-bit floats."""
    kinds = {"float8_e4m3fn": "F8_E4M3", "float32": "F32", "uint8": "U8"}
    header, place = {}, 0
    for name, tensor in tensors.items():
        offsets = [place, place + tensor.nbytes]
        kind, shape = kinds[tensor.dtype.name], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        place += tensor.nbytes
    said = json.dumps(header).encode()
    parts = [len(said).to_bytes(8, "little"), said, *(one.tobytes() for one in tensors.values())]
    file.write_bytes(b"".join(parts))


def describe(folder, **fields):
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


def in_float8(name):
    """As in DeepSeek-V3: products of the layers, and neither routers nor norms."""
    return "layers" in name and name.endswith("_proj.weight")


@pytest.fixture
def small(fixtures, tmp_path):
    """The recorded model in float8, and its weights as the blocks say, block by block."""
    folder = shutil.copytree(fixtures / "deepseek_v3", tmp_path / "small")
    draw = np.random.default_rng(0)
    tensors, wide = {}, {}
    for name, weight in load_file(folder / shards.SINGLE).items():
        tensors[name] = wide[name] = weight
        if not in_float8(name):
            continue
        rows, columns = weight.shape
        scales = draw.uniform(0.5, 2, (-(-rows // BLOCK[0]), -(-columns // BLOCK[1])))
        scales = scales.astype(np.float32)
        low = draw.normal(size=weight.shape).astype(ml_dtypes.float8_e4m3fn)
        tensors[name], tensors[f"{name}_scale_inv"] = low, scales
        wide[name] = low.astype(np.float32)
        for i, j in np.ndindex(rows, columns):
            wide[name][i, j] *= scales[i // BLOCK[0], j // BLOCK[1]]
    save(folder / shards.SINGLE, tensors)
    describe(folder, quantization_config=FLOAT8)
    return folder, wide


def test_float8_is_read_block_by_block(small, fixtures, tmp_path):
    folder, wide = small
    plain = shutil.copytree(fixtures / "deepseek_v3", tmp_path / "wide")
    save_file(wide, plain / shards.SINGLE)
    found, wanted = (jspec.models.load(one, with_tokenizer=False) for one in (folder, plain))
    assert tiny.equal(found.params, wanted.params)
    fields = config_json.read(folder / "config.json")
    held = quantised.reader(fields)(shards.open_folder(folder))
    # As compressed-tensors says the same.
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [*BLOCK]}
    said = {"format": "float-quantized", "config_groups": {"group_0": {"weights": weights}}}
    describe(folder, quantization_config={"quant_method": "compressed-tensors", **said})
    again = jspec.models.load(folder, with_tokenizer=False)
    assert tiny.equal(again.params, wanted.params)
    name = "model.layers.0.mlp.down_proj.weight"
    for cut in (slice(0, 3), slice(3, 6), slice(5, 16), slice(None)):
        np.testing.assert_array_equal(held.rows(name, cut), wide[name][cut])


def gpt_oss(folder, fixtures, tensors):
    """A gpt-oss whose inputs are whole blocks of 32; `tensors` are put in place of others."""
    shutil.copytree(fixtures / "gpt_oss", folder)
    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    describe(folder, **sizes, layer_types=["sliding_attention"])
    fields = config_json.read(folder / "config.json")
    family = families.find(fields)
    draw, held = np.random.default_rng(0), {}
    for weight in family.weights(family.parse(fields)):
        for name, shape in zip(weight.names, weight.shapes, strict=True):
            held[name] = draw.normal(size=shape).astype(np.float32) / 4
    for name in [name for name in held if any(given.startswith(name) for given in tensors)]:
        if not name.endswith("_bias"):
            del held[name]
    save_file(held | tensors, folder / shards.SINGLE)
    return folder


EXPERTS = "model.layers.0.mlp.experts"
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
"""Of E2M1 without its sign: OCP Microscaling Formats 1.0, table 5."""


def blocks():
    draw, tensors = np.random.default_rng(1), {}
    for part, outputs in (("gate_up_proj", 64), ("down_proj", 32)):
        shape = 4, outputs, 1
        packed = draw.integers(0, 256, (*shape, 16), np.uint8)
        tensors[f"{EXPERTS}.{part}_blocks"] = packed
        tensors[f"{EXPERTS}.{part}_scales"] = draw.integers(122, 127, shape, np.uint8)
    return tensors


def widened(packed, scales):
    """[X, in, out], number by number: the lower four bits come first."""
    experts, outputs, groups, size = packed.shape
    wide = np.zeros((experts, 2 * groups * size, outputs), np.float32)
    for expert, output, group, byte in np.ndindex(packed.shape):
        for half in (0, 1):
            bits = packed[expert, output, group, byte] >> 4 * half & 15
            value = VALUES[bits & 7] * (-1 if bits & 8 else 1)
            scale = 2.0 ** (int(scales[expert, output, group]) - 127)
            wide[expert, 2 * (group * size + byte) + half, output] = value * scale
    return wide


def test_mxfp4_is_read_number_by_number(fixtures, tmp_path):
    packed = blocks()
    wide = {
        f"{EXPERTS}.{part}": widened(
            packed[f"{EXPERTS}.{part}_blocks"], packed[f"{EXPERTS}.{part}_scales"]
        )
        for part in ("gate_up_proj", "down_proj")
    }
    small = gpt_oss(tmp_path / "small", fixtures, packed)
    describe(small, quantization_config={"quant_method": "mxfp4"})
    plain = gpt_oss(tmp_path / "wide", fixtures, wide)
    found, wanted = (jspec.models.load(one, with_tokenizer=False) for one in (small, plain))
    assert tiny.equal(found.params, wanted.params)


COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
BY_ROWS = {"num_bits": 8, "type": "float", "strategy": "channel"}
COMPRESSED |= {"config_groups": {"group_0": {"weights": BY_ROWS}}}


def test_float8_is_read_by_rows_and_by_matrices(fixtures, tmp_path):
    """By the names of several makers, whose scales of inputs and of memories are not weights."""
    low, wide = {}, {}
    draw = np.random.default_rng(0)
    for way in ("matrix", "scalar", "rows", "row"):
        low[way], wide[way] = {}, {}
        for name, weight in load_file(fixtures / "llama2" / shards.SINGLE).items():
            low[way][name] = wide[way][name] = weight
            if not in_float8(name):
                continue
            shape = {"matrix": (1,), "scalar": (), "rows": (len(weight), 1), "row": len(weight)}
            scales = draw.uniform(0.5, 2, shape[way]).astype(np.float32)
            low[way][name] = draw.normal(size=weight.shape).astype(ml_dtypes.float8_e4m3fn)
            low[way][f"{name}_scale"] = scales
            wide[way][name] = low[way][name].astype(np.float32) * scales.reshape(-1, 1)
    inputs = {
        "model.layers.0.mlp.up_proj.input_scale": np.ones(1, np.float32),
        "model.layers.0.self_attn.k_scale": np.ones(1, np.float32),
        "model.layers.0.self_attn.v_proj.v_scale": np.ones((), np.float32),
        "model.layers.1.self_attn.k_proj.output_scale": np.ones(1, np.float32),
    }
    modelopt = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    for given, file, way, renamed in (
        (COMPRESSED, None, "rows", "_scale"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, None, "matrix", "_scale"),
        ({"quant_method": "fp8", "weight_block_size": None}, None, "scalar", "_scale_inv"),
        ({"quant_method": "fbgemm_fp8"}, None, "row", "_scale"),
        ({"quant_method": "modelopt", **modelopt}, None, "scalar", "_scale"),
        (None, {"quantization": modelopt}, "scalar", "_scale"),
    ):
        found = shutil.copytree(fixtures / "llama2", tmp_path / "small", dirs_exist_ok=True)
        renames = {name: name.replace(".weight_scale", f".weight{renamed}") for name in low[way]}
        tensors = {renames[name]: tensor for name, tensor in low[way].items()}
        save(found / shards.SINGLE, tensors | inputs)
        plain = shutil.copytree(fixtures / "llama2", tmp_path / "wide", dirs_exist_ok=True)
        save_file(wide[way], plain / shards.SINGLE)
        describe(found, quantization_config=given)
        if file is not None:
            (found / "hf_quant_config.json").write_text(json.dumps(file))
        both = (jspec.models.load(folder, with_tokenizer=False) for folder in (found, plain))
        assert tiny.equal(*(loaded.params for loaded in both))
    (found / "hf_quant_config.json").unlink()
    with pytest.raises(jspec.InputError, match=r"holds quantised weights \(.*_scale\)"):
        jspec.models.load(found, with_tokenizer=False)
    # Scales of a memory alone.
    save(found / shards.SINGLE, wide[way] | dict([*inputs.items()][1:]))
    again = jspec.models.load(found, with_tokenizer=False)
    assert tiny.equal(again.params, jspec.models.load(plain, with_tokenizer=False).params)


SCALES = f"{EXPERTS}.down_proj_scales"
INTEGERS = {"config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}}


def test_misfits_are_refused(small, fixtures, tmp_path):
    def load(folder, quantised):
        describe(folder, quantization_config=quantised)
        jspec.models.load(folder, with_tokenizer=False)

    def load_blocks(name, change):
        held = change(blocks())
        load(gpt_oss(tmp_path / name, fixtures, held), {"quant_method": "mxfp4"})

    def other(quantised):
        folder = shutil.copytree(fixtures / "llama2", tmp_path / "llama2", dirs_exist_ok=True)
        load(folder, quantised)

    refusals.check([
        (lambda: load_blocks("a", lambda held: {n: held[n] for n in held if n != SCALES}),
         "has no scales"),
        (lambda: load_blocks("b", lambda held: held | {SCALES: np.zeros((4, 32, 2), "u1")}),
         r"shape \[4, 32, 1, 16\] and scales of shape \[4, 32, 2\]"),
        (lambda: load(small[0], FLOAT8 | {"weight_block_size": [8, 8]}),
         r"has scales of shape \[10, 2\], not \[5, 2\]"),
        (lambda: other({"bits": 4}), "asks for quantised weights .* supported: 'mxfp4', 'fp8', "),
        (lambda: other({"quant_method": "gptq", "bits": 4}), r"quantised weights \('gptq'\)"),
        (lambda: other({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
         r"\('modelopt', 'NVFP4'\)"),
        (lambda: other(COMPRESSED | INTEGERS), r"\('compressed-tensors', 'float-quantized'\)"),
        (lambda: other(COMPRESSED | {"format": "pack-quantized"}),
         r"\('compressed-tensors', 'pack-quantized'\)"),
        (lambda: other(FLOAT8 | {"fmt": "e5m2"}), "fmt = 'e5m2', which jspec does not implement"),
        (lambda: other(FLOAT8 | {"weight_block_size": [0, 8]}),
         r"weight_block_size = \[0, 8\]; it has to be two"),
        (lambda: other(FLOAT8 | {"weight_block_size": 8}),
         "weight_block_size = 8; it has to be a list of int"),
    ])  # fmt: skip
