"""A forward over eight devices gives what one device gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import jspec.models
from jspec import cache as caches
from jspec.models import sharding

NAMES = (
    "llama_biases_grouped_tied",
    "opt_norms_behind_projected",
    "gpt2",
    pytest.param("mixtral", marks=pytest.mark.slow),
)


@pytest.fixture
def mesh() -> Mesh:
    if jax.device_count() < 8:
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=8")
    return jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto, AxisType.Auto))


@pytest.mark.parametrize("name", NAMES)
def test_the_sharded_forward_is_the_forward(name, mesh, fixtures, causal):
    model, params, _ = jspec.models.load(fixtures / name, with_tokenizer=False)
    tokens = np.random.default_rng(3).integers(0, model.vocab_size, (4, 8))
    forward = jax.jit(model.apply)
    prompt = forward(params, *causal(tokens), None)
    every = jnp.broadcast_to(jnp.arange(8), (4, 8))
    lengths = jnp.asarray([8, 7, 6, 5])
    cache = caches.commit(model.init_cache(4, 16), prompt, every, lengths)
    root = (tokens[:, :1], lengths[:, None], jnp.ones((4, 1, 1), bool))
    whole = forward(params, *root, cache)

    split = jax.device_put(params, sharding.params(params, mesh))
    spread = jax.device_put(cache, sharding.cache(cache, mesh))
    found = forward(split, *root, spread)
    np.testing.assert_allclose(found.logits, whole.logits, atol=1e-5)
    np.testing.assert_allclose(found.keys[0], whole.keys[0], atol=1e-5)


def test_weights_are_loaded_onto_their_devices(mesh, fixtures):
    folder = fixtures / "llama2"
    params = jspec.models.load(folder, with_tokenizer=False, mesh=mesh).params["params"]
    block = params["layers_0"]
    assert params["embed"].sharding.spec == PartitionSpec("model", None)
    assert params["embed"].addressable_shards[0].data.shape == (16, 16)
    assert block["gate_up"]["kernel"].addressable_shards[0].data.shape == (16, 16)
    assert block["down"]["kernel"].addressable_shards[0].data.shape == (8, 16)
    assert block["mlp_norm"]["scale"].sharding.is_fully_replicated


def test_a_checkpoint_is_restored_onto_its_devices(mesh, fixtures, tmp_path):
    model, params, _ = jspec.models.load(fixtures / "llama2", with_tokenizer=False)
    jspec.models.save(tmp_path / "model", model, params)
    _, split = jspec.models.restore(tmp_path / "model", mesh=mesh)
    assert split["params"]["head"].sharding.spec == PartitionSpec("model", None)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, split, params))


def test_what_does_not_divide_stays_whole(mesh):
    odd = jax.ShapeDtypeStruct((105, 16), jnp.float32)
    assert sharding.params({"params": {"embed": odd}}, mesh)["params"]["embed"].spec == (
        PartitionSpec(None, None)
    )


def test_a_mesh_may_have_one_axis(fixtures):
    model, params, _ = jspec.models.load(fixtures / "llama2", with_tokenizer=False)
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices()[:1])
    specs = jax.tree.leaves(sharding.params(params, mesh))
    assert all(place.is_fully_replicated for place in specs)
    cache = sharding.cache(model.init_cache(2, 4), mesh)
    assert cache.keys[0].spec == PartitionSpec("data", None, None, None)
