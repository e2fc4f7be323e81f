"""Trained heads through the disk, and the heads that a target must refuse."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec.models
from jspec.models import heads
from jspec.models.fingerprint import fingerprint
from jspec.models.heads import registry, store
from jspec.models.heads.eagle import EAGLEConfig, EAGLEHead
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead
from jspec.models.heads.medusa import MedusaConfig
from jspec.models.rope import RopeScaling

SCALING = RopeScaling(8.0, 1.0, 4.0, 64)


def loaded(seed=0, **changes) -> jspec.models.Loaded:
    model = tiny.model(**changes)
    return jspec.models.Loaded(model, tiny.params(model, seed), None, (), None)


TARGET = loaded()
SHAPE = dataclasses.replace(TARGET.model.config, num_layers=1, rope_scaling=SCALING)
GIVEN = dataclasses.asdict(SHAPE) | {"rope_scaling": SCALING}
EAGLE, LYANNA = EAGLEConfig(**GIVEN), LyannaConfig(**GIVEN, hot_tokens=7)
HEADS = {
    "block": tiny.block(),
    "eagle": EAGLEHead(EAGLE),
    "lyanna": LyannaHead(LYANNA),
    "medusa": tiny.medusa(num_heads=2),
}


def weights(head, seed=0):
    """Other than those that a head begins with, integers but for their order."""
    wanted = {name: leaves for name, leaves in registry.shapes(head).items() if name != "target"}
    leaves, tree = jax.tree.flatten(wanted)
    draw = np.random.default_rng(seed)
    whole = [jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in leaves]
    drawn = [draw.permutation(leaf.size) if integers else draw.normal(size=leaf.shape)
             for leaf, integers in zip(leaves, whole, strict=True)]  # fmt: skip
    return jax.tree.map(lambda leaf, x: jnp.asarray(x, leaf.dtype), wanted, tree.unflatten(drawn))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "runs" / "medusa"
    head = HEADS["medusa"]
    heads.save(path, head, weights(head), TARGET, {"steps": 3, "text": ["a", "b"]})
    return path


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_survives_the_disk_and_is_ready_to_decode_with(kind, tmp_path):
    head = HEADS[kind]
    variables = weights(head)
    derived = {"table": {"info": jnp.zeros(3)}, "target": {"embed": jnp.zeros(1)}}
    heads.save(tmp_path / "head", head, variables | derived, TARGET)
    found, held = heads.read_variables(tmp_path / "head", TARGET, only=kind)
    assert found == head
    assert hash(found) == hash(head)
    target = held.pop("target")
    assert jax.tree.structure(held) == jax.tree.structure(variables)
    for one, other in zip(jax.tree.leaves(held), jax.tree.leaves(variables), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    # The target's own buffers, whether or not its head is its embedding.
    params = TARGET.params["params"]
    assert all(array is params[name] for name, array in target.items())
    assert set(target) == (set() if kind == "medusa" else {"embed", "head"})
    asked = {"target": {}} | registry.shapes(head)
    assert jax.tree.structure(asked) == jax.tree.structure(held | {"target": target})
    loaded, read = heads.load(tmp_path / "head", TARGET), held | {"target": target}
    tapped = dataclasses.replace(TARGET, model=registry.with_taps(TARGET.model, head))
    assert (loaded.head, loaded.target) == (found, tapped)
    assert tuple(loaded) == (loaded.head, loaded.params, loaded.target)
    params = dict(loaded.params)
    # Lyanna's token info is in a table, which reads as what it was computed from does.
    assert ("table" in params) == (kind == "lyanna")
    if kind == "lyanna":
        inputs = jnp.zeros((1, 23, 23)), jnp.arange(23)[None]
        informed = (head.inform(one, *inputs) for one in (params, read))
        np.testing.assert_allclose(*informed, rtol=1e-6)
        del params["table"]
    assert jax.tree.structure(params) == jax.tree.structure(read)


@pytest.mark.parametrize("held", [jnp.int8, "w8a8"])
def test_a_head_of_8_bit_weights_is_wide(held, tmp_path):
    head = HEADS["eagle"]
    narrow = dataclasses.replace(TARGET, model=TARGET.model.clone(param_dtype=held))
    heads.save(tmp_path / "head", head, weights(head), narrow)
    found, variables = heads.read_variables(tmp_path / "head", narrow)
    assert found == head
    wanted = weights(head)["params"]
    assert tiny.equal(variables["params"], wanted)


def test_medusa_heads_of_hot_tokens_are_their_blocks_alone(tmp_path):
    head = tiny.medusa(num_heads=2, hot_tokens=7)
    variables = weights(head)
    heads.save(tmp_path / "head", head, variables, TARGET)
    assert variables["params"].keys() == {"block_0_0", "block_1_0"}
    found, params, _ = heads.load(tmp_path / "head", TARGET)
    assert found == head
    # Decoding reads rows that were gathered once, and training gathers them itself.
    assert params["hot"]["head"].shape == (7, 16)
    np.testing.assert_array_equal(found.scored(params), variables["scored"]["ids"])
    assert params["target"].keys() == {"head"}
    bare = {name: part for name, part in params.items() if name != "hot"}
    state = jnp.ones((1, 1, 16))
    np.testing.assert_allclose(found.apply(params, state), found.apply(bare, state), rtol=1e-6)
    with pytest.raises(ValueError, match="hot_tokens of the Medusa heads is 24; use at most the"):
        MedusaConfig(tiny.VOCAB, 16, hot_tokens=24)


def test_a_tied_target_lends_its_embedding_as_head():
    target = loaded(tied=True)
    lent = heads.borrow(HEADS["eagle"], target.params)
    assert lent["head"] is lent["embed"] is target.params["params"]["embed"]
    wide = loaded(hidden_size=20)
    with pytest.raises(ValueError, match=r"embed as \[23, 16\] and this target's has .*\[23, 20\]"):
        heads.borrow(HEADS["eagle"], wide.params)


def test_the_record_says_how_it_was_trained_and_the_file_keeps_its_dtype(tmp_path):
    head = HEADS["medusa"].clone(param_dtype=jnp.bfloat16)
    heads.save(tmp_path / "head", head, weights(head), TARGET, {"steps": 3})
    record = json.loads((tmp_path / "head" / store.RECORD).read_text())
    assert record["training"] == {"steps": 3}
    assert record["config"] == {
        "vocab_size": 23, "hidden_size": 16, "num_heads": 2, "num_layers": 1, "hot_tokens": 0
    }  # fmt: skip
    size = sum(leaf.size for leaf in jax.tree.leaves(weights(head)))
    assert (tmp_path / "head" / store.WEIGHTS).stat().st_size < 2 * size + 2000
    _, held, _ = heads.load(tmp_path / "head", TARGET)
    assert {leaf.dtype for leaf in jax.tree.leaves(held)} == {jnp.dtype("float32")}
    found, held, _ = heads.load(tmp_path / "head", TARGET, dtype="bfloat16")
    assert found == head
    assert {leaf.dtype for leaf in jax.tree.leaves(held)} == {jnp.dtype("bfloat16")}


def test_the_fingerprint_tells_weights_and_not_their_dtype():
    ours = fingerprint(TARGET.params)
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), TARGET.params)
    assert fingerprint(narrow) == ours
    assert fingerprint(jax.device_get(TARGET.params)) == ours
    assert fingerprint(loaded(seed=1).params) != ours
    # One leaf among all, or one name.
    params = TARGET.params["params"]
    changed = params | {"norm": {"scale": params["norm"]["scale"] * 1.01}}
    assert fingerprint({"params": changed}) != ours
    named = params | {"other": params["norm"]}
    del named["norm"]
    assert fingerprint({"params": named}) != ours


def test_a_head_of_another_target_or_kind_is_refused(folder):
    for target, why in (
        (loaded(seed=1), r"other weights \(fingerprint \w{8}, and this target's is \w{8}\)"),
        (loaded(vocab_size=29), "for a vocabulary of 23 tokens and the target has 29"),
        (loaded(hidden_size=20), "reads states of width 16 and the target's have 20"),
        (dataclasses.replace(TARGET, model=TARGET.model.clone(taps=(0, 1))), "target's have 32"),
    ):
        with pytest.raises(ValueError, match=why):
            heads.load(folder, target)
    with pytest.raises(ValueError, match="a head of kind medusa and one of kind eagle is"):
        heads.load(folder, TARGET, only="eagle")
    with pytest.raises(ValueError, match="of kind eagle or eagle3 is wanted; name such a folder"):
        heads.load(folder, TARGET, only=("eagle", "eagle3"))
    with pytest.raises(ValueError, match=r"Llama is not a kind of head .* known: .*eagle, eagle3"):
        heads.save(folder / "other", TARGET.model, TARGET.params, TARGET)


def test_a_damaged_folder_is_refused(folder):
    file, record = folder / store.WEIGHTS, folder / store.RECORD
    whole, known = file.read_bytes(), json.loads(record.read_text())
    file.write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        heads.load(folder, TARGET)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="its bytes have changed; restore"):
        heads.load(folder, TARGET)
    file.unlink()
    with pytest.raises(ValueError, match=r"lacks head.safetensors"):
        heads.load(folder, TARGET)
    file.write_bytes(whole)
    for change, why in [
        ({"format": 1}, r"format = 1, which jspec does not implement; supported: 2"),
        ({"kind": "hydra"}, r"kind = 'hydra'.*supported: .*'eagle'"),
        ({"config": {"vocab_size": 23}}, "does not describe a medusa head"),
        ({"config": known["config"] | {"depth": 1}}, "does not describe a medusa head .*depth"),
        ({"config": known["config"] | {"num_heads": 3}}, r"block_2_0/bias, the file lacks it and"),
        ({"config": known["config"] | {"num_heads": 1}}, "block_1_0/bias.*has no place for it"),
    ]:
        record.write_text(json.dumps(known | change))
        with pytest.raises(ValueError, match=why):
            heads.load(folder, TARGET)
    record.write_text(json.dumps(known)[:-9])
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        heads.load(folder, TARGET)
    record.unlink()
    with pytest.raises(ValueError, match=r"lacks head\.json"):
        heads.load(folder, TARGET)


def test_a_head_is_written_whole_or_not_at_all(folder, monkeypatch):
    head = HEADS["medusa"]
    with pytest.raises(ValueError, match="exists already; name another folder"):
        heads.save(folder, head, weights(head), TARGET)
    with pytest.raises(ValueError, match=r"of params/block_0_0/bias, the file lacks it"):
        heads.save(folder.with_name("b"), head, {"params": {}}, TARGET)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(store, "save_file", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left on device\); make"):
        heads.save(folder.with_name("b"), head, weights(head), TARGET)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_a_bundled_head_is_found_by_its_target(folder, monkeypatch, tmp_path):
    zoo = tmp_path / "zoo"
    (zoo / "tiny" / "heads").mkdir(parents=True)
    folder.rename(zoo / "tiny" / "heads" / "medusa")
    monkeypatch.setattr(jspec.models.hub, "ZOO", zoo)
    assert heads.bundled() == ["tiny/medusa"]
    assert jspec.models.bundled() == []
    assert heads.find("medusa", TARGET) == "tiny/medusa"
    assert heads.load("tiny/medusa", TARGET)[0] == HEADS["medusa"]
    for kind, target in [("eagle", TARGET), ("medusa", loaded(seed=1))]:
        with pytest.raises(ValueError, match=f"no bundled {kind} head was trained for this model"):
            heads.find(kind, target)
