"""Loading checkpoints, and the one sentence about each broken one."""

import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import jspec.models
from jspec._xla import backend, native
from jspec.memory import slots_dtype
from jspec.models import precision
from jspec.models.eight_bits import describe_dtypes
from jspec.models.huggingface import shards

WEIGHTS = shards.SINGLE
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def folder(fixtures, tmp_path):
    """A whole checkpoint that a test may break."""
    copy = shutil.copytree(fixtures / "llama2", tmp_path / "llama2")
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    words.enable_truncation(2)
    words.save(str(copy / "tokenizer.json"))
    return copy


def edit(folder, file="config.json", **fields):
    """Changes fields of a JSON file; None takes one away."""
    values = json.loads((folder / file).read_text()) | fields
    values = {name: value for name, value in values.items() if value is not None}
    (folder / file).write_text(json.dumps(values))


def reweigh(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def in_bfloat16(tensors):
    tensors.update({name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()})


def shard(folder):
    """The same weights in two files under an index."""
    names = sorted(tensors := load_file(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()
    where = {}
    for part in (0, 1):
        file = f"model-{part}.safetensors"
        save_file({name: tensors[name] for name in names[part::2]}, folder / file)
        where |= dict.fromkeys(names[part::2], file)
    (folder / shards.INDEX).write_text(json.dumps({"weight_map": where}))


def test_it_unpacks_to_three_and_names_the_special_tokens(folder):
    loaded = jspec.models.load(folder)
    model, params, tokenizer = loaded
    assert (model, tokenizer) == (loaded.model, loaded.tokenizer)
    assert params is loaded.params
    assert (loaded.eos, loaded.bos) == ((2,), 1)
    # A limit stored in tokenizer.json does not cut prompts.
    assert tokenizer.encode("w5", add_special_tokens=False).ids == [5]
    assert tokenizer.truncation is None


def test_end_tokens(folder):
    edit(folder, "generation_config.json", eos_token_id=[7, 9])
    assert jspec.models.load(folder).eos == (7, 9)
    (folder / "generation_config.json").unlink()
    assert jspec.models.load(folder).eos == (2,)
    edit(folder, eos_token_id=None, bos_token_id=None)
    loaded = jspec.models.load(folder)
    assert (loaded.eos, loaded.bos) == ((), None)
    # The tokenizer's own end is one more, and is not asked for without it.
    edit(folder, eos_token_id=[7, 9])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "w5"}}))
    assert jspec.models.load(folder).eos == (7, 9, 5)
    assert jspec.models.load(folder, with_tokenizer=False).eos == (7, 9)


def test_special_tokens_beyond_the_vocabulary_are_left_out(folder):
    """As small and pruned models have them, whose defaults nobody has corrected."""
    for file in ("config.json", "generation_config.json"):
        for ends, bos, kept in (
            (50256, 50256, ((), None)),
            ([2, 128009, -1], -1, ((2,), None)),
            ([63, 64], 63, ((63,), 63)),
        ):
            (folder / "generation_config.json").write_text("{}")
            edit(folder, file, eos_token_id=ends, bos_token_id=bos)
            loaded, planned = jspec.models.load(folder), jspec.models.shapes(folder)
            assert (loaded.eos, loaded.bos) == (planned.eos, planned.bos) == kept
        edit(folder, "config.json", eos_token_id=None, bos_token_id=None)


def test_the_mask_token_of_a_parallel_draft_model(folder):
    assert jspec.models.load(folder).mask_token_id is None
    edit(folder, pard_token=5, spd_type="pard")
    assert jspec.models.load(folder).mask_token_id == 5
    assert jspec.models.shapes(folder).mask_token_id == 5
    edit(folder, pard_token="<mask>")
    with pytest.raises(
        jspec.InputError, match="has pard_token = '<mask>'; it has to be a token id"
    ):
        jspec.models.load(folder)


