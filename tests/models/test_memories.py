"""Decoders with recurrent layers, and with layers that read the keys of others."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny

import jspec
import jspec.models
from jspec._xla import native
from jspec.models import Layer, LlamaConfig
from jspec.models.hybrid import HybridMemory

NAMES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "granite4")


@pytest.fixture(params=quick.only(NAMES, NAMES[0]))
def found(request, recorded):
    return recorded(request.param)


def test_products_give_the_tokens_of_steps(found):
    """Uses the program of other devices, and of a CPU without kernels."""
    with native.disabled():
        output = tiny.forward(found.model, found.params, found.tokens)
    np.testing.assert_allclose(output.logits, found.logits, atol=1e-4, rtol=0)


def test_the_memory_of_a_state_does_not_grow_with_the_capacity(found):
    short, long = (jax.eval_shape(lambda s=s: found.model.init_memory(2, s)) for s in (8, 64))
    assert isinstance(short, HybridMemory)
    assert jax.tree.map(jnp.shape, short.recurrent) == jax.tree.map(jnp.shape, long.recurrent)
    assert short.attention.capacity == 8 and long.attention.capacity == 64


def test_it_is_refused_as_a_draft_model(found):
    with pytest.raises(jspec.InputError, match="until"):
        jspec.decode(
            found.model, found.params, found.tokens, max_new_tokens=4,
            drafter=jspec.SpeculativeDecoding(found.model, 2), drafter_params=found.params,
        )  # fmt: skip


def test_adapters_are_refused(fixtures, tmp_path):
    with pytest.raises(jspec.InputError, match="adapters on a Hybrid, whose recurrent states"):
        jspec.models.load(fixtures / "granite4", with_tokenizer=False, adapters={"mine": tmp_path})


def test_bad_sizes_are_refused():
    net = jspec.models.DeltaNet(2, 4, 8, 8)
    with pytest.raises(jspec.InputError, match="num_key_heads is 3, which does not divide"):
        jspec.models.DeltaNet(3, 4, 8, 8)
    sizes = dict(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, context=9,
    )  # fmt: skip
    layers = (jspec.models.Layer(None, mixer=net),)
    with pytest.raises(jspec.InputError, match="none of the layers is attention"):
        jspec.models.Hybrid(jspec.models.LlamaConfig(**sizes, layers=layers))


def test_the_memory_holds_the_keys_of_the_layers_that_have_their_own(recorded):
    """Three of six layers, of two sizes; the memory of all would be twice as large."""
    model = recorded("gemma4").model
    memory = model.init_memory(2, 16)
    heads, near, far = model.config.num_kv_heads, model.config.head_dim, 16
    lanes = [near, near, far]
    assert [held.shape for held in memory.keys] == [(2, heads, 16, own) for own in lanes]
    assert [held.shape for held in memory.values] == [(2, heads, 16, own) for own in lanes]
    assert [layer.keys_of for layer in model.kinds] == [None, None, None, 1, 1, 2]


def test_a_layer_reads_keys_that_are_there_and_fit():
    def model(*layers: Layer):
        config = LlamaConfig(
            vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=len(layers), num_heads=2,
            num_kv_heads=2, head_dim=4, context=9, layers=layers,
        )  # fmt: skip
        return jspec.models.Llama(config)

    own = Layer(None)
    assert model(own, replace(own, keys_of=0)).init_memory(1, 4).keys[0].shape == (1, 2, 4, 4)
    with pytest.raises(jspec.InputError, match="layer 1 reads the keys of layer 2; let it read"):
        model(own, replace(own, keys_of=2))
    with pytest.raises(jspec.InputError, match="before it that has its own"):
        model(own, replace(own, keys_of=0), own)
    with pytest.raises(jspec.InputError, match="2 key-value heads of 8 lanes and reads layer"):
        model(own, replace(own, keys_of=0, head_dim=8))
