"""A forward pass over eight devices gives what one device gives."""

import tracemalloc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny
import tiny_gguf
from jax.sharding import AxisType, Mesh, PartitionSpec

import jspec.models
from jspec._validate.errors import InputError
from jspec.models import columns, export, sharding
from jspec.models.fingerprint import fingerprint

NAMES = (
    *("llama_biases_grouped_tied", "opt_norms_behind_projected", "gpt2", "mixtral", "qwen3_next"),
    *("deepseek_v3", "gpt_oss", "gemma4", "granite4"),
)
WHOLE = ("router/weight", "latents/weight", "convolution", "positions", "shared_gate/weight")
WHOLE += ("project_in/weight", "project_out/weight", "per_layer_projection/weight")
WHOLE += ("per_layer_gate/weight", "per_layer_up/weight")


@pytest.fixture
def mesh() -> Mesh:
    if jax.device_count() < 8:
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=8")
    return jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto, AxisType.Auto))


def test_a_checkpoint_is_restored_onto_its_devices(mesh, fixtures, tmp_path):
    model, params, _ = jspec.models.load(fixtures / "llama2", with_tokenizer=False)
    jspec.models.save(tmp_path / "model", model, params)
    found, split = jspec.models.restore(tmp_path / "model", mesh=mesh)
    assert split["params"]["head"].sharding.spec == PartitionSpec("model", None)
    assert found.tp_size == 4
    assert tiny.equal(split, laid_out(found, params))
    # And back: saved as it lies there, restored on one device.
    jspec.models.save(tmp_path / "split", found, split)
    again, whole = jspec.models.restore(tmp_path / "split")
    assert again == model
    assert tiny.equal(whole, params)


def laid_out(model, params):
    """The weights of one device as a model holds them that is on a mesh."""
    host = jax.tree.map(np.asarray, params)
    return columns.relaid(host, model.fused, 1, model.tp_size)


