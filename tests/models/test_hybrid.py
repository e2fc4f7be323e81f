"""Decoders with recurrent layers: what only they have. test_decoding.py tests the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny

import jspec
import jspec.models
from jspec._xla import native
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
