"""Layers in the host's memory give the tokens of layers on the device, one layer ahead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
from jspec.models import checkpoint, host_layers, streaming

HOW = dict(with_tokenizer=False, scan_layers=True)


@pytest.fixture
def streamed(fixtures) -> jspec.models.Loaded:
    kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
    if streaming.HOST not in kinds:
        pytest.skip(f"the device has no {streaming.HOST}")
    return jspec.models.load(fixtures / "llama2", **HOW, layer_memory=streaming.HOST)


def test_layers_are_read_into_the_hosts_memory(streamed, fixtures):
    """The matrices of those that are scanned, and nothing else."""
    held = streamed.params["params"]
    kinds = {"/".join(path): leaf.sharding.memory_kind for path, leaf in flat(held)}
    away = {name for name, kind in kinds.items() if kind == streaming.HOST}
    layer = "layers_0:2:1"
    assert away == {f"{layer}/{name}/weight" for name in ("qkv", "output", "gate_up", "down")}
    assert {kind for name, kind in kinds.items() if name not in away} == {streaming.DEVICE}
    plain = jspec.models.load(fixtures / "llama2", **HOW)
    assert tiny.equal(held, plain.params["params"])


def test_streamed_tokens_are_the_tokens():
    model = tiny.model(num_layers=3).clone(scan_layers=True)
    params = checkpoint.relaid(model, tiny.params(tiny.model(num_layers=3)))
    name, host = "layers_0:3:1", jax.memory.Space.Host
    away = jax.tree.map(
        lambda leaf: jax.device_put(leaf, host) if streaming.streamed(leaf.shape) else leaf,
        params["params"][name],
    )
    assert streaming.on_host(away)
    there = {"params": params["params"] | {name: away}}
    ask = dict(max_new_tokens=8, drafter=jspec.PromptLookup(2))
    found = jspec.decode(model, there, tiny.PROMPTS[:1], **ask)
    assert (found.tokens == jspec.decode(model, params, tiny.PROMPTS[:1], **ask).tokens).all()


def flat(tree):
    """Names from the root, and arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(tuple(key.key for key in path), leaf) for path, leaf in leaves]


def order(stacks):
    """Returns which layer each step was given, and what a step fetches for the one after it."""

    def step(carry, given):
        number, weights = given
        return carry + weights["w"], (number, weights["w"])

    return streaming.over_layers(step, jnp.zeros(2), stacks, 4)


def test_a_step_gets_its_own_layer_and_fetches_the_next():
    stacks = {"w": jnp.arange(8.0).reshape(4, 2)}
    away = jax.device_put(stacks, jax.memory.Space.Host)
    for held in (stacks, away):
        total, (numbers, seen) = jax.jit(order)(held)
        assert total.tolist() == [12, 16] and numbers.tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(seen, stacks["w"])
    # On the device there is nothing to fetch; from the host a layer is, before and in the loop.
    assert "device_put" not in str(jax.make_jaxpr(order)(stacks))
    outside, inside = str(jax.make_jaxpr(order)(away)).split("scan[", 1)
    assert outside.count("device_put") == inside.count("device_put") == 1


def test_misfits_are_refused_before_anything_is_read(fixtures, monkeypatch):
    folder = fixtures / "llama2"
    with pytest.raises(jspec.InputError, match="streams the layers of a scan; pass scan_layers"):
        jspec.models.load(folder, layer_memory=streaming.HOST, with_tokenizer=False)
    with pytest.raises(jspec.InputError, match="layer_memory 'moon' is not a memory here"):
        jspec.models.load(folder, **HOW, layer_memory="moon")
    # By hand: two layers' matrices, and the larger stack of gate and up once more.
    needed = 2 * 4 * (48 * 16 + 16 * 16 + 64 * 16 + 16 * 32) + 2 * 4 * 64 * 16
    monkeypatch.setattr(host_layers, "_free_memory", lambda: needed)
    jspec.models.load(folder, **HOW, layer_memory=streaming.HOST)
    monkeypatch.setattr(host_layers, "_free_memory", lambda: needed - 1)
    with pytest.raises(jspec.InputError, match=r"the layers take 0\.0 GB of the host's .*too many"):
        jspec.models.load(folder, **HOW, layer_memory=streaming.HOST)
