"""All ways to compute a product give the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec._xla import native
from jspec.models import blocks, eight_bits, linear


@pytest.mark.parametrize("lead", [(1,), (1, 1), (3,), (2, 16), (33,)])
@pytest.mark.parametrize("outputs", [6, 7])
def test_products_are_those_of_numpy(lead, outputs):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(*lead, 8)), rng.normal(size=(outputs, 8))
    found = jax.jit(linear.product)(jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32))
    np.testing.assert_allclose(found, x @ weight.T, atol=1e-5)


def test_narrow_weights_are_multiplied_as_wide_ones():
    rng = np.random.default_rng(0)
    held = jnp.asarray(rng.normal(size=(20, 40)), jnp.bfloat16)
    x = jnp.asarray(rng.normal(size=(5, 40)), jnp.float32)
    run, wide = jax.jit(linear.multiply), held.astype(jnp.float32)
    # Tiles add in another order.
    atol = 2e-6 if native.instruction_set() == "AMX" else 0
    np.testing.assert_allclose(run(x, held), run(x, wide), rtol=0, atol=atol)
    np.testing.assert_allclose(linear.unembed(x, held), linear.unembed(x, wide), rtol=0, atol=atol)
    text = run.lower(x, held).as_text()
    assert native.instruction_set() is None or "tensor<20x40xf32>" not in text, "nothing is widened"
    # The negative control: rounded activations are others.
    assert (run(x.astype(jnp.bfloat16), held) != run(x, held)).any()


def test_scores_are_float32_whatever_the_states_are():
    rng = np.random.default_rng(0)
    states = jnp.asarray(rng.normal(size=(4, 8)), jnp.bfloat16)
    table = jnp.asarray(rng.normal(size=(10, 8)), jnp.float32)
    scores = linear.unembed(states, table)
    assert scores.dtype == jnp.float32 and linear.product(states, table).dtype == jnp.bfloat16


HELD = {
    "int8": (256, lambda matrix, x: eight_bits.LowPrecision(matrix, jnp.ones(256), x.dtype)),
    "q4_0": (256 // 32 * 18, lambda matrix, x: blocks.Blocks(matrix, "q4_0", x.dtype)),
}


@pytest.mark.parametrize(("kind", "after"), [("int8", True), ("int8", False), ("q4_0", True)])
def test_one_matrix_at_a_time_is_widened(kind, after, monkeypatch):
    """In a loop, XLA would rather widen all of them before it. Kernels widen in registers."""
    if not after:  # the negative control
        monkeypatch.setattr(linear, "upcast_after", lambda x, weights: weights.astype(x.dtype))
    lanes, held = HELD[kind]

    def loop(x, matrices):
        def body(_, x):
            for matrix in matrices:
                x = jnp.tanh(linear.multiply(x, held(matrix, x)))
            return x

        return jax.lax.fori_loop(0, 9, body, x)

    x = jax.ShapeDtypeStruct((4, 256), jnp.float32)
    narrow = jnp.int8 if kind == "int8" else jnp.uint8
    with native.disable():
        program = jax.jit(loop).lower(x, [jax.ShapeDtypeStruct((256, lanes), narrow)] * 8)
        used = program.compile().memory_analysis()
    assert used is not None
    assert (used.temp_size_in_bytes < (3 if kind == "int8" else 4) * 256 * 256 * 4) == after
