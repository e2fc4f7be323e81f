"""Weights in 8 bits: the model with its weights rounded, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import refusals
import tiny
from jax.sharding import AxisType, PartitionSpec

import jspec
from jspec._xla import native
from jspec.models import checkpoint, eight_bits, precision, sharding
from jspec.models.export import save_hf

KINDS = ("int8", "float8_e4m3fn", "w8a8")


@pytest.mark.parametrize(("kind", "half_a_step"), [("int8", 0.5 / 127), ("float8_e4m3fn", 1 / 16)])
def test_an_output_is_rounded_by_its_own_largest_weight(kind, half_a_step):
    weights = np.random.default_rng(0).normal(size=(3, 5, 40))
    weights *= np.array([1, 1e-3, 30, 1, 0])[:, None]
    small, factors = eight_bits.quantise(weights, kind)
    assert small.dtype == jnp.dtype(kind) and factors.shape == (3, 5)
    widened = np.asarray(small, np.float64) * factors[..., None]
    largest = np.abs(weights).max(-1, keepdims=True)
    # Steps of int8 are even; a float's grow with the weight, and half of one is 1/16 of it.
    bound = largest if kind == "int8" else np.maximum(np.abs(weights), largest * 2**-13)
    assert (np.abs(widened - weights) <= 1.001 * half_a_step * bound).all()
    assert np.allclose(np.abs(widened).max(-1), largest[..., 0], rtol=1e-6)
    # One factor for all outputs loses the small ones: the bound can be broken.
    together, one = eight_bits.quantise(weights.reshape(3, 1, -1), kind)
    lost = (np.asarray(together, np.float64) * one[..., None]).reshape(weights.shape)
    assert kind != "int8" or (np.abs(lost - weights) > half_a_step * bound).any()


def rounded(params):
    """Weights of 8 bits as those of a model in float32, by hand."""
    held = {}
    for name, leaf in params.items():
        if isinstance(leaf, dict):
            held[name] = rounded(leaf)
        elif f"{name}_scale" in params:
            factors = np.asarray(params[f"{name}_scale"])[..., None]
            held[name] = np.asarray(leaf, np.float32) * factors
        elif not name.endswith("_scale"):
            held[name] = leaf
    return held


FAMILIES = (
    *("mixtral", "opt_norms_behind_projected", "pythia", "gemma3", "qwen2", "qwen3_moe"),
    *("deepseek_v3", "gpt_oss", "gemma4", "gemma4_moe"),
)


@pytest.mark.parametrize("name", quick.only(FAMILIES, "mixtral"))
def test_it_is_the_model_with_its_weights_rounded(name, recorded, fixtures):
    plain = recorded(name)
    small = jspec.models.load(fixtures / name, with_tokenizer=False, param_dtype="int8")
    described = jax.tree.map(lambda x: (x.shape, x.dtype), checkpoint.shapes(small.model))
    assert described == jax.tree.map(lambda x: (x.shape, x.dtype), small.params)
    kinds = {
        "/".join(key.key for key in path[2:]): leaf.dtype.name
        for path, leaf in jax.tree_util.tree_leaves_with_path(small.params)
    }
    assert "int8" in kinds.values() and "int8" not in [kinds.get("experts/router/weight")]
    found = tiny.forward(small.model, small.params, plain.tokens).logits
    by_hand = plain.forward(rounded(small.params), *tiny.causal(plain.tokens), None).logits
    np.testing.assert_allclose(found, by_hand, atol=1e-4, rtol=0)
    assert np.abs(found - plain.logits).max() > 1e-3, "rounding changes the model"


def small_model(kind: str = "int8", **changes):
    model = tiny.model(**changes).clone(param_dtype=precision.find(kind, as_weights=True))
    return model, jax.jit(model.init)(
        jax.random.key(0), *[jnp.zeros((1, 1), jnp.int32)] * 2, jnp.ones((1, 1, 1), bool)
    )


@pytest.mark.parametrize("name", ["llama2", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_rounded_activations_are_those_of_the_products_alone(name, recorded, fixtures):
    """w8a8 alongside int8: the same weights; moved a little by its activations, with or without."""
    plain = recorded(name)
    both = [
        jspec.models.load(fixtures / name, with_tokenizer=False, dtype=kind)
        for kind in ("int8", "w8a8")
    ]
    assert tiny.equal(both[0].params, both[1].params)
    by_weights, by_both = (tiny.forward(one.model, one.params, plain.tokens).logits for one in both)
    # A few tokens may go to another expert.
    moved = np.median(np.abs(by_both - by_weights))
    assert 1e-4 < moved < 0.05 * np.median(np.abs(by_weights))
    with native.disable():
        by_xla = tiny.forward(both[1].model, both[1].params, plain.tokens).logits
    # Attention sums in another order, and what is near the middle of two integers may move on.
    assert np.median(np.abs(by_both - by_xla)) < moved / 2


@pytest.mark.parametrize("kind", quick.only(KINDS, KINDS[0]))
def test_it_is_restored_from_disk(kind, tmp_path):
    model, params = small_model(kind)
    jspec.models.save(tmp_path / "model", model, params)
    again, held = jspec.models.restore(tmp_path / "model")
    assert again == model.clone(param_dtype=again.param_dtype)
    assert eight_bits.dtype_name(again.param_dtype) == kind
    assert tiny.equal(held, params)


def test_factors_are_split_as_the_columns_are():
    mesh = jax.make_mesh((1,), ("model",), (AxisType.Auto,), devices=jax.devices()[:1])
    model, _ = small_model()
    for scanned, name, front in ((False, "layers_0", ()), (True, "layers_0:2:1", (None,))):
        shapes = checkpoint.shapes(model.clone(scan_layers=scanned))
        layer = sharding.params(shapes, mesh)["params"][name]
        assert layer["gate_up"]["weight"].spec == PartitionSpec(*front, "model", None)
        assert layer["gate_up"]["weight_scale"].spec == PartitionSpec(*front, "model")
        assert layer["down"]["weight"].spec == PartitionSpec(*front, None, "model")
        assert layer["down"]["weight_scale"].spec == PartitionSpec(*front, None)


def test_absent_support_is_refused_in_one_sentence(fixtures, tmp_path):
    folder, both = fixtures / "llama2", dict(dtype="int8", param_dtype="bfloat16")
    refusals.check([
        (both, "dtype 'int8' is one of weights, and param_dtype 'bfloat16' another"),
        (dict(param_dtype="int4"), "dtype 'int4' is unknown; use one of float32, .*int8, float8"),
    ], lambda how: jspec.models.load(folder, **how, with_tokenizer=False))  # fmt: skip
    model, params = small_model()
    with pytest.raises(jspec.InputError, match="weights are int8, which LlamaForCausalLM has not"):
        save_hf(model, params, tmp_path)