def test_a_tensor_is_read_from_the_file_that_the_index_names(folder):
    """Whatever else is in the files, and in the folder."""
    whole, held = jspec.models.load(folder), load_file(folder / WEIGHTS)
    shard(folder)
    stale = {name: array + 1 for name, array in held.items()}
    first, second = (folder / f"model-{part}.safetensors" for part in (0, 1))
    for file, other in ((first, second), (second, first)):
        save_file(stale | {"a.new": held["lm_head.weight"]} | load_file(file), file)
        save_file(load_file(other), other)
        assert tiny.equal(jspec.models.load(folder).params, whole.params)
    # As in `transformers`, a whole file goes before an index of others.
    save_file(stale, folder / WEIGHTS)
    kept = jspec.models.load(folder).params["params"]["embed"]
    assert jnp.array_equal(kept, whole.params["params"]["embed"] + 1)
    # But not where it is one of those that the index names.
    index = json.loads((folder / shards.INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = WEIGHTS
    (folder / shards.INDEX).write_text(json.dumps(index))
    mixed = jspec.models.load(folder).params["params"]
    assert jnp.array_equal(mixed["embed"], whole.params["params"]["embed"])
    assert jnp.array_equal(mixed["norm"]["scale"], whole.params["params"]["norm"]["scale"] + 1)


def test_other_names_of_weights_a_copied_head_and_buffers_are_understood(fixtures, tmp_path):
    """As hub checkpoints of GPT-2 are: no prefix, causal masks, a copy of the embeddings."""
    folder = shutil.copytree(fixtures / "gpt2", tmp_path / "gpt2")
    whole = jspec.models.load(folder, with_tokenizer=False)

    def change(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
        tensors["h.0.attn.masked_bias"] = np.full(1, -1e4, np.float32)
        tensors["lm_head.weight"] = tensors["wte.weight"].copy()

    reweigh(folder, change)
    assert tiny.equal(whole.params, jspec.models.load(folder, with_tokenizer=False).params)
    reweigh(folder, lambda tensors: tensors["lm_head.weight"].fill(0))
    with pytest.raises(ValueError, match=r"lm_head.weight that differs from .*tie_word_embeddings"):
        jspec.models.load(folder, with_tokenizer=False)
    # Tied weights are found under either name.
    folder = shutil.copytree(fixtures / "llama_biases_grouped_tied", tmp_path / "tied")
    whole = jspec.models.load(folder, with_tokenizer=False)

    def rename(tensors):
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    reweigh(folder, rename)
    assert tiny.equal(whole.params, jspec.models.load(folder, with_tokenizer=False).params)


def test_weights_and_computation_have_their_own_dtypes(folder):
    exact = jspec.models.load(folder)
    mixed = jspec.models.load(folder, dtype="float32", param_dtype="bfloat16")
    half = jspec.models.load(folder, dtype=jnp.bfloat16)
    assert [describe_dtypes(m.model) for m in (exact, mixed, half)] == [
        "float32", "float32, weights in bfloat16", "bfloat16",
    ]  # fmt: skip
    assert {leaf.dtype for leaf in jax.tree.leaves(mixed.params)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype("bfloat16")}
    assert mixed.model.init_memory(1, 4).keys[0].dtype == jnp.float32
    assert half.model.init_memory(1, 4).keys[0].dtype == slots_dtype(jnp.bfloat16)
    tokens = np.arange(12).reshape(1, 12)
    logits = [tiny.forward(m.model, m.params, tokens).logits for m in (exact, mixed, half)]
    assert {array.dtype for array in logits} == {jnp.dtype("float32")}
    # What the weights lose is seen in both; the activations lose more.
    spread = float(logits[0].std())
    assert 0 < float(jnp.abs(logits[1] - logits[0]).max()) < 0.1 * spread
    assert 0 < float(jnp.abs(logits[2] - logits[0]).max()) < 0.3 * spread


def test_bfloat16_files_are_read_without_loss(folder):
    reweigh(folder, in_bfloat16)
    wide = jspec.models.load(folder, dtype="float32").params
    kept = jspec.models.load(folder, dtype="float32", param_dtype="bfloat16").params
    assert tiny.equal(wide, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), kept))


def test_weights_stay_as_the_file_has_them_where_kernels_widen_them(fixtures, tmp_path):
    folder = shutil.copytree(fixtures / "llama2", tmp_path / "held")
    reweigh(folder, in_bfloat16)
    held = "float32" if native.instruction_set() is None else "bfloat16"
    for file, dtype, wanted in (
        (folder, None, held),
        (folder, "float16", "float16"),
        (fixtures / "llama2", None, "float32"),
    ):
        found = jspec.models.load(file, dtype, "auto", with_tokenizer=False)
        assert jnp.dtype(found.model.param_dtype).name == wanted
    rounded = jspec.models.load(folder, "int8", with_tokenizer=False).params["params"]["embed"]
    assert rounded.dtype == held, "embeddings and head, where layers are rounded"
    with native.disable():
        assert (
            jspec.models.load(folder, None, "auto", with_tokenizer=False).model.param_dtype
            == jnp.float32
        )


def test_the_default_dtype_follows_the_device(monkeypatch):
    for platform, name in {"cpu": "float32", "gpu": "bfloat16", "tpu": "bfloat16"}.items():
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        assert precision.default() == name


def test_scanned_layers_are_warned_of_on_a_gpu(folder):
    with backend.plan_for("gpu"), pytest.warns(UserWarning, match="scan_layers copies the weights"):
        jspec.models.load(folder, scan_layers=True)


def test_older_tokenizers_are_converted(folder):
    """GPT-2 and OPT checkpoints come with vocab.json and merges.txt alone."""
    pytest.importorskip("transformers")
    (folder / "tokenizer.json").unlink()
    edit(folder, model_type="gpt2", architectures=["GPT2LMHeadModel"])
    letters = {letter: i for i, letter in enumerate(["<|endoftext|>", *"abc", "ab"])}
    (folder / "vocab.json").write_text(json.dumps(letters))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    found = jspec.models.tokenizer.read(folder)
    assert found.encode("abc").ids == [4, 3]


UNKNOWN = "supported: 'default', .*'llama3'"
BROKEN = [
    (lambda f: (f / "config.json").unlink(), "has no config.json; name a folder"),
    (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "has to be a JSON object"),
    (lambda f: (f / "config.json").write_text("[" * 10**5), "as JSON .nested too deep.*; restore"),
    (lambda f: (f / "generation_config.json").write_text('{"a":' * 10**5), "nested too deep"),
    *((lambda f, count=count: edit(f, num_hidden_layers=count),
       f"num_hidden_layers = {count}; it has to be at most 8192")
      for count in (10**6, 10**12, 10**30)),
    (lambda f: edit(f, architectures=["MambaForCausalLM"]),
     "'MambaForCausalLM'; supported: LlamaForCausalLM, .*GPT2LMHeadModel"),
    (lambda f: edit(f, architectures=["LlamaForSequenceClassification"]),
     "'LlamaForSequenceClassification'; supported"),
    (lambda f: edit(f, hidden_size=None), "no field 'hidden_size'; add it"),
    (lambda f: edit(f, vocab_size=-1), "vocab_size = -1; .* at least 1"),
    (lambda f: edit(f, num_key_value_heads=3), "num_key_value_heads = 3, .* divide 4"),
    (lambda f: edit(f, hidden_act="tanh"), "hidden_act = 'tanh'.*supported: .*'silu'"),
    (lambda f: edit(f, rope_parameters={"rope_type": "axial", "factor": 4.0}),
     f"rope_type = 'axial'.*{UNKNOWN}"),
    (lambda f: edit(f, rope_parameters=None, rope_scaling={"type": "axial", "factor": 2.0}),
     f"type = 'axial'.*{UNKNOWN}"),
    (lambda f: edit(f, quantization_config={"bits": 4}), "asks for quantised weights"),
    (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-100]),
     r"\d+ bytes\) is not a whole safetensors file"),
    (lambda f: (f / WEIGHTS).write_bytes(b""), r"\(0 bytes\) is not a whole safetensors"),
    (lambda f: (f / WEIGHTS).write_bytes(b"\xff" * 5000), r"\(5000 bytes\) is not a whole safet"),
    (lambda f: (f / WEIGHTS).unlink(), f"has no weights; it needs {WEIGHTS}"),
    (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"),
     r"as pickle \(pytorch_model.bin\).*is never loaded; convert it"),
    (lambda f: reweigh(f, lambda t: t.pop("model.norm.weight")), r"lacks 1 weight \(model.norm.we"),
    (lambda f: edit(f, num_hidden_layers=3),
     r"lacks 9 weights \(model.layers.2.input_layernorm.weight, .*, .*, ...\) that its config"),
    (lambda f: edit(f, num_hidden_layers=1),
     r"holds 9 weights \(model.layers.1.*\) that LlamaForCausalLM has no place for"),
    (lambda f: edit(f, intermediate_size=48),
     r"gate_proj.weight in .* has shape \[32, 16\], .* asks for \[48, 16\]; correct one"),
    (lambda f: reweigh(f, lambda t: t.update({"model.norm.weight": np.ones(16, np.int8)})),
     "model.norm.weight in .* holds I8; supported: F64, F32, F16, BF16"),
    (lambda f: reweigh(f, lambda t: t[UP].__setitem__((3, 2), np.nan)),
     "layers.0.mlp.up_proj.weight in .* holds numbers that are not finite; download"),
    (lambda f: (shard(f), (f / "model-1.safetensors").unlink()),
     "lacks 1 of the files that its .*, the first being model-1.safetensors"),
    (lambda f: ((f / WEIGHTS).unlink(),
                (f / shards.INDEX).write_text('{"weight_map": {"a": "' + "x" * 5000 + '"}}')),
     "lacks 1 of the files"),
    (lambda f: (shard(f), save_file({}, f / "model-1.safetensors")),
     r"lacks \d+ of the tensors that its .*, which is not in model-1.safetensors"),
    (lambda f: (f / "tokenizer.json").unlink(),
     "has no tokenizer; add tokenizer.json, or load with with_tokenizer=False"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json is not a tokenizer"),
    (lambda f: edit(f, "generation_config.json", eos_token_id=["</s>"]),
     r"eos_token_id = \['</s>'\]; it has to be token ids"),
    (lambda f: edit(f, "generation_config.json", eos_token_id=True),
     "eos_token_id = True; it has to be token ids"),
    (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"),
     r"chat_template.jinja is not UTF-8 text \(byte 0\)"),
]  # fmt: skip