def test_a_device_has_the_columns_of_its_own_heads():
    """[q | k | v] of four and two heads, as two devices have them."""
    heads = [
        f"{name}{number}" for name, count in dict(q=4, k=2, v=2).items() for number in range(count)
    ]
    fused = columns.FusedProjection((4, 2, 2), size=3)
    order = fused.order(2)
    assert [heads[column // 3] for column in order[::3]] == "q0 q1 k0 v0 q2 q3 k1 v1".split()
    assert (order % 3 == np.arange(24) % 3).all()
    q, k, v = fused.apart(jnp.asarray(order), 2)
    np.testing.assert_array_equal(np.concatenate([q, k, v]), np.arange(24))
    # Of three devices none would have whole heads of all: one part.
    assert (fused.order(3) == np.arange(24)).all()
    there = columns.relaid({"qkv": {"bias": np.arange(24)}}, {"qkv": fused}, 1, 2)
    np.testing.assert_array_equal(there["qkv"]["bias"], order)
    back = columns.relaid(there, {"qkv": fused}, 2, 1)
    np.testing.assert_array_equal(back["qkv"]["bias"], np.arange(24))


def test_weights_are_known_however_their_columns_lie(mesh, fixtures):
    path = fixtures / "llama_biases_grouped_tied"
    one, many = (jspec.models.load(path, with_tokenizer=False, mesh=m) for m in (None, mesh))
    assert many.model.tp_size == 4
    assert fingerprint(many.params, many.model) == fingerprint(one.params)
    assert fingerprint(many.params) != fingerprint(one.params)


def test_indivisible_axes_stay_whole_and_a_mesh_may_have_one_axis(mesh, fixtures):
    odd = {"params": {"embed": jax.ShapeDtypeStruct((105, 16), jnp.float32)}}
    assert sharding.params(odd, mesh)["params"]["embed"].spec == PartitionSpec(None, None)
    model, params, _ = jspec.models.load(fixtures / "llama2", with_tokenizer=False)
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices()[:1])
    specs = jax.tree.leaves(sharding.params(params, mesh))
    assert all(place.is_fully_replicated for place in specs)
    cache = sharding.memory(model.init_memory(2, 4), mesh)
    assert cache.keys[0].spec == PartitionSpec("data", None, None, None)


def test_rules_place_targets_drafts_and_heads_apart(mesh):
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    tree = {"embed": shape, "layers_3": {"qkv": {"weight": shape}}, "info": {"up": shape}}
    found = {
        name: [tuple(place.spec) for place in jax.tree.leaves(sharding.params(tree, mesh, rules))]
        for name, rules in vars(sharding).items()
        if isinstance(rules, sharding.Rules)
    }
    split, whole, columns = ("model", None), (None, None), (None, "model")
    assert found == {
        "TARGET": [split, columns, split],
        "DRAFT": [whole, whole, whole],
        "HEAD": [split, columns, whole],
    }


def test_every_large_parameter_of_every_family_has_its_axes(mesh, variant):
    """Checks that whole arrays are vectors, or of those whose columns are few."""
    table = sharding.TABLES[type(variant.model).__name__]
    places = jax.tree.leaves(sharding.params(variant.params, mesh, model=variant.model))
    leaves = jax.tree_util.tree_leaves_with_path(variant.params)
    for (path, leaf), place in zip(leaves, places, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        expected = any(f"/{end}" in f"/{sharding.strip_numbers(name)}" for end in table)
        assert expected != place.is_fully_replicated, name
        assert expected or leaf.ndim < 2 or name.endswith(WHOLE), name


def test_a_mesh_or_a_batch_that_does_not_divide_is_refused(mesh):
    for changes, sentence in (
        (dict(vocab_size=105), "105 tokens in its vocabulary, which 4 devices of the mesh's axis"),
        (dict(num_heads=6, num_kv_heads=6, head_dim=4), "6 key-value heads"),
        (dict(intermediate_size=30), "30 MLP lanes"),
    ):
        with pytest.raises(InputError, match=sentence):
            sharding.check(tiny.model(**(dict(vocab_size=64, num_kv_heads=4) | changes)), mesh)
    assert sharding.batch(np.zeros((4, 3)), mesh).sharding.spec == PartitionSpec("data")
    with pytest.raises(InputError, match=r"5 rows.*2 devices.*axis of 1, or 6 rows"):
        sharding.batch(np.zeros((5, 3)), mesh)


def test_loading_strictly_refuses_before_weights_are_read(mesh, fixtures, tmp_path):
    load = partial(jspec.models.load, with_tokenizer=False, mesh=mesh, strict=True)
    load(fixtures / "gpt2")
    for name in ("config.json",):  # and no weights
        (tmp_path / name).write_bytes((fixtures / "llama_biases_grouped_tied" / name).read_bytes())
    with pytest.raises(InputError, match="2 key-value heads, which 4 devices"):
        load(tmp_path)


def allocated(load):
    """The most bytes that Python held while it loaded, beyond those that it holds after."""
    tracemalloc.start()
    kept = load()
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # XLA takes an aligned array as it is, so that a part may stay in NumPy's memory.
    return peak - after, kept


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """One model in three formats, whose tensors are far larger than what else a loader holds."""
    folder = tmp_path_factory.mktemp("large")
    shape = dict(vocab_size=4096, hidden_size=256, intermediate_size=1024, num_kv_heads=4)
    model = tiny.model(**shape, head_dim=64)
    params = tiny.params(model)
    export.save_hf(model, params, folder / "hf", dtype=jnp.float32)
    tiny_gguf.convert(folder / "hf", folder / "f.gguf", tiny_gguf.Kind.Q8_0)
    jspec.models.save(folder / "orbax", model, params)
    return folder, params


LOADERS = {
    "hf": lambda path, mesh: tuple(jspec.models.load(path, with_tokenizer=False, mesh=mesh))[:2],
    "f.gguf": lambda path, mesh: LOADERS["hf"](path, mesh),
    "orbax": lambda path, mesh: jspec.models.restore(path, mesh=mesh),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_checkpoint_is_read_straight_into_its_parts(name, large, mesh):
    """No more than one part and one tensor alongside the parts."""
    folder, params = large
    load = partial(LOADERS[name], folder / name)
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    part = largest // mesh.shape["model"]
    beside, loaded = allocated(lambda: load(mesh=mesh))
    assert beside <= largest + part + 2**18
    if name == "f.gguf":  # which holds other weights, in 8 bits
        _, params = load(mesh=None)
    assert tiny.equal(loaded[1], laid_out(loaded[0], params))


@pytest.mark.parametrize("kind", ["hf", "gguf"])
@pytest.mark.parametrize("name", quick.only((*NAMES[:1], "gpt2", "mixtral", "olmo2"), *NAMES[2:4]))
def test_parts_are_those_of_the_whole(name, kind, fixtures, tmp_path):
    """Parts that begin within a head or an expert's stack, matrices stored the other way round."""
    mesh = jax.make_mesh((1, 8), ("data", "model"), (AxisType.Auto, AxisType.Auto))
    path = fixtures / name
    if kind == "gguf":
        path = tiny_gguf.convert(path, tmp_path / "f.gguf")
    whole, split = (
        jspec.models.load(path, with_tokenizer=False, mesh=each) for each in (None, mesh)
    )
    assert tiny.equal(split.params, laid_out(split.model, whole.params))


def test_a_model_that_is_read_whole_would_be_seen(large, mesh):
    folder, params = large

    def unaligned(leaf):  # so that XLA copies it
        held = np.empty(leaf.size + 1, leaf.dtype)[1:].reshape(leaf.shape)
        held[...] = leaf
        return held

    def whole():
        held = jspec.models.load(folder / "hf", with_tokenizer=False).params
        host = jax.tree.map(unaligned, held)
        return jax.block_until_ready(jax.device_put(host, sharding.params(host, mesh)))

    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert allocated(whole)[0] > total / 2
