"""Weights in GGUF's blocks, kept byte for byte and multiplied exactly."""

import shutil
import sys
from dataclasses import replace

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import refusals
import tiny
import tiny_gguf

import jspec
from jspec._xla import backend, native
from jspec.models import blocks, checkpoint, export, linear
from jspec.models.fingerprint import fingerprint

KINDS = tuple(blocks.SIZES)
there = pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))


def drawn(kind, outputs, inputs):
    """Weights in blocks, some with scales that are subnormal in float16, and in float64."""
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(outputs, inputs)) * draw.choice([1e-6, 1e-3, 1], (outputs, 1))
    stored = gguf.GGMLQuantizationType[kind.upper()]
    packed = tiny_gguf.quantise(weights, stored)
    if kind in blocks.FROM_FILES:
        first = packed.reshape(-1, blocks.SIZES[kind])[0]
        for at in tiny_gguf.SCALES[stored]:
            first[at : at + 2] = np.float16([3e-7]).view(np.uint8)
    wide = gguf.quants.dequantize(packed, stored)
    return packed, wide.reshape(outputs, inputs), draw.normal(size=(20, inputs)).astype(np.float32)


def kinds(*shapes):
    """All kinds times all shapes, of which each shape has one kind in the quick tests."""
    cases = []
    for one, kind in enumerate(KINDS):
        length = blocks.FROM_FILES.get(kind, 1)
        for two, (outputs, inputs) in enumerate(shapes):
            slow = [pytest.mark.slow] if (one + two) % 3 else []
            cases += [pytest.param(kind, outputs, -(-inputs // length) * length, marks=slow)]
    return pytest.mark.parametrize(("kind", "outputs", "inputs"), cases)


@kinds((1, 32), (7, 64), (97, 576), (24, 1600))
def test_products_are_those_of_the_weights_that_the_bytes_say(kind, outputs, inputs):
    packed, wide, x = drawn(kind, outputs, inputs)
    np.testing.assert_array_equal(blocks.dequantise(packed, kind), wide)
    held = blocks.Blocks(jnp.asarray(packed), kind, jnp.float32)
    wanted = x.astype(np.float64) @ wide.astype(np.float64).T
    bound = 2e-6 * np.abs(wanted).max() * inputs**0.5
    np.testing.assert_allclose(jax.jit(linear.multiply)(x, held), wanted, atol=bound)
    with native.disable():
        np.testing.assert_allclose(jax.jit(linear.multiply)(x, held), wanted, atol=bound)
    # The negative control: a scale that is read as another.
    other = packed.copy()
    other[:, 209 if kind == "q6_k" else 1] ^= 4
    held = blocks.Blocks(jnp.asarray(other), kind, jnp.float32)
    assert np.abs(linear.multiply(x, held) - wanted).max() > bound


def in_tiles(kind):
    return native.instruction_set() == "AMX" and kind not in blocks.FROM_FILES


@there
@kinds((7, 32), (50, 576), (7, 96))
def test_kernels_multiply_by_the_weights_in_float32_and_a_rows_bits_are_its_own(
    kind, outputs, inputs
):
    """The bits are equal, but for tiles: they come as near to exact sums as float32."""
    packed, wide, x = drawn(kind, outputs, inputs)
    x[3], x[5, 0], x[6] = 0, 1e6, 1e-36
    held = blocks.Blocks(jnp.asarray(packed), kind, jnp.float32)
    several = blocks.Blocks(jnp.stack([held.packed[::-1], held.packed]), kind, jnp.float32)
    run = jax.jit(linear.multiply)
    whole = np.asarray(run(x, held))
    if in_tiles(kind):
        # Each block leaves 2^-24 of its largest number, and float32 as much of each sum.
        left, right = x.astype(np.float64), np.asarray(wide, np.float64)
        largest = np.abs(left).reshape(len(x), -1, 32).max(-1).repeat(32, -1)
        bound = 2.0**-22 * (largest @ np.abs(right).T) + 1e-30
        assert (np.abs(whole - left @ right.T) <= bound).all()
        # The negative control: with two pieces of the three 2^-16 is left.
        cut = np.rint(left / largest.clip(1e-30) * 127 * 254) / 127 / 254 * largest
        assert (np.abs(cut @ right.T - left @ right.T) > bound).any()
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17):
        found = np.asarray(run(x[:rows], held))
        np.testing.assert_array_equal(found, whole[:rows])
        np.testing.assert_array_equal(run(x[:rows], several, jnp.int32(1)), found)
        if not in_tiles(kind):
            wanted = np.asarray(linear.product(x[:rows], wide))
            np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def rounded_by_hand(x, packed, kind, length):
    """Each `length` numbers of a row in 127ths of their largest; blocks one by one in float32."""
    x, whole = x.reshape(len(x), -1, length), np.float32(127)
    largest = np.abs(x).max(-1, keepdims=True)
    states = np.rint(x * (whole / np.where(largest, largest, 1))).reshape(len(x), -1, blocks.LENGTH)
    scales = np.broadcast_to(largest * np.float32(1 / 127), x.shape).reshape(states.shape)[..., :1]
    steps, factors, added = (None if part is None else np.asarray(part, np.float32)
                             for part in blocks.parts(jnp.asarray(packed), kind))  # fmt: skip
    found = np.zeros((len(x), len(packed)), np.float32)
    for block in range(states.shape[1]):
        sums = states[:, block].astype(np.int64) @ steps[:, block].astype(np.int64).T
        found += sums.astype(np.float32) * (scales[:, block] * factors[:, block].T)
        if added is not None:
            total = states[:, block].sum(-1, keepdims=True).astype(np.float32)
            found += added[:, block].T * (scales[:, block] * total)
    return found


@kinds((16, 32), (50, 96), (97, 576))
def test_rounded_activations_have_the_same_bits_by_hand_by_kernels_and_by_xla(
    kind, outputs, inputs
):
    packed, _, x = drawn(kind, outputs, inputs)
    x[3], x[4, 0], x[5] = 0, 1e6, 127
    held = blocks.Blocks(jnp.asarray(packed), kind, jnp.float32, rounds_states=True)
    run = jax.jit(linear.multiply)
    wanted = rounded_by_hand(x, packed, kind, blocks.LENGTH)
    found = run(x, held)
    np.testing.assert_array_equal(*(np.asarray(y).view(np.uint32) for y in (found, wanted)))
    for rows in (1, 7, 9):
        np.testing.assert_array_equal(run(x[:rows], held), wanted[:rows])
    bad = x.copy()
    bad[2, 1], others = np.nan, np.arange(20) != 2
    found = np.asarray(run(bad, held))
    assert np.isnan(found[2]).all() and (found[others] == wanted[others]).all()
    with native.disable():
        several = blocks.Blocks(jnp.stack([held.packed] * 2), kind, jnp.float32, True)
        np.testing.assert_array_equal(jax.jit(linear.multiply)(x, several, jnp.int32(1)), wanted)
    # The negative control: rounded by rows, where there are several blocks.
    assert inputs == 32 or (rounded_by_hand(x, packed, kind, inputs) != wanted).any()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose rows fill blocks, but for one product's; its head is its own."""
    model = tiny.model(hidden_size=64, head_dim=16, intermediate_size=112, tied=False)
    where = tmp_path_factory.mktemp("model")
    export.save_hf(model, tiny.params(model, scale=4), where, dtype="float32")
    return where


ROUNDED_TO = [kind for kind in KINDS if kind not in blocks.FROM_FILES]
QUICK = pytest.mark.parametrize("kind", quick.only(ROUNDED_TO, ROUNDED_TO[0]))


@QUICK
def test_a_gguf_file_is_kept_as_it_is(kind, folder, tmp_path):
    stored = gguf.GGMLQuantizationType[kind.upper()]
    file = tiny_gguf.convert(folder, tmp_path / "model.gguf", stored)
    kept = jspec.models.load(file, kind, with_tokenizer=False)
    described = jax.tree.map(lambda x: (x.shape, x.dtype), checkpoint.shapes(kept.model))
    assert described == jax.tree.map(lambda x: (x.shape, x.dtype), kept.params)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    layer = kept.params["params"]["layers_0"]
    gate = tensors["blk.0.ffn_gate.weight"].data
    np.testing.assert_array_equal(layer["gate_up"]["weight"][: len(gate)], gate)
    assert layer["down"]["weight"].dtype == jnp.float32, "112 weights fill no blocks"
    own = jspec.models.load(file, param_dtype="auto", with_tokenizer=False)
    assert own.model.param_dtype == (kind if native.instruction_set() else jnp.float32)
    wide = jspec.models.load(file, "float32", with_tokenizer=False)
    params = wide.params["params"]
    # In Q4_1 the file's own tables are in blocks that load as Q8_0.
    assert (fingerprint(kept.params, kept.model) == fingerprint(wide.params)) == (kind != "q4_1")
    assert fingerprint(kept.params, kept.model) != fingerprint(kept.params)
    tables = {name: blocks.table(kept.params["params"][name], 64) for name in ("embed", "head")}
    if kind != "q4_1":  # which is rounded to 8 bits in tables
        for name, table in tables.items():
            np.testing.assert_array_equal(table, params[name])
    tokens = np.arange(12).reshape(1, 12) % tiny.VOCAB
    found = tiny.forward(kept.model, kept.params, tokens).logits
    wanted = tiny.forward(wide.model, {"params": params | tables}, tokens).logits
    if native.instruction_set() and not in_tiles(kind):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_a_gpu_holds_blocks_where_bfloat16_does_not_fit(folder, tmp_path, monkeypatch):
    file = tiny_gguf.convert(folder, tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0)

    def held(path, **options):
        with backend.plan_for("gpu"):
            found = jspec.models.load(path, with_tokenizer=False, **options)
        assert found.model.dtype == jnp.bfloat16
        return found.model.param_dtype

    with pytest.warns(UserWarning, match=r"is in q8_0 and is held in bfloat16, .* dtype q8_0"):
        assert held(file, param_dtype="auto") == jnp.bfloat16
    monkeypatch.setattr(sys.modules["jspec.models.load"], "_room", lambda: 100_000)
    with pytest.warns(UserWarning, match=r"stays so: in bfloat16 its weights take .* of 0.0001 GB"):
        assert held(file, param_dtype="auto") == "q8_0"
    # Nothing is said of what was asked for, or is in no blocks.
    assert held(file, dtype="q8_0") == "q8_0"
    assert held(folder, param_dtype="auto") == jnp.bfloat16


K = gguf.GGMLQuantizationType
MIXED = {
    "token_embd": K.Q6_K, "0.attn_v": K.Q6_K, "0.ffn_down": K.Q6_K,
    "1.attn_q": K.Q5_K, "1.attn_k": K.Q5_0,
    "1.ffn_gate": K.Q8_0, "1.ffn_up": K.Q4_0, "1.attn_output": K.F16,
}  # fmt: skip
"""Formats of tensors that are not in Q4_K."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A file of several formats like Q4_K_M; no kernel knows some of them."""
    where = tmp_path_factory.mktemp("mixed")
    model = tiny.model(hidden_size=256, head_dim=64, intermediate_size=256, tied=False)
    export.save_hf(model, tiny.params(model, scale=4), where / "folder", dtype="float32")
    return tiny_gguf.convert(where / "folder", where / "model.gguf", K.Q4_K, others=MIXED)


def test_each_matrix_of_a_mixed_file_stays_as_it_is(mixed, tmp_path):
    kept = jspec.models.load(mixed, "q4_k", with_tokenizer=False)
    params, wide = kept.params["params"], jspec.models.load(mixed, "float32", with_tokenizer=False)
    # A product whose parts are in several formats has an array for each.
    assert fingerprint(kept.params, kept.model) != fingerprint(wide.params, wide.model)

    def formats(path, width=256):
        layer, product = path.split("/")
        parts = [params[layer][product].get(name) for name in ("weight", "weight_1", "weight_2")]
        return [
            blocks.kind_of(part.shape[-1], width) if part.dtype == jnp.uint8 else part.dtype.name
            for part in parts
            if part is not None
        ]

    assert formats("layers_0/qkv") == ["q4_k", "q6_k"]
    assert formats("layers_1/qkv") == ["float32", "q8_0", "q4_k"], "Q5_K is in no kernel"
    assert formats("layers_0/down") == ["q6_k"] and formats("layers_1/down") == ["q4_k"]
    assert formats("layers_1/gate_up") == ["q8_0"], "which holds Q4_0's and Q5_0's weights"
    assert formats("layers_1/output") == ["float32"]
    for name, kind in (("embed", "q6_k"), ("head", "q4_k")):
        assert blocks.kind_of(params[name].shape[-1], 256) == kind
        wanted = wide.params["params"][name]
        np.testing.assert_array_equal(blocks.table(params[name], 256), wanted)
    own = jspec.models.load(mixed, param_dtype="auto", with_tokenizer=False)
    assert own.model.param_dtype == ("q4_k" if native.instruction_set() else jnp.float32)
    tokens = np.arange(12).reshape(1, 12) % tiny.VOCAB

    def logits(loaded):
        return tiny.forward(loaded.model, loaded.params, tokens).logits

    found, wanted = logits(kept), logits(wide)
    if native.instruction_set() and not in_tiles("q8_0"):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    rounded = jspec.models.load(mixed, "q4_ka8", with_tokenizer=False)
    assert tiny.equal(rounded.params, kept.params)
    assert (logits(rounded) != wanted).any()
    parts = params["layers_0"]["qkv"]["weight"], params["layers_0"]["qkv"]["weight_1"]
    held = tuple(blocks.as_held(part, 256, "q4_k", jnp.float32, True) for part in parts)
    x = np.random.default_rng(0).normal(size=(5, 256)).astype(np.float32)
    natively = jax.jit(linear.multiply)(x, held)
    with native.disable():
        np.testing.assert_array_equal(jax.jit(linear.multiply)(x, held), natively)
    with pytest.raises(jspec.InputError, match="blocks of several formats, which is not saved"):
        jspec.models.save(tmp_path / "saved", kept.model, kept.params)


def _logits(loaded, tokens):
    return tiny.forward(loaded.model, loaded.params, tokens).logits


@there
@pytest.mark.parametrize("kind", ["w8a8", pytest.param("int8", marks=pytest.mark.slow)])
def test_tables_stay_in_their_files_numbers_where_layers_are_rounded(kind, mixed, tmp_path):
    """The same logits by fewer bytes, and saved as numbers."""
    own = jspec.models.load(mixed, kind, with_tokenizer=False)
    held = own.params["params"]
    assert (blocks.kind_of(held["embed"].shape[-1], 256), held["head"].dtype) == ("q6_k", np.uint8)
    wide = {name: blocks.table(held[name], 256) for name in ("embed", "head")}
    as_numbers = replace(own, params={"params": held | wide})
    tokens = np.arange(12).reshape(1, 12) % tiny.VOCAB
    found, wanted = (_logits(one, tokens) for one in (own, as_numbers))
    np.testing.assert_array_equal(found, wanted)
    jspec.models.save(tmp_path / "saved", own.model, own.params)
    again = replace(own, params=jspec.models.restore(tmp_path / "saved")[1])
    assert again.params["params"]["embed"].dtype == jnp.float32
    np.testing.assert_array_equal(_logits(again, tokens), wanted)


def test_blocks_that_cannot_be_kept_are_refused_in_a_sentence(mixed, folder, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(mixed.read_bytes()[:-100])  # in a block of the last matrix
    odd = tiny_gguf.convert(folder, tmp_path / "odd.gguf", K.Q8_0)
    infinite = tmp_path / "infinite.gguf"
    gate = next(one for one in gguf.GGUFReader(odd).tensors if one.name == "blk.0.ffn_gate.weight")
    shutil.copy(odd, infinite)
    with open(infinite, "r+b") as file:
        file.seek(gate.data_offset + 34)  # the second block's scale
        file.write(np.float16([np.inf]).tobytes())
    load = jspec.models.load
    refusals.check([
        (lambda: load(folder, "q4_k"), "nothing is rounded to q4_k, and .* in no blocks; load"),
        (lambda: load(odd, "q4_k"), "the matrices of .*odd.gguf are in q8_0; .* or use q8_0"),
        (lambda: load(mixed, "q6_ka8"), "rounded to q6_k, and .* in q4_k; .* or use q4_k"),
        (lambda: load(mixed, "q5_k"), "'q5_k' is unknown; .* q4_k, q6_k"),
        (lambda: load(mixed, "q4_k", scan_layers=True), "scan_layers and a mesh need layers that"),
        (lambda: blocks.pack(np.ones((1, 256)), "q6_k"), "no weights are rounded to q6_k; load"),
        (lambda: load(infinite, "q8_0", with_tokenizer=False), "numbers that are not finite; down"),
        (lambda: load(cut, "q4_k", with_tokenizer=False), r"ends at byte \d+ and .* reaches to"),
    ])  # fmt: skip


@QUICK
def test_a_folder_is_rounded_and_saved(kind, folder, tmp_path):
    loaded = jspec.models.load(folder, kind, with_tokenizer=False)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(loaded.params))
    whole = jspec.models.load(folder, "float32", with_tokenizer=False)
    assert size < 0.45 * sum(leaf.nbytes for leaf in jax.tree.leaves(whole.params))
    wide = blocks.dequantise(loaded.params["params"]["layers_0"]["qkv"]["weight"], kind)
    exact = whole.params["params"]["layers_0"]["qkv"]["weight"]
    step = np.abs(exact).max() / (127 if kind == "q8_0" else 7)
    assert 0 < np.abs(wide - exact).max() <= step
    jspec.models.save(tmp_path / "model", loaded.model, loaded.params)
    again, held = jspec.models.restore(tmp_path / "model")
    assert again == loaded.model
    assert tiny.equal(held, loaded.params)
