"""Products of float32 numbers are float32 on every device: a GPU would take TF32 by itself."""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import tiny
from quick import only

import jspec
import jspec.models

FIXTURES = Path(__file__).parents[1] / "models/fixtures"
FAMILIES = sorted(file.parent.name for file in FIXTURES.glob("*/config.json"))


def products(model, params, precision=None):
    """Whether each product in a GPU's program of prefill and a round of 3 nodes is in float32."""
    drafter = jspec.PromptLookup(num_speculative_tokens=3)
    prompt = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    call = partial(jspec.decode, model, drafter=drafter, max_new_tokens=4)
    # All other tests ask for the highest.
    with jax.default_matmul_precision(precision):
        traced = jax.jit(lambda params, prompt: call(params, prompt).tokens).trace(params, prompt)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return [
        bool(re.search(r"precision = \[HIGHEST, HIGHEST\]", line))
        for line in text.splitlines()
        if "stablehlo.dot_general" in line
    ]


@pytest.mark.parametrize("name", only(FAMILIES, "llama"))
def test_a_model_in_float32_multiplies_in_float32(name):
    loaded = jspec.models.load(FIXTURES / name, with_tokenizer=False)
    found = products(loaded.model, loaded.params)
    assert found and all(found)


def test_other_models_and_whoever_asks_have_the_default():
    model = tiny.model(num_layers=1)
    params = tiny.params(model)
    assert not any(products(model, params, "tensorfloat32"))
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert not any(products(model.clone(dtype=jnp.bfloat16), narrow))
    own = jspec.testing.RecurrentLM()
    params = own.init()
    assert all(found := products(own, params)) and found, "without a dtype it goes by its weights"
    narrow = jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf, params
    )
    assert not any(products(own, narrow))