def test_broken_checkpoints_are_refused_in_one_sentence(folder, tmp_path):
    for number, (damage, message) in enumerate(BROKEN):
        broken = shutil.copytree(folder, tmp_path / str(number))
        damage(broken)
        with pytest.raises(ValueError, match=message) as caught:
            jspec.models.load(broken)
        assert "\n" not in str(caught.value)


def test_numbers_that_a_dtype_has_no_room_for_are_refused(folder):
    reweigh(folder, lambda tensors: tensors[UP].__setitem__((3, 2), 1e6))
    with pytest.raises(ValueError, match="numbers too large for float16; load it in bfloat16 or"):
        jspec.models.load(folder, "float16")
    mesh = jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    with pytest.raises(ValueError, match="numbers too large for float16"):
        jspec.models.load(folder, "float16", mesh=mesh)
    assert jspec.models.load(folder, "bfloat16").model.dtype == jnp.bfloat16


def test_unknown_dtypes_and_paths_that_are_not_there_are_refused(folder):
    for dtype in ("float31", "int32", object, "\ud800", "f4,(", "x" * 10**5, [1]):
        with pytest.raises(ValueError, match="is unknown; use one of float32, bfloat16"):
            jspec.models.load(folder, dtype=dtype)
    for name in ("/no/such/folder", "./here", "a/b/c", "~/nowhere/model"):
        with pytest.raises(ValueError, match="is not a folder; name an existing one, or a hub id"):
            jspec.models.load(name)
    with pytest.raises(ValueError, match="is a file; name the folder"):
        jspec.models.load(folder / WEIGHTS)


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch):
    """And it is asked for what lies in the folder alone."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    def absent(*_, **asked):
        assert not any("bin" in pattern or pattern == "*" for pattern in asked["allow_patterns"])
        patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
        names = ["model.safetensors", "original/model.safetensors", "tokenizer.json", "a.bin"]
        names += ["consolidated.safetensors", "adapter_model.safetensors"]
        names += ["models/model.safetensors", "tokenizer/tokenizer.json"]
        template = "additional_chat_templates/tool_use.jinja"
        taken = list(filter_repo_objects([*names, template], **patterns))
        assert taken == ["model.safetensors", "tokenizer.json", template]
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    with pytest.raises(ValueError, match=r"org/model .*\(no network\); name an existing folder"):
        jspec.models.load("org/model")
    with pytest.raises(ValueError, match=r"a bundled model \(jspec-7m, .*mean smollm2-135m\?"):
        jspec.models.load("SmolLM2-135M")


def test_files_of_an_index_with_other_names_are_downloaded_too(monkeypatch, folder):
    import huggingface_hub

    shard(folder)
    for part in (0, 1):
        (folder / f"model-{part}.safetensors").rename(folder / f"part-{part}.safetensors")
    index = json.loads((folder / shards.INDEX).read_text().replace("model-", "part-"))
    (folder / shards.INDEX).write_text(json.dumps(index))
    (kept := folder.parent / "kept").mkdir()
    (folder / "part-1.safetensors").rename(kept / "part-1.safetensors")
    asked = []

    def give(*_, allow_patterns, **__):
        asked.append(allow_patterns)
        if "part-1.safetensors" in allow_patterns:
            (kept / "part-1.safetensors").rename(folder / "part-1.safetensors")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", give)
    jspec.models.load("org/model", with_tokenizer=False)
    assert asked[1:] == [["part-1.safetensors"]]
