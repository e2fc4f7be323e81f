"""The target of the small published heads, and what is checked of each of them."""

import dataclasses

import jax
import numpy as np
import tiny

import jspec
import jspec.models
from jspec.models import heads

LAYERS = 6
MODEL = tiny.model(num_layers=LAYERS)
TARGET = jspec.models.Loaded(MODEL, tiny.params(MODEL), None, (), None)
SHAPE = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": MODEL.config.hidden_size,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
"""Of a head's layers."""
LLAMA = SHAPE | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
}
IDS = [0, 2, 3, 7, 8, 11, 15, 20, 22]
"""The tokens that a head scores, if these are not all."""


def other(**shape):
    """Another target, of this shape where it differs."""
    model = tiny.model(**{"num_layers": LAYERS, **shape})
    return dataclasses.replace(TARGET, model=model, params=tiny.params(model, seed=5))


def check_decoding(drafter, loaded, **ask):
    """Checks that drafts change no token, and returns the result."""
    _, variables, target = loaded
    call = TARGET.params, tiny.PROMPTS, tiny.LENGTHS
    plain = jspec.decode(MODEL, *call, **ask)
    ours = jspec.decode(target.model, *call, drafter=drafter, drafter_params=variables, **ask)
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    return ours


def check_saving(folder, head, variables, target=TARGET):
    """Checks that a head is the same when it is read in jspec's own format."""
    heads.save(folder, head, variables, target, {"from": "elsewhere"})
    again, held, _ = heads.load(folder, target)
    assert again == head
    jax.tree.map(np.testing.assert_array_equal, held, variables)
