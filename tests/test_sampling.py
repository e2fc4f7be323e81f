import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jspec import sampling as samplings
from jspec.arrays.top_k import _some_nodes, top_k
from jspec.types import Sampling

SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.3, 4, 1.0, 0.0),
    (0.8, 0, 0.9, 0.0),
    (0.6, 7, 0.5, 0.0),
    (1.0, 0, 1.0, 0.3),
    (2.0, 6, 0.7, 0.2),
    (0.0, 3, 0.5, 0.1),
    (1.0, 100, 1.0, 1.0),
    (0.5, 1, 1.0, 0.0),
    (1e-30, 0, 0.9, 0.0),
]


def rows(settings):
    columns = list(zip(*settings, strict=True))
    return Sampling(
        temperature=jnp.array(columns[0], jnp.float32),
        top_k=jnp.array(columns[1], jnp.int32),
        top_p=jnp.array(columns[2], jnp.float32),
        min_p=jnp.array(columns[3], jnp.float32),
    )


@pytest.mark.parametrize("ties", [False, True])
def test_probabilities_are_the_oracles_row_by_row(ties):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(len(SETTINGS), 19)) * 2
    if ties:
        logits = np.round(logits)
    logits[:, 5] = -np.inf
    probs = np.asarray(samplings.probabilities(jnp.asarray(logits, jnp.float32), rows(SETTINGS)))
    for row, setting in enumerate(SETTINGS):
        want = oracle.probabilities(logits[row], *setting)
        assert (probs[row] > 0).tolist() == (want > 0).tolist(), setting
        np.testing.assert_allclose(probs[row], want, atol=2e-6)


@pytest.mark.parametrize("scale", [0.0, 4.0, 40.0])
def test_thresholds_of_a_gpu_are_those_of_a_cpu_to_the_last_bit(scale):
    rng = np.random.default_rng(int(scale))
    probs = jax.nn.softmax(jnp.asarray(scale * rng.normal(size=(6, 5000)), jnp.float32))
    probs = probs.at[5].set(jnp.zeros(5000).at[7].set(1.0))  # the largest pattern that there is
    for weight, wanted in (
        (jnp.ones_like(probs), [1.0, 2.0, 50.0, 700.0, 4999.0, 1.0]),
        (probs, [1e-6, 0.3, 0.9, 0.999, 0.99999, 0.5]),
    ):
        given = probs, weight, jnp.asarray(wanted, jnp.float32)
        np.testing.assert_array_equal(samplings._by_digits(*given), samplings._by_halves(*given))


def test_only_a_gpu_cuts_without_a_loop():
    def lowered(platform):
        logits = jax.ShapeDtypeStruct((1, 5000), jnp.float32)
        cut = jax.jit(lambda x: samplings.probabilities(x, rows([(0.8, 50, 0.9, 0.0)])))
        return cut.trace(logits).lower(lowering_platforms=(platform,)).as_text()

    assert "stablehlo.while" not in lowered("cuda")
    assert "stablehlo.while" in lowered("cpu")


@pytest.mark.parametrize(("size", "k"), [(7, 3), (128, 1), (1000, 3), (4097, 1)])
def test_two_stage_top_k_is_exact_to_the_last_tie(size, k):
    rng = np.random.default_rng(size)
    for values in (rng.normal(size=(3, size)), rng.integers(0, 4, size=(3, size))):
        x = jnp.asarray(values, jnp.float32).at[0, : size // 2].set(-jnp.inf)
        got, want = top_k(x, k), jax.lax.top_k(x, k)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])


def test_nodes_may_be_searched_a_few_at_a_time():
    size = 2  # the last piece sees nodes again
    x = jnp.asarray(np.random.default_rng(0).integers(0, 9, (2, 5, 300)), jnp.float32)
    got, want = _some_nodes(x, size, 2), jax.lax.top_k(x, 2)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.parametrize(("platform", "loops"), [("cpu", 0), ("cuda", 0), ("tpu", 1)])
def test_only_a_tpu_searches_a_few_nodes_at_a_time(platform, loops):
    """XLA of JAX 0.12 compiles no loop around a top-k for CUDA."""
    x = jax.ShapeDtypeStruct((1, 64, 128_256), jnp.float32)
    search = jax.jit(lambda x: top_k(x, 8)).trace(x)
    lowered = search.lower(lowering_platforms=(platform,)).as_text()
    assert lowered.count("stablehlo.while") == loops


@pytest.mark.parametrize(
    ("size", "partitionable", "generator"),
    [
        pytest.param(*case, marks=() if case[1:] == (True, "threefry2x32") else pytest.mark.slow)
        for case in itertools.product([5, 50_000], [True, False], ["threefry2x32", "rbg"])
    ],
)
def test_the_noise_of_some_tokens_is_that_of_all(generator, partitionable, size):
    keys = samplings.row_keys(jax.random.key(1, impl=generator), jnp.arange(3))
    positions = jnp.array([0, 7, 70_000])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, size, (3, 40)))
    with jax.threefry_partitionable(partitionable):
        few = samplings.gumbel_of(keys, positions, tokens, size)
        both = samplings.gumbel(keys, positions, size)
    # The same bits; the logarithms of few are not rounded as those of many, by one unit at most.
    np.testing.assert_allclose(few, jnp.take_along_axis(both, tokens, axis=1), rtol=3e-7)


def test_the_noise_is_what_jax_draws():
    keys, positions = samplings.row_keys(jax.random.key(3), jnp.arange(2)), jnp.array([0, 70_000])
    noise = samplings.gumbel(keys, positions, 1000)
    for row, (key, position) in enumerate(zip(keys, positions, strict=True)):
        own = jax.random.fold_in(key, position)
        drawn = jax.random.gumbel(own, (1000,), jnp.float32, mode="high")
        np.testing.assert_allclose(noise[row], drawn, rtol=3e-7)
    bits = samplings._bits_at(own, jnp.arange(1000, dtype=jnp.uint32))
    np.testing.assert_array_equal(bits, jax.random.bits(own, (1000,), jnp.uint32))


def test_other_draws_do_not_meet_the_noise():
    keys = samplings.row_keys(jax.random.key(1), jnp.array([0]))
    position = jnp.array([3])
    noise = [jax.random.key_data(jax.random.fold_in(keys[0], i)).tolist() for i in range(64)]
    for purpose in range(4):
        data = jax.random.key_data(samplings.fork(keys, position, purpose)[0]).tolist()
        assert data not in noise


def test_a_filter_leaves_the_rows_that_do_not_ask_for_it_alone():
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(2, 50_000)) * 3, jnp.float32)
    alone = samplings.probabilities(logits[:1], rows([(1.0, 0, 1.0, 0.0)]))
    concat = samplings.probabilities(logits, rows([(1.0, 0, 1.0, 0.0), (1.0, 9, 0.9, 0.1)]))
    np.testing.assert_array_equal(alone[0], concat[0])
