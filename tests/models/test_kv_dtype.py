"""Keys and values in 8 bits: a tree's node has the bits of the same token in the memory."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny

import jspec
from jspec.memory import Rounded, quantise
from jspec.models import checkpoint

WIDE = tiny.model()
MODEL = WIDE.clone(kv_dtype=jnp.int8)
PARAMS = tiny.params(MODEL)


HALF_A_STEP = {
    jnp.int8: (127, lambda x, scales: 0.5 * scales),
    jnp.float8_e4m3fn: (448, lambda x, scales: np.maximum(np.abs(x) / 16, scales * 2.0**-10)),
}


@pytest.mark.parametrize("dtype", HALF_A_STEP)
def test_rounding_is_that_of_an_oracle_and_off_by_half_a_step(dtype):
    most, half_a_step = HALF_A_STEP[dtype]
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(2, 3, 5, 8)) * 10.0 ** rng.integers(-6, 7, (2, 3, 5, 1))).astype("f4")
    x[0, 0, 0] = 0
    small = quantise(jnp.asarray(x), dtype)
    scales = np.asarray(small.scales)
    np.testing.assert_allclose(scales, np.abs(x).max(-1, keepdims=True) / most, rtol=1e-6)
    assert small.values.dtype == dtype
    if dtype != jnp.int8:
        steps = (x / np.where(scales == 0, 1, scales)).clip(-most, most)
        np.testing.assert_array_equal(small.values, steps.astype(ml_dtypes.float8_e4m3fn))
    off, bound = np.abs(np.asarray(small.astype(jnp.float32)) - x), half_a_step(x, scales)
    assert (off <= bound * 1.001).all() and (off > 0.8 * bound).any()
    bad = quantise(jnp.array([[[[1.0, np.inf]], [[np.nan, 1]]]]), dtype)
    assert not np.isfinite(bad.scales).any()


def test_the_memory_is_a_quarter_and_a_scale():
    kept = jax.eval_shape(partial(MODEL.init_memory, 2, 100))
    assert all(isinstance(part, Rounded) for part in (*kept.keys, *kept.values))
    layers, vectors = 2, 2 * 2 * 100  # rows, heads, slots
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
    assert size == 2 * layers * vectors * (4 + 4) + 2 * 4


def test_scanned_layers_give_the_numbers_of_the_others():
    scanned = MODEL.clone(scan_layers=True)
    found, wanted = (
        tiny.forward(model, checkpoint.relaid(model, PARAMS), tiny.PROMPTS).logits
        for model in (scanned, MODEL)
    )
    np.testing.assert_array_equal(found, wanted)


def _behind(model, prompt, tentative):
    """Logits of a token behind a prompt, which is held as what is given of it."""
    every = jnp.arange(tiny.PROMPTS.shape[1])[None]
    cache = model.commit(
        model.init_memory(1, 300), tentative, every, jnp.array([every.shape[1] - 1])
    )
    last = jnp.asarray(prompt)[:, -1:]
    one = jnp.ones((1, 1, 1), bool)
    return jax.jit(model.apply)(PARAMS, last, every[:, -1:], one, cache).logits[0, 0]


def test_a_node_and_its_token_are_the_same_numbers():
    """And are not, if what is committed alone were rounded."""
    prompt = tiny.PROMPTS[:1]
    whole = tiny.forward(MODEL, PARAMS, prompt)
    behind = _behind(MODEL, prompt, whole.tentative)
    np.testing.assert_allclose(behind, whole.logits[0, -1], atol=1e-5, rtol=0)

    wide = tiny.forward(WIDE, PARAMS, prompt)
    late = jax.tree.map(quantise, wide.tentative)
    off = np.abs(_behind(MODEL, prompt, late) - wide.logits[0, -1]).max()
    assert off > 1e-3


def test_a_checkpoint_says_it_and_other_kinds_are_refused(fixtures, tmp_path):
    jspec.models.save(tmp_path / "one", MODEL, PARAMS)
    assert jspec.models.restore(tmp_path / "one")[0] == MODEL
    with pytest.raises(ValueError, match="kv_dtype 'int4' is unknown; use int8 or float8_e4m3fn"):
        jspec.models.load(fixtures / "llama2", with_tokenizer=False, kv_dtype="int4")
    with pytest.raises(ValueError, match="kv_dtype 'bfloat16' is unknown"):
        WIDE.clone(kv_dtype="bfloat16")
