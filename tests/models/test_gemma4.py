"""Gemma 4: what its memory holds, and layers that read others' keys."""

from dataclasses import replace

import pytest

import jspec
import jspec.models
from jspec.models import Layer, LlamaConfig


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
